"""Runs that go on from their journal: after a failure, an approval that came late, or in another process."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.agent.plan.planners import plan
from tests.agent.runs import end_of, listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.compaction import Compaction
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, CallFinished, Compacted, Event, RunStarted, TurnStarted
from hotloop.agent.journal import ApprovalPending, Uncertain
from hotloop.agent.limits import Limits
from hotloop.agent.model import Ask
from hotloop.agent.past import cancel, read_past
from hotloop.agent.scripted import Part, ScriptedCall, ScriptedModel
from hotloop.agent.tools.consent import Approval
from hotloop.agent.tools.tool import ToolError, tool
from hotloop.core.errors import ConfigError, HotloopError, RemoteError
from hotloop.core.message import Message, ToolCall
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta
from hotloop.trace.journal import Entry, Journal, RunTaken
from hotloop.trace.store import StoreTracer
from hotloop.wire.event import Ended as WireEnded
from hotloop.wire.event import Event as WireEvent


@pytest.fixture
def tracer(tmp_path: Path) -> Iterator[StoreTracer]:
    tracer = StoreTracer(tmp_path / "trace.db")
    yield tracer
    tracer.close()


class Effects:
    def __init__(self) -> None:
        self.done: list[str] = []

    def write(self, line: str) -> str:
        self.done.append(line)
        return f"wrote {line}"


class Failing(ScriptedModel):
    """Cannot be reached while `is_down`."""

    is_down = False

    async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
        if self.is_down and any(message.role == "tool" for message in ask.messages):
            raise RemoteError("nobody is there")
        async for event in super().stream(ask):
            yield event


class Renaming(ScriptedModel):
    """Gives each call the same id."""

    async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
        async for event in super().stream(ask):
            yield CallOpened(event.index, "call_0", event.name) if isinstance(event, CallOpened) else event


class Holding:
    """A journal in which results of tools are not committed before `release`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._held: list[Callable[[], None]] = []
        self.has_come = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def write(self, run_id: str, entry: Entry, *, is_synced: bool = False) -> "Future[None]":
        written = self._journal.write(run_id, entry, is_synced=is_synced)
        if entry.kind != "returned":
            return written
        future: Future[None] = Future()
        self._held.append(lambda: future.set_result(written.result()))
        self.has_come.set()
        return future

    def release(self) -> None:
        for commit in self._held:
            commit()


def run_id_of(events: object) -> str:
    return of(RunStarted, events)[0].run_id  # type: ignore[arg-type]


def watch(agent: Agent) -> tuple["asyncio.Task[None]", list[str]]:
    """A run in a task of its own, and where its id will be."""
    begun: list[str] = []

    async def go() -> None:
        async for event in agent.stream("go"):
            begun.extend(each.run_id for each in (event,) if isinstance(each, RunStarted))

    return asyncio.create_task(go()), begun


async def answers_of(tracer: StoreTracer, run_id: str) -> list[Entry]:
    _, entries = await asyncio.wrap_future(tracer.journal.read(run_id, "answered"))
    return entries


async def state_of(tracer: StoreTracer, run_id: str) -> str:
    row, _ = await asyncio.wrap_future(tracer.journal.read(run_id))
    return row.state


async def test_a_run_that_failed_goes_on_where_it_was(tracer: StoreTracer) -> None:
    effects = Effects()
    model = Failing([["Now. ", ScriptedCall("write", line="a")], "It is written."])
    agent = Agent(model, [tool(effects.write)], "Be brief.", tracer=tracer)
    model.is_down = True
    events = await listen(agent)
    assert end_of(events).end == "failed"
    model.is_down = False
    result = await agent.resume(run_id_of(events))
    assert result.output == "It is written."
    assert effects.done == ["a"]
    assert [(m.role, m.content) for m in result.conversation.messages] == [
        ("system", "Be brief."),
        ("user", "go"),
        ("assistant", "Now. "),
        ("tool", "wrote a"),
        ("assistant", "It is written."),
    ]
    assert result.spent.num_turns == 2
    assert await state_of(tracer, run_id_of(events)) == "done"


@pytest.mark.parametrize("read_only", [True, False])
async def test_the_model_hears_of_no_change_before_the_journal(tracer: StoreTracer, read_only: bool) -> None:
    num_asked: list[int] = []

    def answer(ask: Ask) -> Part:
        num_asked.append(len(ask.messages))
        return "Done." if len(num_asked) > 1 else ScriptedCall("write", line="a")

    tracer.journal = journal = Holding(tracer.journal)  # type: ignore[assignment]
    writer = tool(read_only=read_only)(Effects().write)
    run = asyncio.create_task(Agent(ScriptedModel(answer), [writer], tracer=tracer).run("go"))
    await journal.has_come.wait()
    if read_only:
        assert (await run).output == "Done."
        return
    await asyncio.wait([run], timeout=0.2)  # it would be done long since
    assert len(num_asked) == 1
    journal.release()
    assert (await run).output == "Done."


async def test_a_run_that_is_done_leaves_nothing_that_was_said(tracer: StoreTracer) -> None:
    agent = Agent(ScriptedModel(["my secret"]), tracer=tracer)
    events = await listen(agent, "tell")
    row, entries = await asyncio.wrap_future(tracer.journal.read(run_id_of(events)))
    assert (row.state, entries) == ("done", [])
    with pytest.raises(ConfigError, match="is done"):
        await agent.resume(row.run_id)


async def test_an_approval_that_comes_later(tracer: StoreTracer) -> None:
    effects = Effects()
    script = [[ScriptedCall("look"), ScriptedCall("write", line="a"), ScriptedCall("write", line="b")], "ok"]
    looked: list[int] = []

    @tool(read_only=True)
    def look() -> str:
        looked.append(1)
        return "seen"

    writer = tool(needs_approval=True)(effects.write)
    agent = Agent(ScriptedModel(script), [look, writer], approve=lambda call: Approval.later(), tracer=tracer)
    with pytest.raises(ApprovalPending) as pending:
        await agent.run("go")
    run_id, [first, second] = pending.value.run_id, pending.value.calls
    assert await state_of(tracer, run_id) == "waiting"
    with pytest.raises(ConfigError, match="does not wait for 'call_9'"):
        await agent.resume(run_id, approvals={"call_9": True})
    with pytest.raises(ApprovalPending) as still:
        await agent.resume(run_id, approvals={first.id: True})
    assert [call.id for call in still.value.calls] == [second.id]
    result = await agent.resume(run_id, approvals={second.id: "not b"})
    assert result.output == "ok"
    assert (effects.done, looked) == (["a"], [1])
    told = [m.content for m in result.conversation.messages if m.role == "tool"]
    assert told == ["seen", "wrote a", "Error: the call was not approved: not b"]


async def test_what_was_used_before_a_run_was_broken_off_counts(tracer: StoreTracer) -> None:
    effects = Effects()

    @tool(read_only=True, cache_s=60)
    def look(at: int) -> int:
        return at

    tools = [look, tool(needs_approval=True)(effects.write)]
    last = [ScriptedCall("look", at=2), ScriptedCall("write", line="a")]
    script = [*[[ScriptedCall("look", at=1)]] * 2, last, "ok"]
    agent = Agent(ScriptedModel(script), tools, approve=lambda call: Approval.later(), tracer=tracer)
    with pytest.raises(ApprovalPending) as pending:
        await agent.run("go")
    result = await agent.resume(pending.value.run_id, approvals={pending.value.calls[0].id: True})
    assert (result.spent.num_turns, result.spent.num_calls, result.spent.num_reused) == (4, 4, 1)
    assert result.spent.saved_s > 0


async def test_an_answer_that_was_given_is_not_counted_twice(tracer: StoreTracer) -> None:
    def object_once(answer: int) -> None:
        if is_first.pop():
            raise OSError("the disk is full")

    is_first = [False, True]
    limits = Limits(calls=1)
    script = [[ScriptedCall("final_answer", value=5)]]
    agent = Agent(ScriptedModel(script), output=int, limits=limits, output_guards=[object_once], tracer=tracer)
    events = [event async for event in agent.stream("go")]
    assert end_of(events).end == "failed"
    result = await agent.resume(run_id_of(events))
    assert (result.output, result.spent.num_calls) == (5, 1)


async def test_what_was_approved_is_not_done_twice_unless_that_is_approved(tracer: StoreTracer) -> None:
    """Whoever begins the program again that has approved a call says the same once more, and not that it may be
    repeated."""
    effects, has_begun = Effects(), asyncio.Event()

    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        effects.write(f"{amount}")
        has_begun.set()
        await asyncio.Event().wait()
        return "paid"

    agent = Agent(
        ScriptedModel([ScriptedCall("pay", amount=5), "ok"]),
        [pay],
        approve=lambda call: Approval.later(),
        tracer=tracer,
    )
    with pytest.raises(ApprovalPending) as pending:
        await agent.run("go")
    run_id, [call] = pending.value.run_id, pending.value.calls
    running = asyncio.create_task(agent.resume(run_id, approvals={call.id: True}))
    await has_begun.wait()
    running.cancel()
    await asyncio.wait({running})
    with pytest.raises(ConfigError, match="if that was decided"):
        await agent.resume(run_id, approvals={call.id: True})
    with pytest.raises(ApprovalPending, match="may have run before") as pending:
        await agent.resume(run_id)
    assert [type(each) for each in pending.value.calls] == [Uncertain]
    assert effects.done == ["5"]
    result = await agent.resume(run_id, approvals={call.id: "it was paid"})
    assert result.output == "ok"
    assert effects.done == ["5"]


async def test_a_decision_is_not_of_another_call_of_the_same_id(tracer: StoreTracer) -> None:
    """Some servers number the calls of each answer from 0."""
    effects = Effects()

    script = [[ScriptedCall("write", line="a"), ScriptedCall("write", line="b")], ScriptedCall("write", line="c"), "ok"]
    writer = tool(needs_approval=True)(effects.write)
    agent = Agent(Renaming(script), [writer], approve=lambda call: Approval.later(), tracer=tracer)
    with pytest.raises(ApprovalPending) as pending:
        await agent.run("go")
    run_id, calls = pending.value.run_id, pending.value.calls
    assert [call.arguments for call in calls] == ['{"line": "a"}', '{"line": "b"}']
    with pytest.raises(ApprovalPending) as pending:
        await agent.resume(run_id, approvals={calls[0].id: True, calls[1].id: "not b"})
    assert effects.done == ["a"]
    [call] = pending.value.calls
    assert call.arguments == '{"line": "c"}'
    result = await agent.resume(run_id, approvals={call.id: True})
    assert effects.done == ["a", "c"]
    assert [m.content for m in result.conversation.messages if m.role == "tool"] == [
        "wrote a",
        "Error: the call was not approved: not b",
        "wrote c",
    ]


async def test_without_a_journal_nobody_can_decide_later() -> None:
    writer = tool(needs_approval=True)(Effects().write)
    agent = Agent(ScriptedModel([ScriptedCall("write", line="a")]), [writer], approve=lambda call: Approval.later())
    with pytest.raises(ConfigError, match="needs the run's journal"):
        await agent.run("go")
    with pytest.raises(ConfigError, match="HOTLOOP_TRACE"):
        await agent.resume("run-1")


async def test_two_that_resume_a_run(tracer: StoreTracer, tmp_path: Path) -> None:
    gate, has_begun = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        has_begun.set()
        await gate.wait()
        return "held"

    other = StoreTracer(tmp_path / "trace.db")
    slow = Agent(ScriptedModel([ScriptedCall("hold"), "ok"]), [hold], tracer=tracer)
    running, begun = watch(slow)
    await has_begun.wait()
    run_id = begun[0]
    rival = Agent(ScriptedModel(["ok"]), [hold], tracer=other)
    with pytest.raises(RunTaken, match="running already"):
        await rival.resume(run_id)
    gate.set()
    await running
    other.close()


async def test_a_call_that_may_have_run_is_never_repeated_by_itself(tracer: StoreTracer) -> None:
    effects, asked = Effects(), []

    def doubt(call: Uncertain) -> bool | str:
        asked.append((call.name, call.arguments))
        return "it was written"

    run_id = await break_off(tracer, effects)
    agent = Agent(ScriptedModel([ScriptedCall("write", line="a"), "ok"]), [tool(effects.write)], tracer=tracer)
    result = await Agent(
        ScriptedModel([ScriptedCall("write", line="a"), "ok"]), [tool(effects.write)], tracer=tracer, on_uncertain=doubt
    ).resume(run_id)
    assert asked == [("write", '{"line": "a"}')]
    assert effects.done == ["a"]
    assert [m.content for m in result.conversation.messages if m.role == "tool"] == ["it was written"]

    run_id = await break_off(tracer, effects)
    result = await agent.resume(run_id)
    assert effects.done == ["a", "a"]
    assert "not known whether" in next(m.content for m in result.conversation.messages if m.role == "tool")

    run_id = await break_off(tracer, effects)
    calls: list[ToolCall] = []

    def approve(call: ToolCall) -> bool:
        calls.append(call)
        return True

    script = [ScriptedCall("write", line="a"), "ok"]
    result = await Agent(ScriptedModel(script), [tool(effects.write)], tracer=tracer, approve=approve).resume(run_id)
    assert effects.done == ["a", "a", "a", "a"]
    assert [type(call) for call in calls] == [Uncertain]


async def break_off(tracer: StoreTracer, effects: Effects) -> str:
    """A run whose call was running when it was cancelled: whether it did anything nobody can say, though it did."""
    has_begun = asyncio.Event()

    @tool(name="write")
    async def hang(line: str) -> str:
        effects.write(line)
        has_begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel([ScriptedCall("write", line="a"), "ok"]), [hang], tracer=tracer)
    running, begun = watch(agent)
    await has_begun.wait()
    running.cancel()
    await asyncio.wait({running})
    return begun[0]


async def test_what_may_be_repeated_runs_again(tracer: StoreTracer) -> None:
    tries: list[int] = []

    @tool(idempotent=True)
    async def fetch() -> str:
        tries.append(1)
        if len(tries) == 1:
            running.cancel()
            await asyncio.Event().wait()
        return "fetched"

    agent = Agent(ScriptedModel([ScriptedCall("fetch"), "ok"]), [fetch], tracer=tracer)
    running, begun = watch(agent)
    await asyncio.wait({running})
    result = await agent.resume(begun[0])
    assert (result.output, len(tries)) == ("ok", 2)


async def test_a_sub_agent_goes_on_where_it_was(tracer: StoreTracer) -> None:
    effects = Effects()
    inner_model = Failing([ScriptedCall("write", line="a"), "inner done"])
    writer = tool(needs_approval=True)(effects.write)
    inner = Agent(inner_model, [writer], name="inner")
    script = [ScriptedCall("ask", prompt="write it"), "outer done"]
    outer = Agent(
        ScriptedModel(script), [inner.as_tool("ask", "asks")], tracer=tracer, approve=lambda _: Approval.later()
    )
    with pytest.raises(ApprovalPending) as pending:
        await outer.run("go")
    [call] = pending.value.calls
    assert call.name == "write"
    result = await outer.resume(pending.value.run_id, approvals={call.id: True})
    assert result.output == "outer done"
    assert effects.done == ["a"]
    assert len(inner_model.asks) == 2, "the inner run went on, and did not begin anew"
    assert [m.content for m in result.conversation.messages if m.role == "tool"] == ["inner done"]


async def test_a_plan_goes_on(tracer: StoreTracer) -> None:
    effects = Effects()
    steps = plan(("a", "write", {"line": "a"}))
    model = Failing(lambda ask: "ok" if any(m.role == "tool" for m in ask.messages) else steps)
    model.is_down = True
    agent = Agent(model, [tool(effects.write)], tracer=tracer)
    events = [event async for event in agent.stream_plan("go")]
    assert end_of(events).end == "failed"
    model.is_down = False
    assert (await agent.resume(run_id_of(events))).output == "ok"
    assert effects.done == ["a"]


async def test_a_step_of_a_plan_that_was_not_run_is_not_run_when_the_run_goes_on(tracer: StoreTracer) -> None:
    """Its arguments are references still."""
    effects, is_open = Effects(), asyncio.Event()

    @tool(read_only=True)
    def find(name: str) -> str:
        raise ToolError("nobody of that name")

    @tool(read_only=True, timeout_s=None)
    async def look() -> str:
        await is_open.wait()
        return "seen"

    steps = plan(("a", "find", {"name": "x"}), ("b", "write", {"line": "${a.id}"}), ("c", "look", {}))
    agent = Agent(ScriptedModel([steps, "ok"]), [find, look, tool(effects.write)], tracer=tracer)
    events = []
    run = agent.stream_plan("go")
    async for event in run:
        events.append(event)
        if len(of(CallFinished, events)) == 2:
            break
    while not (await answers_of(tracer, run_id_of(events))):  # noqa: ASYNC110  it tells of no event
        await asyncio.sleep(0)
    await run.aclose()
    is_open.set()
    result = await agent.resume(run_id_of(events))
    assert effects.done == []
    told = [message.content for message in result.conversation.messages if message.role == "tool"]
    assert told == [
        "Error: nobody of that name",
        "Error: not run: it needs the result of step 'a' (find), which failed",
        "seen",
    ]


async def test_a_step_of_a_plan_does_not_run_on_a_result_that_waits_for_a_decision(tracer: StoreTracer) -> None:
    effects = Effects()

    @tool(needs_approval=True)
    def pay() -> str:
        return "receipt 5"

    steps = plan(("a", "pay", {}), ("b", "write", {"line": "paid: ${a}"}))
    tools = [pay, tool(effects.write)]
    agent = Agent(ScriptedModel([steps, "ok"]), tools, approve=lambda call: Approval.later(), tracer=tracer)
    with pytest.raises(ApprovalPending) as pending:
        await agent.plan("go")
    result = await agent.resume(pending.value.run_id, approvals={pending.value.calls[0].id: True})
    assert effects.done == []
    told = [message.content for message in result.conversation.messages if message.role == "tool"]
    assert told == [
        "receipt 5",
        "Error: not run: it needs the result of step 'a' (pay), which waits for a decision",
    ]


@pytest.mark.parametrize("answer", [[], ["Let me see.\n"]])
async def test_what_came_before_an_answer_that_broke_off_is_known(tracer: StoreTracer, answer: list[Part]) -> None:
    """However often the run goes on; the turns are numbered on."""
    effects = Effects()

    class Breaking(ScriptedModel):
        """Breaks off for the first time in each turn, and may be asked again; `is_down` ends the run then."""

        is_down = True

        def __init__(self, script: Any) -> None:
            super().__init__(script)
            self.broken: set[int] = set()

        async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
            num_messages = len(ask.messages)
            if num_messages not in self.broken:
                self.broken.add(num_messages)
                yield TextDelta("Let me")
                raise RemoteError("the connection broke", can_retry=True)
            if self.is_down and num_messages > 1:
                raise RemoteError("nobody is there")
            async for event in super().stream(ask):
                yield event

    model = Breaking([[*answer, ScriptedCall("write", line="a")], [*answer, ScriptedCall("write", line="b")], "ok"])
    agent = Agent(model, [tool(effects.write)], tracer=tracer)
    run_id = run_id_of(await listen(agent))
    for _ in range(2):
        with pytest.raises(RemoteError):
            await agent.resume(run_id)
    model.is_down = False
    result = await agent.resume(run_id)
    assert (result.output, effects.done, result.spent.num_turns) == ("ok", ["a", "b"], 3)
    assert [message.role for message in result.conversation.messages] == [
        "user",
        *["assistant", "tool"] * 2,
        "assistant",
    ]


async def test_a_result_is_not_that_of_a_dropped_call_of_the_same_id(tracer: StoreTracer) -> None:
    """Some servers number the calls of each answer, and what the model says instead of an answer that broke off may
    be another call."""
    is_open = {at: asyncio.Event() for at in "ab"}
    looked: list[str] = []

    class Numbering(ScriptedModel):
        async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
            self.asks.append(ask)
            if len(ask.messages) > 1:
                yield TextDelta("ok")
                return
            at = "a" if len(self.asks) == 1 else "b"
            yield CallOpened(0, "call_0", "look")
            yield CallDelta(0, f'{{"at": "{at}"}}')
            yield CallClosed(0)
            if at == "a":
                while not looked:  # noqa: ASYNC110  the journal has that it began
                    await asyncio.sleep(0)
                raise RemoteError("the connection broke", can_retry=True)
            yield WireEnded("calls")

    @tool(read_only=True, timeout_s=None)
    async def look(at: str) -> str:
        looked.append(at)
        await is_open[at].wait()
        return f"{at} is there"

    agent = Agent(Numbering([]), [look], tracer=tracer)
    events: list[Event] = []
    run = agent.stream("go")
    async for event in run:
        events.append(event)
        if len(of(CallDispatched, events)) == 2:
            break
    is_open["a"].set()
    while sum(task.get_name() == "tool look" for task in asyncio.all_tasks()) > 2:  # noqa: ASYNC110  the other's
        await asyncio.sleep(0)
    await run.aclose()
    is_open["b"].set()
    result = await agent.resume(run_id_of(events))
    assert [message.content for message in result.conversation.messages if message.role == "tool"] == ["b is there"]


async def test_a_later_call_may_have_the_id_of_one_that_was_running(tracer: StoreTracer) -> None:
    """As of servers that number them, once the turns with the others are in a summary."""
    effects, is_open = Effects(), asyncio.Event()

    async def write(line: str) -> str:
        await is_open.wait()
        return effects.write(line)

    def answer(ask: Ask) -> Any:
        if ask.choice == "none":
            return "a summary"
        told = any("summary" in message.content for message in ask.messages)
        return "ok" if effects.done else ScriptedCall("write", line="b" if told else "a")

    # So large that it is shortened before each turn.
    compaction = Compaction(window_tokens=8000, fill=0.1, num_kept=0)
    agent = Agent(Renaming(answer), [tool(write)], compaction=compaction, tracer=tracer)
    conversation = Conversation([Message("user", "word " * 2000), Message("assistant", "word " * 2000)])
    events: list[Event] = []
    run = agent.stream("go", conversation=conversation)
    async for event in run:
        events.append(event)
        if of(CallDispatched, events):
            break
    await run.aclose()
    is_open.set()
    result = await agent.resume(run_id_of(events))
    assert (result.output, len(effects.done)) == ("ok", 1)


async def test_who_gives_up_while_a_run_is_taken_over_leaves_it_free(tracer: StoreTracer) -> None:
    class Interrupting:
        """A journal in which the one who takes a run is cancelled as soon as it has it."""

        has_taken = False

        def __getattr__(self, name: str) -> Any:
            return getattr(journal, name)

        def take(self, run_id: str) -> "Future[Any]":
            taken = journal.take(run_id)
            taken.result()
            self.has_taken = True
            return taken

        def read(self, run_id: str, kind: str = "") -> "Future[Any]":
            if self.has_taken:
                running.cancel()
            return journal.read(run_id, kind)

    model, journal = Failing([ScriptedCall("write", line="a"), "ok"]), tracer.journal
    model.is_down = True
    agent = Agent(model, [tool(Effects().write)], tracer=tracer)
    run_id = run_id_of(await listen(agent))
    tracer.journal = Interrupting()  # type: ignore[assignment]
    running = asyncio.create_task(agent.resume(run_id))
    await asyncio.wait({running})
    assert running.cancelled()
    tracer.journal = journal
    assert await state_of(tracer, run_id) == "failed"
    model.is_down = False
    assert (await agent.resume(run_id)).output == "ok"


async def test_a_conversation_that_was_shortened_stays_short(tracer: StoreTracer) -> None:
    is_down = True

    def answer(ask: Ask) -> str | ScriptedCall:
        if "Write a summary" in ask.messages[-1].content:
            return "in short"
        if any("in short" in message.content for message in ask.messages):
            if is_down:
                raise RemoteError("nobody is there")
            return "ok"
        return ScriptedCall("write", line="x" * 300)

    compaction = Compaction(window_tokens=2000, fill=0.5, num_kept=2)
    agent = Agent(ScriptedModel(answer), [tool(Effects().write)], tracer=tracer, compaction=compaction)
    events = await listen(agent)
    assert (end_of(events).end, len(of(Compacted, events))) == ("failed", 1)
    is_down = False
    result = await agent.resume(run_id_of(events))
    assert result.output == "ok"
    assert "in short" in result.conversation.messages[1].content


async def test_an_answer_that_was_whole_is_not_asked_for_again(tracer: StoreTracer) -> None:
    """The process ended between the model's last words and the run's end."""
    model = ScriptedModel(["the answer"])
    agent = Agent(model, tracer=tracer)
    stream = agent.stream("go")
    run_id = ""
    async for event in stream:
        if isinstance(event, RunStarted):
            run_id = event.run_id
        if isinstance(event, TurnStarted):
            break
    await stream.aclose()
    row, entries = await asyncio.wrap_future(tracer.journal.read(run_id))
    assert row.state in ("cancelled", "done")
    if row.state == "cancelled":
        assert read_past(row, entries).row.run_id == run_id
        assert (await agent.resume(run_id)).output == "the answer"


async def test_the_results_that_are_known_are_not_told_again(tracer: StoreTracer) -> None:
    effects = Effects()
    writer = tool(needs_approval=True)(effects.write)
    script = [[ScriptedCall("free", line="a"), ScriptedCall("write", line="b")], "ok"]
    free = tool(name="free")(effects.write)
    agent = Agent(ScriptedModel(script), [free, writer], approve=lambda _: Approval.later(), tracer=tracer)
    with pytest.raises(ApprovalPending) as pending:
        await agent.run("go")
    [call] = pending.value.calls
    events = [event async for event in agent.stream_resume(pending.value.run_id, approvals={call.id: True})]
    assert [event.name for event in of(CallFinished, events)] == ["write"]
    assert [event.turn for event in of(TurnStarted, events)] == [1, 2]
    assert effects.done == ["a", "b"]


async def test_a_run_that_is_cancelled_is_forgotten(tracer: StoreTracer) -> None:
    model = Failing([ScriptedCall("write", line="a"), "ok"])
    model.is_down = True
    agent = Agent(model, [tool(Effects().write)], tracer=tracer)
    run_id = run_id_of(await listen(agent))
    await cancel(tracer.journal, run_id)
    assert await state_of(tracer, run_id) == "cancelled"
    with pytest.raises(ConfigError, match="cannot be resumed"):
        await agent.resume(run_id)


async def test_a_store_that_cannot_be_written_stops_effects(tracer: StoreTracer) -> None:
    """No effect without its being written down first: or else it would be repeated."""
    effects = Effects()
    agent = Agent(ScriptedModel([ScriptedCall("write", line="a"), "ok"]), [tool(effects.write)], tracer=tracer)
    tracer.close()
    with pytest.raises(HotloopError, match="journal cannot be written"):
        await agent.run("go")
    assert effects.done == []


async def test_a_resumed_run_has_its_prefix_read_while_its_calls_run(tracer: StoreTracer) -> None:
    """The journal has the session and what was said, by which the server finds the prefix, or prefills it anew."""
    was_read = asyncio.Event()

    class Reading(ScriptedModel):
        async def prefill(self, ask: Ask) -> None:
            await super().prefill(ask)
            was_read.set()

    model = Reading([["Now. ", ScriptedCall("write", line="a")], "ok"])
    seen: list[int] = []

    @tool(needs_approval=True)
    async def write(line: str) -> str:
        await was_read.wait()  # it does not wait for the call
        seen.append(len(model.asks))
        return f"wrote {line}"

    agent = Agent(model, [write], "Be brief.", approve=lambda call: Approval.later(), tracer=tracer)
    with pytest.raises(ApprovalPending) as pending:
        await agent.run("go")
    [call] = pending.value.calls
    model.reads.clear()
    result = await agent.resume(pending.value.run_id, approvals={call.id: True})
    assert result.output == "ok"
    assert seen == [1], "before the first turn was asked for"
    [read] = model.reads
    assert [m.content for m in read.messages] == ["Be brief.", "go", "Now. "]
    assert read.session_id == model.asks[0].session_id == model.asks[1].session_id
    assert read.tools == model.asks[1].tools


async def test_calls_of_two_sub_agents_with_one_id_are_decided_on_apart(tracer: StoreTracer) -> None:
    """Some servers number the calls of each answer from 0."""
    effects = Effects()
    writer = tool(needs_approval=True)(effects.write)
    clerks = [
        Agent(Renaming([ScriptedCall("write", line=line), "done"]), [writer], name=line).as_tool(f"ask_{line}", "Asks.")
        for line in ("a", "b")
    ]
    script = [[ScriptedCall("ask_a", prompt="go"), ScriptedCall("ask_b", prompt="go")], "ok"]
    lead = Agent(ScriptedModel(script), clerks, tracer=tracer, approve=lambda call: Approval.later())
    with pytest.raises(ApprovalPending) as pending:
        await lead.run("go")
    run_id, waiting = pending.value.run_id, pending.value.waiting
    assert {call.id for _, call in waiting} == {"call_0"}
    assert all(each.run_id in str(pending.value) for each in waiting)
    with pytest.raises(ConfigError, match="name the sub-agent's run"):
        await lead.resume(run_id, approvals={"call_0": True})
    verdicts = {(each.run_id, each.call.id): each.call.arguments == '{"line": "b"}' for each in waiting}
    assert (await lead.resume(run_id, approvals=verdicts)).output == "ok"
    assert effects.done == ["b"]
