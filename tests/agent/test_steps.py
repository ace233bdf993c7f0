"""Which class and task each step of an agent says."""

from dataclasses import replace

import pytest
from tests.agent.runs import end_of, listen

from hotloop.agent.agent import Agent
from hotloop.agent.compaction import Compaction
from hotloop.agent.conversation import Conversation
from hotloop.agent.limits import Run
from hotloop.agent.model import Ask
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import Context, ToolOptions, tool
from hotloop.agent.wire.served import session_headers
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message
from hotloop.core.request import Priority

CALL = [ScriptedCall("help", prompt="do it")]


def steps(model: ScriptedModel) -> list[tuple[Priority, str]]:
    return [(ask.priority, ask.task) for ask in model.asks]


async def sub_agents_asks(options: ToolOptions | None = None, **settings: object) -> list[Ask]:
    """What a sub-agent's own sub-agent and itself ask, called by an agent with these settings."""
    inner, outer = ScriptedModel(["done"]), ScriptedModel([CALL, "done"])
    middle = ScriptedModel([CALL, "done"])
    least = Agent(inner).as_tool("help", "helps")
    helper = Agent(middle, tools=[least]).as_tool("help", "helps", options=options or ToolOptions(timeout_s=None))
    events = await listen(Agent(outer, tools=[helper], **settings))
    assert end_of(events).end == "done"
    assert middle.asks[0].parent_id == outer.asks[0].session_id
    assert inner.asks[0].parent_id == middle.asks[0].session_id
    assert not outer.asks[0].parent_id
    return [middle.asks[0], inner.asks[0]]


async def test_a_users_turn_is_interactive_and_sub_agents_are_workflow() -> None:
    model = ScriptedModel(["hello"])
    await listen(Agent(model))
    assert steps(model) == [(Priority.INTERACTIVE, "")]
    assert [ask.priority for ask in await sub_agents_asks()] == [Priority.WORKFLOW] * 2


async def test_a_sub_agent_is_no_more_urgent_than_its_caller_unless_it_is_said() -> None:
    asks = await sub_agents_asks(priority="background")
    assert [ask.priority for ask in asks] == [Priority.BACKGROUND] * 2
    options = ToolOptions(timeout_s=None, priority=Priority.INTERACTIVE, task="simple_qa")
    asks = await sub_agents_asks(options, priority=Priority.BACKGROUND)
    assert [(ask.priority, ask.task) for ask in asks] == [
        (Priority.INTERACTIVE, "simple_qa"),
        (Priority.WORKFLOW, ""),
    ], "an agent of its own is no more urgent than workflow"


@pytest.mark.parametrize("task", ["summary", "title", "evaluation", "batch"])
async def test_what_nobody_waits_for_is_background(task: str) -> None:
    model = ScriptedModel(["hello"])
    await listen(Agent(model, task=task))
    await listen(Agent(model, task=task, priority="interactive"))
    assert steps(model) == [(Priority.BACKGROUND, task), (Priority.INTERACTIVE, task)]


@pytest.mark.parametrize("own_model", [False, True])
@pytest.mark.parametrize("task", [None, "summary"])
async def test_a_summary_is_background_and_of_its_agents_task_unless_it_is_said(
    own_model: bool, task: str | None
) -> None:
    """So the tier that has to go on from it writes it."""
    small, model = ScriptedModel(lambda _: "in short"), ScriptedModel(lambda _: "hello")
    compaction = Compaction(window_tokens=100, num_kept=1, model=small if own_model else None, task=task)
    said = [Message("user", "x" * 50), *[Message("assistant", "y" * 50), Message("user", "z" * 50)] * 4]
    await listen(Agent(model, compaction=compaction, task="qa"), conversation=Conversation(said))
    asked = small if own_model else model
    assert steps(asked)[0] == (Priority.BACKGROUND, task or "qa")
    assert steps(model)[-1] == (Priority.INTERACTIVE, "qa")
    assert len(small.asks) == own_model


async def test_a_plan_is_a_task_of_its_own() -> None:
    model = ScriptedModel(["{}", "done"])
    agent = Agent(model, tools=[tool(lambda_free)])
    await agent.plan("go")
    assert [task for _, task in steps(model)] == ["planning", ""]


def lambda_free(x: int) -> int:
    """Adds nothing."""
    return x


async def test_a_tool_finds_the_class_of_its_run() -> None:
    found = []

    @tool
    def look(run: Context[Run]) -> str:
        """Looks."""
        found.append(run.priority)
        return "seen"

    await listen(Agent(ScriptedModel([[ScriptedCall("look")], "done"]), tools=[look], priority="workflow"))
    assert found == [Priority.WORKFLOW]


def test_they_are_said_in_headers() -> None:
    ask = Ask(messages=(), session_id="s", parent_id="p", priority=Priority.BACKGROUND, task="summary")
    assert session_headers(ask) == {
        "x-session-id": "s",
        "x-parent-session-id": "p",
        "x-hotloop-priority": "background",
        "x-hotloop-task": "summary",
    }
    assert session_headers(replace(ask, priority=Priority.INTERACTIVE, parent_id="", task="")) == {"x-session-id": "s"}


def test_a_priority_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="no priority 'urgent'; there are interactive, workflow, background"):
        Agent(ScriptedModel([]), priority="urgent")
