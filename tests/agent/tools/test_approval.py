"""Approval: asked once the arguments are known to be right, by a function of either kind, for sub-agents too."""

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.agent.runs import listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.events import CallDispatched, CallFinished
from hotloop.agent.record import record, replay
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.message import ToolCall

PAID: list[int] = []


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return "paid"


@pytest.fixture(autouse=True)
def start_anew() -> None:
    PAID.clear()


class Asked:
    """Somebody who says the same each time, and remembers what was asked."""

    def __init__(self, verdict: bool | str = True) -> None:
        self.calls: list[ToolCall] = []
        self.threads: list[threading.Thread] = []
        self._verdict = verdict

    def at_once(self, call: ToolCall) -> bool | str:
        self.calls.append(call)
        self.threads.append(threading.current_thread())
        return self._verdict

    async def in_time(self, call: ToolCall) -> bool | str:
        return self.at_once(call)


def paying(*amounts: Any) -> ScriptedModel:
    return ScriptedModel([[ScriptedCall("pay", amount=amount) for amount in amounts], "done"])


async def test_nobody_is_asked_about_arguments_that_are_wrong() -> None:
    asked = Asked()
    events = await listen(Agent(paying("all of it", 5), [pay], approve=asked.in_time))
    assert [call.arguments for call in asked.calls] == ['{"amount": 5}']
    wrong, right = (event.result for event in of(CallFinished, events))
    assert wrong.startswith("Error: the arguments are wrong: amount: ")
    assert right == "paid"
    assert [event.arguments for event in of(CallDispatched, events)] == ['{"amount": 5}']


async def test_nor_about_a_sub_agent_that_is_asked_nothing() -> None:
    asked = Asked()
    inner = Agent(ScriptedModel(["never"])).as_tool("pay", "Pays.", options=pay.options)
    events = await listen(Agent(paying(5), [inner], approve=asked.in_time))
    assert not asked.calls
    assert "the arguments are wrong" in of(CallFinished, events)[0].result


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        (True, "paid"),
        (False, "Error: the call was not approved"),
        ("ask Ann", "Error: the call was not approved: ask Ann"),
    ],
)
async def test_a_function_that_does_not_await(verdict: bool | str, result: str) -> None:
    """It may wait for a person, so that it runs in a thread, as such tools do."""
    asked = Asked(verdict)
    events = await listen(Agent(paying(5), [pay], approve=asked.at_once))
    assert [event.result for event in of(CallFinished, events)] == [result]
    assert threading.main_thread() not in asked.threads


async def test_verdicts_of_either_kind_are_recorded(tmp_path: Path) -> None:
    asked = Asked("ask Ann")
    agent = Agent(paying("all of it", 5), [pay], approve=asked.at_once)
    first = await record(agent, tmp_path / "tape").run("go")
    again = await replay(agent, tmp_path / "tape").run("go")
    assert again.conversation.messages == first.conversation.messages
    assert len(asked.calls) == 1


async def test_a_sub_agent_asks_who_its_caller_asks() -> None:
    asked = Asked()
    inner = Agent(paying(5), [pay]).as_tool("inner", "Pays.")
    middle = Agent(ScriptedModel([[ScriptedCall("inner", prompt="x")], "done"]), [inner]).as_tool("middle", "Asks.")
    outer = ScriptedModel([[ScriptedCall("middle", prompt="x")], "done"])
    await Agent(outer, [middle], approve=asked.in_time).run("go")
    assert [call.name for call in asked.calls] == ["pay"]
    assert PAID == [5]


async def test_a_sub_agent_that_has_somebody_to_ask_asks_them() -> None:
    mine, theirs = Asked(), Asked(False)
    inner = Agent(paying(5), [pay], approve=theirs.in_time).as_tool("inner", "Pays.")
    outer = ScriptedModel([[ScriptedCall("inner", prompt="x")], "done"])
    await Agent(outer, [inner], approve=mine.in_time).run("go")
    assert (len(mine.calls), len(theirs.calls), PAID) == (0, 1, [])
