"""Branches of a conversation, and agents as tools of agents."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest
from tests.agent.runs import end_of, listen, num_tasks, of

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallFinished, RunEnded, RunStarted, SubAgentEvent, Text, TurnFinished
from hotloop.agent.limits import LimitReached, Limits, Run
from hotloop.agent.model import Ask
from hotloop.agent.run import RunLoop
from hotloop.agent.run_stream import Result
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.dispatch import Caller
from hotloop.agent.tools.sub_agent import SubAgent
from hotloop.agent.tools.tool import Context, RunContext, ToolOptions, tool
from hotloop.core.errors import ConfigError, RequestError
from hotloop.wire.event import Event as WireEvent


def echo(ask: Ask) -> str:
    return f"re: {ask.messages[-1].content}"


async def test_a_fork_leaves_what_it_is_forked_from_alone() -> None:
    conversation, model = Conversation(), ScriptedModel(echo)
    results = await Agent(model, instructions="Be brief.").fork(["one", "two"], conversation=conversation)
    assert [result.output for result in results if isinstance(result, Result)] == ["re: one", "re: two"]
    assert not conversation.messages
    assert all(ask.messages[0].content == "Be brief." for ask in model.asks)


async def test_branches_have_sessions_of_their_own_under_one() -> None:
    conversation, model = Conversation(), ScriptedModel(echo)
    await Agent(model).fork(["one", "two"], conversation=conversation)
    sessions = {ask.session_id for ask in model.asks}
    assert len(sessions) == 2
    assert {session.partition("/")[0] for session in sessions} == {conversation.session_id}


async def test_the_best_of_several() -> None:
    lengths = iter([2, 5, 3])

    def script(ask: Ask) -> str:
        length = next(lengths)
        if length == 3:
            raise RequestError("no")
        return "x" * length

    agent = Agent(ScriptedModel(script))
    best = await agent.best_of("go", 3, lambda result: len(result.output))
    assert best.output == "xxxxx"


async def test_the_best_of_none() -> None:
    def script(ask: Ask) -> str:
        raise RequestError("no luck")

    with pytest.raises(RequestError, match="no luck"):
        await Agent(ScriptedModel(script)).best_of("go", 2, lambda _: 1.0)
    with pytest.raises(ConfigError, match="above zero"):
        await Agent(ScriptedModel(script)).best_of("go", 0, lambda _: 1.0)


async def test_agents_as_tools_run_at_once() -> None:
    meeting = asyncio.Barrier(3)

    @tool
    async def meet() -> str:
        """Ends once all three are here."""
        await meeting.wait()
        return "met"

    inner = ScriptedModel([[ScriptedCall("meet")], "We met."])
    researcher = Agent(inner, [meet], "You do research.").as_tool("research", "Finds things out.")
    outer = ScriptedModel([[ScriptedCall("research", prompt=str(i)) for i in range(3)], "All met."])
    events = await listen(Agent(outer, [researcher]))
    assert [event.result for event in of(CallFinished, events)] == ["We met."] * 3
    assert len({ask.session_id for ask in inner.asks}) == 3
    assert len({ask.session_id.partition("/")[0] for ask in inner.asks}) == 1


async def test_what_an_agent_uses_is_charged_to_its_caller() -> None:
    @tool(cost=1.5)
    def dear() -> str:
        return "ok"

    inner = Agent(ScriptedModel([[ScriptedCall("dear")], "done"]), [dear]).as_tool("inner", "Spends.")
    middle = Agent(ScriptedModel([[ScriptedCall("inner", prompt="x")], "done"]), [inner]).as_tool("middle", "Asks.")
    result = await Agent(
        ScriptedModel([[ScriptedCall("middle", prompt="x"), ScriptedCall("middle", prompt="y")], "done"]), [middle]
    ).run("go")
    assert result.spent.money == 3.0
    assert result.spent.num_turns == 2


async def test_the_callers_limits_hold_for_both() -> None:
    @tool(cost=1.0)
    def dear() -> str:
        return "ok"

    inner = ScriptedModel(lambda ask: [ScriptedCall("dear")])
    outer = ScriptedModel([[ScriptedCall("inner", prompt="x")], "never"])
    agent = Agent(outer, [Agent(inner, [dear]).as_tool("inner", "Spends.")], limits=Limits(money=3.0, turns=5))
    with pytest.raises(LimitReached, match="money"):
        await agent.run("go")
    assert len(inner.asks) == 3


async def test_an_agent_may_call_another_in_its_last_turn() -> None:
    inner = Agent(ScriptedModel(["found"])).as_tool("inner", "Finds.")
    outer = ScriptedModel([[ScriptedCall("inner", prompt="x")]])
    events = await listen(Agent(outer, [inner], limits=Limits(turns=1)))
    assert [event.result for event in of(CallFinished, events)] == ["found"]


async def test_a_tool_finds_the_run_it_is_called_in_and_what_the_caller_had() -> None:
    runs = []

    @tool
    def look(run: Context[Run], thing: Context[dict]) -> str:  # type: ignore[type-arg]
        runs.append((run, thing))
        return "ok"

    inner = Agent(ScriptedModel([[ScriptedCall("look")], "done"]), [look]).as_tool("inner", "Looks.")
    await Agent(ScriptedModel([[ScriptedCall("inner", prompt="x"), ScriptedCall("look")], "done"]), [inner, look]).run(
        "go", context=[{"a": 1}]
    )
    (outer_run, _), (inner_run, thing) = sorted(runs, key=lambda each: each[0].caller is not None)
    assert inner_run.caller == outer_run
    assert outer_run.caller is None
    assert thing == {"a": 1}


@pytest.mark.parametrize("arguments", [{}, {"prompt": 3}, {"prompt": "x", "more": 1}])
async def test_wrong_arguments(arguments: dict[str, Any]) -> None:
    inner = Agent(ScriptedModel(["never"])).as_tool("inner", "Finds.")
    events = await listen(Agent(ScriptedModel([[ScriptedCall("inner", **arguments)], "done"]), [inner]))
    [finished] = of(CallFinished, events)
    assert finished.is_error
    assert "the arguments are wrong" in finished.result


async def test_an_agent_that_fails_fails_in_words() -> None:
    inner = Agent(ScriptedModel([])).as_tool("inner", "Fails.", options=ToolOptions(read_only=True))
    events = await listen(Agent(ScriptedModel([[ScriptedCall("inner", prompt="x")], "done"]), [inner]))
    assert of(CallFinished, events)[0].result.startswith("Error: the script has 0 answers")


async def test_a_typed_answer_is_json_to_the_caller() -> None:
    inner = Agent(ScriptedModel([[ScriptedCall("final_answer", value=[1, 2])]]), output=list[int]).as_tool(
        "inner", "Counts."
    )
    events = await listen(Agent(ScriptedModel([[ScriptedCall("inner", prompt="x")], "done"]), [inner]))
    assert json.loads(of(CallFinished, events)[0].result) == [1, 2]


async def test_cancelling_a_run_stops_the_agents_it_called() -> None:
    begun, stopped, before = asyncio.Event(), asyncio.Event(), num_tasks()

    @tool
    async def hang() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    inner = Agent(ScriptedModel([[ScriptedCall("hang")], "never"]), [hang]).as_tool("inner", "Hangs.")
    running = asyncio.create_task(
        Agent(ScriptedModel([[ScriptedCall("inner", prompt="x")], "never"]), [inner]).run("go")
    )
    await begun.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert stopped.is_set()
    assert num_tasks() == before


def saying_found() -> SubAgent:
    return Agent(ScriptedModel(["found"])).as_tool("inner", "Finds.")


async def test_what_happens_in_a_sub_agent_is_told_as_it_happens() -> None:
    """Two calls of one agent: whose event is whose can be told by the call, and the run."""
    calls = [ScriptedCall("inner", prompt="x"), ScriptedCall("inner", prompt="y")]
    events = await listen(Agent(ScriptedModel([calls, "done"]), [saying_found()]))
    told = of(SubAgentEvent, events)
    assert {event.agent for event in told} == {"inner"}
    ids = [event.call_id for event in of(CallFinished, events)]
    for call_id in ids:
        inner = [event.inner for event in told if event.call_id == call_id]
        assert isinstance(inner[0], RunStarted)
        assert {event.run_id for event in told if event.call_id == call_id} == {inner[0].run_id}
        assert [event.text for event in of(Text, inner)] == ["found"]
        assert end_of(inner).output == "found"
        last = max(i for i, event in enumerate(events) if isinstance(event, SubAgentEvent) and event.call_id == call_id)
        [finished] = [i for i, e in enumerate(events) if isinstance(e, CallFinished) and e.call_id == call_id]
        assert last < finished
    assert len(of(TurnFinished, events)) == 2, "the turns of the run itself"


async def test_the_events_of_an_agent_in_an_agent_are_nested() -> None:
    middle = Agent(ScriptedModel([[ScriptedCall("inner", prompt="x")], "done"]), [saying_found()])
    outer = ScriptedModel([[ScriptedCall("middle", prompt="x")], "done"])
    events = await listen(Agent(outer, [middle.as_tool("middle", "Asks.")]))
    told = of(SubAgentEvent, events)
    assert {event.agent for event in told} == {"middle"}
    deeper = of(SubAgentEvent, [event.inner for event in told])
    assert {event.agent for event in deeper} == {"inner"}
    assert [event.text for event in of(Text, [event.inner for event in deeper])] == ["found"]
    assert len(of(RunEnded, [event.inner for event in deeper])) == 1


async def test_a_sub_agent_that_runs_ahead_tells_nobody() -> None:
    """It may never be asked for, so that it is given nobody to tell."""
    given: list[RunContext] = []

    class Speculation:
        def open(self, _: Any, run_context: RunContext, *__: Any) -> "Speculation":
            given.append(run_context)
            return self

        def begin_turn(self, *_: Any) -> None: ...

        hear = listen = claim = end_turn = begin_turn

        async def close(self) -> None: ...

    speculation: Any = Speculation()
    inner = Agent(ScriptedModel(["found"]), speculation=speculation).as_tool("inner", "Finds.")
    outer = ScriptedModel([[ScriptedCall("inner", prompt="x")], "done"])
    await listen(Agent(outer, [inner], speculation=speculation))
    assert len(given) == 2
    assert not any(isinstance(thing, Caller) for run_context in given for thing in run_context.things)


async def test_a_run_does_not_keep_what_it_has_called() -> None:
    """Of an agent with thousands of turns each would keep a conversation."""

    class Forgetting(ScriptedModel):
        async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
            async for event in super().stream(ask):
                yield event
            self.asks.clear()

    helper, calls = Agent(Forgetting(["ok"])), [ScriptedCall("help", prompt="x")]
    agent = Agent(Forgetting([calls, calls, "ok"]), [helper.as_tool("help", "helps")])
    begun: list[str] = []
    async for event in agent.stream("go"):
        if isinstance(event, SubAgentEvent) and isinstance(event.inner, RunStarted):
            begun.append(event.run_id)
        if isinstance(event, TurnFinished) and event.turn == 2:
            gc.collect()
            runs = [each for each in gc.get_objects() if isinstance(each, RunLoop)]
            assert begun[0] not in [each._row.run_id for each in runs]
    assert len(begun) == 2
