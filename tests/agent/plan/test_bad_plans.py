"""A bad plan is a slow start, never a failure; what was done of it is used."""

import asyncio
from typing import Any

import pytest
from tests.agent.plan.planners import GOOD, TOOLS, double, listen, plan, planner
from tests.agent.runs import end_of, of

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, CallFinished, Event, PlanAbandoned
from hotloop.agent.model import Ask
from hotloop.agent.plan.schema import MAX_STEPS
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import RequestError
from hotloop.wire.event import EndReason


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "no plan"),
        ("I would rather not.", "no plan"),
        ("{}", "no plan"),
        ('{"steps": 3}', "no plan"),
        ('{"steps": []}', "no steps"),
        ('{"steps": [3]}', "cannot be read"),
        ('{"steps": [{"id": "a"}]}', "cannot be read"),
        ('{"steps": [{"id": "a", "tool": "double", "arguments": []}]}', "cannot be read"),
        ('{"steps": [{"id": "a", "tool": "double", "arguments": {"n": ' + "[" * 9000 + "]" * 9000 + "}}]}", "deeply"),
        (plan(("A", "double", {"n": 1})), "cannot be read"),
        (plan(("a", "nothing", {})), "no such tool"),
        (plan(("a", "final_answer", {})), "no such tool"),
        (plan(("a", "double", {})), "lacks the argument 'n'"),
        (plan(("a", "double", {"n": 1, "m": 2})), "does not take"),
        (plan(("a", "double", {"n": "${b}"})), "no such step before it"),
        (plan(("a", "double", {"n": "${a}"})), "no such step before it"),
        (plan(("b", "double", {"n": "${c}"}), ("c", "double", {"n": "${b}"})), "no such step before it"),
        (plan(("a", "double", {"n": "${b[x]}"})), "is no reference"),
    ],
)
async def test_a_bad_plan_is_given_up(written: str, reason: str) -> None:
    model = planner(written, [ScriptedCall("double", n=2)], "4")
    events = await listen(Agent(model, TOOLS))
    [abandoned] = of(PlanAbandoned, events)
    assert reason in abandoned.reason
    assert "\n" not in abandoned.reason
    assert end_of(events).output == "4"
    assert end_of(events).spent.num_turns == 3


async def test_a_run_that_has_to_call_does_so_after_a_plan_that_was_none() -> None:
    model = planner("no plan at all", [ScriptedCall("double", n=2)], "4")
    await listen(Agent(model, TOOLS, tool_choice="required"))
    assert [ask.choice for ask in model.asks] == ["none", "required", "auto"]


@pytest.mark.parametrize("last", [GOOD, ("b", "nothing", {}), ("b", "double", {"n": "${x}"})])
async def test_what_was_done_of_a_bad_plan_is_used(last: tuple[str, str, dict[str, Any]]) -> None:
    conversation = Conversation()
    events = await listen(Agent(planner(plan(GOOD, last), "2"), TOOLS), conversation=conversation)
    assert len(of(PlanAbandoned, events)) == 1
    assert [message.content for message in conversation.messages] == ["go", "", "2", "2"]
    assert len(conversation.messages[1].tool_calls) == 1


@pytest.mark.parametrize("end", ["stop", "length"])
async def test_a_plan_that_is_cut_off(end: EndReason) -> None:
    written = plan(GOOD, ("b", "double", {"n": 5})).removesuffix("}}]}")
    events = await listen(Agent(planner(written, "2", end=end), TOOLS))
    assert [event.reason for event in of(PlanAbandoned, events)] == ["it was cut off"]
    assert [event.arguments for event in of(CallDispatched, events)] == ['{"n": 1}']
    assert end_of(events).spent.usage.num_output >= 10  # it has been paid for


@pytest.mark.parametrize("end", ["length", "window", "refusal"])
@pytest.mark.parametrize("rest", ["", "]}"])
async def test_the_last_step_of_a_plan_that_was_cut_off_is_not_run(end: EndReason, rest: str) -> None:
    """Its brackets may have been closed by the server, or the filter may have stopped what came next."""
    written = plan(GOOD, ("b", "double", {"n": 5})).removesuffix("]}") + rest
    events = await listen(Agent(planner(written, "2", end=end), TOOLS))
    assert [event.reason for event in of(PlanAbandoned, events)] == ["it was cut off"]
    assert [event.arguments for event in of(CallDispatched, events)] == ['{"n": 1}']


async def test_what_had_not_begun_when_a_plan_was_given_up_never_does() -> None:
    may_end = asyncio.Event()

    @tool
    async def wait() -> int:
        await may_end.wait()
        return 3

    written = plan(("a", "wait", {}), ("b", "double", {"n": "${a}"}), ("c", "nothing", {}))
    conversation = Conversation()
    agent = Agent(planner(written, "3"), [wait, double])
    events: list[Event] = []
    async for event in agent.stream_plan("go", conversation=conversation):
        events.append(event)
        if isinstance(event, PlanAbandoned):
            may_end.set()
    assert [event.name for event in of(CallDispatched, events)] == ["wait"]
    assert [call.name for call in conversation.messages[1].tool_calls] == ["wait"]


async def test_a_plan_without_end() -> None:
    model = planner(plan(*((f"s{i}", "double", {"n": i}) for i in range(MAX_STEPS + 1))), "done")
    events = await listen(Agent(model, TOOLS))
    assert "more than" in of(PlanAbandoned, events)[0].reason
    assert len(of(CallFinished, events)) == MAX_STEPS


async def test_a_model_that_cannot_plan() -> None:
    def script(ask: Ask) -> str:
        if ask.schema:
            raise RequestError("response_format is not supported")
        return "hello"

    events = await listen(Agent(ScriptedModel(script), TOOLS))
    assert [event.reason for event in of(PlanAbandoned, events)] == ["response_format is not supported"]
    assert end_of(events).output == "hello"
