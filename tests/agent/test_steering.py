"""Runs that are spoken to, paused and cancelled while they go on: from here, and from another process."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.runs import check, num_tasks, of

from hotloop.agent.agent import Agent
from hotloop.agent.events import (
    CallFinished,
    Event,
    MessageJoined,
    RunEnded,
    RunStarted,
    SubAgentEvent,
    TurnFinished,
)
from hotloop.agent.journal import RunStopped
from hotloop.agent.limits import Limits, Run
from hotloop.agent.model import Ask
from hotloop.agent.past import cancel, pause, send
from hotloop.agent.run_stream import RunStream
from hotloop.agent.scripted import Part, ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import Context, tool
from hotloop.core.errors import ConfigError, RemoteError
from hotloop.core.message import Message
from hotloop.trace.store import StoreTracer
from hotloop.trace.tracer import NullTracer
from hotloop.wire.event import Event as WireEvent

SCRIPT = [ScriptedCall("write", line="a"), ScriptedCall("write", line="b"), "Both are written.", "And so is that."]


@pytest.fixture
def tracer(tmp_path: Path) -> Iterator[StoreTracer]:
    tracer = StoreTracer(tmp_path / "trace.db")
    yield tracer
    tracer.close()


@pytest.fixture
def other(tracer: StoreTracer) -> Iterator[StoreTracer]:
    """As another process has it."""
    other = StoreTracer(tracer.path)
    yield other
    other.close()


class Desk:
    """Tools that wait until they are let go on."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.done: list[str] = []
        self.has_begun = asyncio.Event()
        self.is_looking = asyncio.Event()
        self.is_open = asyncio.Event()
        if is_open:
            self.is_open.set()

    async def write(self, line: str) -> str:
        self.has_begun.set()
        await self.is_open.wait()
        self.done.append(line)
        return f"wrote {line}"

    async def look(self) -> str:
        self.is_looking.set()
        await asyncio.Event().wait()
        raise AssertionError("it is never seen")


def clerk(desk: Desk, tracer: Any, script: Any = SCRIPT) -> Agent[str]:
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
    return Agent(model, [tool(desk.write), tool(read_only=True, timeout_s=None)(desk.look)], tracer=tracer)


def watch(run: RunStream[Any]) -> tuple["asyncio.Task[None]", list[Event]]:
    events: list[Event] = []

    async def go() -> None:
        async for event in run:
            events.append(event)  # noqa: PERF401 - they are looked at while they come

    return asyncio.create_task(go()), events


def last(events: list[Event]) -> RunEnded:
    check(events)
    assert isinstance(events[-1], RunEnded)
    return events[-1]


def run_id_of(events: list[Event]) -> str:
    return of(RunStarted, events)[0].run_id


async def test_a_message_joins_at_the_next_turn() -> None:
    model, desk = ScriptedModel(SCRIPT), Desk(is_open=False)
    run = clerk(desk, NullTracer(), model).stream("go")
    task, events = watch(run)
    await desk.has_begun.wait()
    run.send("Be quick.")
    run.send("And neat.")
    desk.is_open.set()
    await task
    assert [(event.turn, event.text) for event in of(MessageJoined, events)] == [(2, "Be quick."), (2, "And neat.")]
    assert [m.content for m in model.asks[1].messages if m.role == "user"] == ["go", "Be quick.", "And neat."]
    assert [m.role for m in model.asks[1].messages] == ["user", "assistant", "tool", "user", "user"]
    assert (await run.result()).output == "Both are written."
    with pytest.raises(ConfigError, match="the run has ended"):
        run.send("too late")


async def test_a_message_that_comes_with_the_answer_is_answered_too() -> None:
    async def say_more(answer: str) -> None:
        if answer == "First.":
            run.send("More.")

    run = Agent(ScriptedModel(["First.", "Second."]), validators=[say_more], tracer=NullTracer()).stream("go")
    result = await run.result()
    assert result.output == "Second."
    assert [m.content for m in result.conversation.messages] == ["go", "First.", "More.", "Second."]


async def test_an_answer_of_a_type_is_asked_for_once_more() -> None:
    async def say_more(answer: int) -> None:
        if answer == 1:
            run.send("One more.")

    script = [ScriptedCall("final_answer", value=1), ScriptedCall("final_answer", value=2)]
    run = Agent(ScriptedModel(script), output=int, validators=[say_more], tracer=NullTracer()).stream("go")
    assert (await run.result()).output == 2


async def test_a_message_that_is_sent_before_the_run_begins_joins_its_first_turn() -> None:
    model = ScriptedModel(["ok"])
    run = clerk(Desk(), NullTracer(), model).stream("go")
    run.send("now")
    assert (await run.result()).output == "ok"
    assert [m.content for m in model.asks[0].messages] == ["go", "now"]


@pytest.mark.parametrize("is_paused", [True, False])
async def test_what_is_sent_before_the_run_begins_is_in_its_journal(tracer: StoreTracer, is_paused: bool) -> None:
    desk, model = Desk(), ScriptedModel(SCRIPT)
    agent = clerk(desk, tracer, model)
    run = agent.stream("go")
    run.send("now")
    if is_paused:
        run.pause()
        with pytest.raises(RunStopped) as stopped:
            await run.result()
        assert not model.asks
        run = agent.stream_resume(stopped.value.run_id)
    assert (await run.result()).output == "Both are written."
    assert [m.content for m in model.asks[0].messages] == ["go", "now"]
    assert desk.done == ["a", "b"]


async def test_a_paused_run_ends_behind_its_turn_and_goes_on_later(tracer: StoreTracer) -> None:
    desk = Desk(is_open=False)
    agent = clerk(desk, tracer)
    run = agent.stream("go")
    task, events = watch(run)
    await desk.has_begun.wait()
    run.pause()
    run.send("Go on when you can.")
    desk.is_open.set()
    await task
    assert (last(events).end, desk.done) == ("paused", ["a"])
    assert len(of(TurnFinished, events)) == 1
    error = last(events).error
    assert isinstance(error, RunStopped)
    assert error.run_id == run_id_of(events)
    with pytest.raises(RunStopped):
        await run.result()
    result = await agent.resume(run_id_of(events))
    assert (result.output, desk.done) == ("Both are written.", ["a", "b"])
    assert [m.content for m in result.conversation.messages if m.role == "user"] == ["go", "Go on when you can."]


async def test_a_run_that_answers_while_it_is_to_pause_is_done() -> None:
    async def hold(answer: str) -> None:
        run.pause()

    run = Agent(ScriptedModel(["ok"]), validators=[hold], tracer=NullTracer()).stream("go")
    assert (await run.result()).output == "ok"


async def test_cancelling_lets_effects_finish_and_stops_all_else(tracer: StoreTracer) -> None:
    desk, num_before = Desk(is_open=False), num_tasks()
    calls = [ScriptedCall("look"), ScriptedCall("write", line="a")]
    agent = clerk(desk, tracer, [calls, ScriptedCall("write", line="b"), "ok"])
    run = agent.stream("go")
    task, events = watch(run)
    await desk.has_begun.wait()
    await desk.is_looking.wait()
    run.cancel()
    run.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    desk.is_open.set()
    await task
    assert (last(events).end, desk.done) == ("cancelled", ["a"])
    assert [event.name for event in of(CallFinished, events)] == ["write"]
    assert num_tasks() == num_before
    row, _ = await asyncio.wrap_future(tracer.journal.read(run_id_of(events)))
    assert row.state == "cancelled"


async def newest(tracer: StoreTracer) -> str:
    [row] = await asyncio.wrap_future(tracer.journal.list(1))
    return row.run_id


async def test_a_cancelled_run_can_be_gone_on_with_and_repeats_nothing(tracer: StoreTracer) -> None:
    desk = Desk()
    model = ScriptedModel([[ScriptedCall("write", line="a"), "…\n" * 30], ScriptedCall("write", line="b"), "ok"])
    agent = clerk(desk, tracer, model)
    run = agent.stream("go")
    async for event in run:
        if isinstance(event, CallFinished):
            run.cancel()
    with pytest.raises(RunStopped, match="was cancelled"):
        await run.result()
    assert desk.done == ["a"]
    result = await agent.resume(await newest(tracer))
    assert (result.output, desk.done) == ("ok", ["a", "b"])


@pytest.mark.parametrize("end", ["paused", "cancelled"])
async def test_a_sub_agent_stops_with_its_caller_and_goes_on_with_it(tracer: StoreTracer, end: str) -> None:
    desk = Desk(is_open=False)
    inner = clerk(desk, tracer)
    script = [ScriptedCall("clerk", prompt="write"), "The clerk has done it."]
    outer = Agent(ScriptedModel(script), [inner.as_tool("clerk", "Writes.")], tracer=tracer)
    run = outer.stream("go")
    task, events = watch(run)
    await desk.has_begun.wait()
    run.pause() if end == "paused" else run.cancel()
    desk.is_open.set()
    await task
    assert (last(events).end, desk.done) == (end, ["a"])
    inner_ends = [e.inner.end for e in of(SubAgentEvent, events) if isinstance(e.inner, RunEnded)]
    assert inner_ends == [end]
    result = await outer.resume(run_id_of(events))
    assert (result.output, desk.done) == ("The clerk has done it.", ["a", "b"])


def until_told(ask: Ask) -> Part:
    """Writes on and on, until the user says that it is enough."""
    is_enough = any(message.content == "enough" for message in ask.messages)
    return "ok" if is_enough else ScriptedCall("write", line=str(len(ask.messages)))


async def test_another_process_sends_a_message(tracer: StoreTracer, other: StoreTracer) -> None:
    agent = clerk(Desk(), tracer, ScriptedModel(until_told, pace_s=0.005))
    agent.settings = replace(agent.settings, limits=Limits(turns=None, calls=None))
    async with asyncio.timeout(60):
        async for event in agent.stream("go"):
            if isinstance(event, CallFinished) and event.turn == 1:
                await send(other.journal, await newest(tracer), Message("user", "enough"))
    assert isinstance(event, RunEnded)
    assert event.output == "ok"


async def test_another_process_pauses_and_this_one_goes_on(tracer: StoreTracer, other: StoreTracer) -> None:
    desk = Desk()
    agent = clerk(desk, tracer, ScriptedModel(until_told, pace_s=0.005))
    agent.settings = replace(agent.settings, limits=Limits(turns=None, calls=None))
    task, events = watch(agent.stream("go"))
    async with asyncio.timeout(60):
        await desk.has_begun.wait()
        row = await pause(other.journal, run_id_of(events))
        await task
    assert (row.state, last(events).end) == ("paused", "paused")
    num_done = len(desk.done)
    await send(other.journal, row.run_id, Message("user", "enough"))
    assert (await agent.resume(row.run_id)).output == "ok"
    assert len(desk.done) == num_done


async def test_another_process_cancels_and_what_was_said_is_forgotten(tracer: StoreTracer, other: StoreTracer) -> None:
    desk = Desk(is_open=False)
    task, events = watch(
        clerk(desk, tracer, [[ScriptedCall("look"), ScriptedCall("write", line="a")], "ok"]).stream("go")
    )
    await desk.has_begun.wait()
    asked = asyncio.create_task(cancel(other.journal, run_id_of(events)))
    async with asyncio.timeout(60):
        desk.is_open.set()
        await task
        await asked
    assert (last(events).end, desk.done) == ("cancelled", ["a"])
    row, entries = await asyncio.wrap_future(other.journal.read(run_id_of(events)))
    assert (row.state, entries) == ("cancelled", [])
    with pytest.raises(ConfigError, match="nothing to cancel"):
        await cancel(other.journal, row.run_id)


async def test_who_is_not_running_cannot_be_paused_and_who_is_done_hears_nothing(
    tracer: StoreTracer, other: StoreTracer
) -> None:
    events = [event async for event in clerk(Desk(), tracer).stream("go")]
    run_id = run_id_of(events)
    await asyncio.wrap_future(tracer.journal.read(run_id))  # what was written before is on the disk then
    with pytest.raises(ConfigError, match="is done"):
        await pause(other.journal, run_id)
    with pytest.raises(ConfigError, match="is done"):
        await send(other.journal, run_id, Message("user", "x"))


async def test_what_another_process_says_before_the_last_answer_joins(tracer: StoreTracer, other: StoreTracer) -> None:
    """Though a run looks for it twice a second only."""

    async def look(run: Context[Run]) -> str:
        await send(other.journal, run.id, Message("user", "told"))
        return "seen"

    agent = Agent(ScriptedModel([ScriptedCall("look"), "one", "two"]), [tool(look)], tracer=tracer)
    events = [event async for event in agent.stream("go")]
    assert [event.text for event in of(MessageJoined, events)] == ["told"]
    assert last(events).output == "two"


async def test_what_was_said_from_two_sides_is_kept_until_it_has_joined(
    tracer: StoreTracer, other: StoreTracer
) -> None:
    """What has joined is taken off the journal, not what was written there first."""

    async def write() -> str:
        await send(other.journal, run_id_of(events), Message("user", "told"))
        run.send("sent")
        return "written"

    class Failing(ScriptedModel):
        async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
            if is_down and any(message.role == "tool" for message in ask.messages):
                raise RemoteError("nobody is there")
            async for event in super().stream(ask):
                yield event

    is_down = [True]
    agent = Agent(Failing([ScriptedCall("write"), "ok"]), [tool(write)], tracer=tracer)
    run, events = agent.stream("go"), list[Event]()
    async for event in run:
        events.append(event)
    assert last(events).end == "failed"
    is_down.clear()
    said = (await agent.resume(run_id_of(events))).conversation.messages
    assert sorted(message.content for message in said if message.role == "user") == ["go", "sent", "told"]


async def test_a_run_that_has_failed_takes_no_message_though_nobody_has_read_its_end(tracer: StoreTracer) -> None:
    run = Agent(ScriptedModel([]), tracer=tracer).stream("go")
    run_id = run_id_of([await anext(run)])
    row, _ = await asyncio.wrap_future(tracer.journal.read(run_id))
    while row.state == "running":
        row, _ = await asyncio.wrap_future(tracer.journal.read(run_id))
    with pytest.raises(ConfigError, match="the run has ended"):
        run.send("too late")
    await run.aclose()
