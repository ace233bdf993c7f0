"""Agents that hand the conversation to others, which answer in their place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.runs import end_of, listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.events import HandedOver, RunStarted
from hotloop.agent.model import Ask
from hotloop.agent.record import record, replay
from hotloop.agent.scripted import Part, ScriptedCall, ScriptedModel
from hotloop.agent.tools.consent import Approval
from hotloop.agent.tools.tool import Context, tool
from hotloop.core.errors import ConfigError
from hotloop.trace.store import StoreTracer
from hotloop.trace.tracer import NullTracer


@pytest.fixture
def tracer(tmp_path: Path) -> Iterator[StoreTracer]:
    tracer = StoreTracer(tmp_path / "trace.db")
    yield tracer
    tracer.close()


class Ledger:
    pass


@tool(read_only=True)
def balance(ledger: Context[Ledger]) -> str:
    return "12 owed"


@tool(needs_approval=True)
def refund(amount: int) -> str:
    return f"refunded {amount}"


def say(*answers: Part | list[Part]) -> ScriptedModel:
    """One answer for each turn it is asked for, whatever was said before."""
    left = list(answers)
    return ScriptedModel(lambda ask: left.pop(0))


def pair(front: ScriptedModel, desk: ScriptedModel, **about: Any) -> Agent[str]:
    billing = Agent(desk, [balance], "You are billing.")
    return Agent(front, [billing.as_handoff("billing", "Invoices.")], "You are the front desk.", **about)


def seen(ask: Ask) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in ask.messages]


async def test_the_other_agent_answers_with_its_own_tools_and_instructions() -> None:
    front, desk = say(["Let me see. ", ScriptedCall("billing")]), say(ScriptedCall("balance"), "You owe 12.")
    events = await listen(pair(front, desk, tracer=NullTracer()), "What do I owe?", context=[Ledger()])
    assert end_of(events).output == "You owe 12."
    assert [(event.turn, event.agent) for event in of(HandedOver, events)] == [(1, "billing")]
    assert len(of(RunStarted, events)) == 1
    assert [each.name for each in front.asks[0].tools] == ["billing"]
    assert [each.name for each in desk.asks[0].tools] == ["balance"]
    assert seen(desk.asks[0]) == [
        ("system", "You are billing."),
        ("user", "What do I owe?"),
        ("assistant", "Let me see. "),
        ("tool", "billing has the conversation now"),
    ]
    assert end_of(events).spent.num_turns == 3


async def test_agents_may_hand_it_back_and_forth_and_answer_in_their_own_type() -> None:
    back = say(ScriptedCall("billing"), ScriptedCall("final_answer", value=3))
    front = Agent(back, instructions="Front.", output=int, tracer=NullTracer())
    billing = Agent(say(ScriptedCall("front")), [front.as_handoff("front", "All else.")], "Billing.")
    front.tools.append(billing.as_handoff("billing", "Invoices."))
    events = await listen(front)
    assert [event.agent for event in of(HandedOver, events)] == ["billing", "front"]
    assert end_of(events).output == 3


async def test_of_two_handoffs_in_a_turn_the_first_counts_and_all_calls_have_results() -> None:
    one, other = Agent(say("one"), name="one"), Agent(say("other"), name="other")
    calls = [ScriptedCall("one"), ScriptedCall("other")]
    agent = Agent(say(calls), [one.as_handoff("one", ""), other.as_handoff("other", "")], tracer=NullTracer())
    events = await listen(agent)
    assert end_of(events).output == "one"
    assert [event.agent for event in of(HandedOver, events)] == ["one"]


async def test_what_the_other_agent_lacks_is_told_before_the_model_is_asked() -> None:
    front = say("never")
    with pytest.raises(ConfigError, match="wants a Ledger"):
        await pair(front, say()).run("go")
    clerk = Agent(say(), [refund])
    with pytest.raises(ConfigError, match="'refund' needs approval"):
        await Agent(front, [clerk.as_handoff("clerk", "")]).run("go")
    assert not front.asks


async def test_a_run_that_was_handed_over_goes_on_with_who_has_it(tracer: StoreTracer) -> None:
    """The approver is the first agent's, as the second has none; the run waits, and another process goes on."""

    def make(front: ScriptedModel, desk: ScriptedModel) -> Agent[str]:
        clerk = Agent(desk, [refund], "You are the clerk.")
        tools = [clerk.as_handoff("clerk", "Refunds.")]
        return Agent(front, tools, "Front.", approve=lambda call: Approval.later(), tracer=tracer)

    events = await listen(make(say(ScriptedCall("clerk")), say(ScriptedCall("refund", amount=5))))
    assert end_of(events).end == "waiting"
    [call] = end_of(events).error.calls  # type: ignore[union-attr]
    run_id = of(RunStarted, events)[0].run_id
    desk = say("Refunded.")
    result = await make(say(), desk).resume(run_id, approvals={call.id: True})
    assert result.output == "Refunded."
    assert seen(desk.asks[0])[0] == ("system", "You are the clerk.")
    assert seen(desk.asks[0])[-1] == ("tool", "refunded 5")


async def test_a_run_whose_agent_has_no_such_handoff_says_so(tracer: StoreTracer) -> None:
    clerk = Agent(say(ScriptedCall("refund", amount=5)), [refund])
    agent = Agent(
        say(ScriptedCall("clerk")), [clerk.as_handoff("clerk", "")], approve=lambda _: Approval.later(), tracer=tracer
    )
    events = await listen(agent)
    agent.tools.clear()
    with pytest.raises(ConfigError, match="handed to 'clerk', which is none of the agent's handoffs"):
        await agent.resume(of(RunStarted, events)[0].run_id)


async def test_a_handed_over_run_is_recorded_and_replayed(tmp_path: Path) -> None:
    agent = pair(say(ScriptedCall("billing")), say(ScriptedCall("balance"), "You owe 12."), tracer=NullTracer())
    tape = tmp_path / "run.jsonl"
    first = await record(agent, tape).run("What do I owe?", context=[Ledger()])
    again = await replay(pair(say(), say(), tracer=NullTracer()), tape).run("What do I owe?", context=[Ledger()])
    assert first.output == again.output == "You owe 12."
