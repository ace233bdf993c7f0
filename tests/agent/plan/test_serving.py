"""Plans and branches on a real server: its grammar lets only a plan be written, and its cache knows what is shared."""

import json

import pytest
from tests.agent.runs import check, end_of, of
from tests.server.serving import Serving

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, PlanAbandoned, TurnFinished
from hotloop.agent.run_stream import Result
from hotloop.agent.tools.tool import tool
from hotloop.agent.wire.anthropic import AnthropicModel
from hotloop.agent.wire.openai import OpenAIModel

PLAN = {
    "steps": [
        {"id": "a", "tool": "double", "arguments": {"n": 2}},
        {"id": "b", "tool": "double", "arguments": {"n": "${a}"}},
    ]
}
LONG = "You know all about numbers. " * 20


@tool(read_only=True)
def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_plan(api: str) -> None:
    with Serving(script=[json.dumps(PLAN), "It is 8."]) as serving:
        model = OpenAIModel(f"{serving.url}/v1") if api == "openai" else AnthropicModel(serving.url, "tiny")
        agent = Agent(model, [double], LONG, max_tokens=400)
        events = [event async for event in agent.stream_plan("Twice 2, and that twice?")]
        await agent.close()
    check(events)
    assert not of(PlanAbandoned, events)
    assert [event.arguments for event in of(CallDispatched, events)] == ['{"n": 2}', '{"n": 4}']
    assert end_of(events).output == "It is 8."
    [_, synthesis] = of(TurnFinished, events)
    assert synthesis.usage.num_cached >= len(LONG)  # a token is a byte


async def test_nothing_but_a_plan_can_be_written() -> None:
    """The model would rather talk. What comes of that is nonsense, and still no step is anything but a step."""
    with Serving(script=["I would rather not plan anything at all.", "Fine."]) as serving:
        agent = Agent(OpenAIModel(f"{serving.url}/v1"), [double], max_tokens=300, temperature=0.0)
        events = [event async for event in agent.stream_plan("Twice 2?")]
        await agent.close()
    check(events)
    for abandoned in of(PlanAbandoned, events):
        for impossible in ("wrote no plan", "cannot be read", "no such tool", "lacks", "does not take"):
            assert impossible not in abandoned.reason


async def test_branches_share_what_the_server_has_read() -> None:
    with Serving(script=["Yes.", "Of course."]) as serving:
        agent = Agent(OpenAIModel(f"{serving.url}/v1"), instructions=LONG)
        base = Conversation()
        await agent.run("Do you?", conversation=base)
        branches = await agent.fork(["Really?", "Always?", "Sure?"], conversation=base)
        await agent.close()
    results = [branch for branch in branches if isinstance(branch, Result)]
    assert [result.output for result in results] == ["Of course."] * 3
    assert all(result.spent.usage.num_cached >= len(LONG) for result in results)


async def test_branches_that_begin_at_once_read_what_they_share_once() -> None:
    with Serving(script=["Yes."]) as serving:
        agent = Agent(OpenAIModel(f"{serving.url}/v1"), instructions=LONG)
        branches = await agent.fork(["One?", "Two?", "Three?", "Four?"])
        await agent.close()
    cached = [branch.spent.usage.num_cached for branch in branches if isinstance(branch, Result)]
    assert len(cached) == 4
    assert sum(cached) >= 3 * (len(LONG) // 16 * 16)  # whoever it is that computes which part
