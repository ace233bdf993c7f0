"""The loop: calls begin while the model writes, results come back in order, and a run ends once, whatever happens."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest
from tests.agent.runs import end_of, listen, num_tasks, of

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import (
    CallArguments,
    CallDispatched,
    CallFinished,
    CallOpened,
    Text,
    TurnFinished,
    TurnStarted,
)
from hotloop.agent.limits import LimitReached, Limits, Run
from hotloop.agent.model import Ask
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import Context, FunctionTool, tool
from hotloop.core.errors import ConfigError, HotloopError, RemoteError, RequestError
from hotloop.core.message import Message
from hotloop.core.prices import Prices
from hotloop.core.stream import CallDelta, TextDelta
from hotloop.core.stream import CallOpened as Opened
from hotloop.wire.event import Ended
from hotloop.wire.event import Event as WireEvent
from hotloop.wire.usage import ApiUsage


@tool(read_only=True)
def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


class Model(ScriptedModel):
    """Plays events as they are given, and nothing else."""

    def __init__(self, *events: WireEvent | Exception) -> None:
        super().__init__([])
        self._events = events

    async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
        for event in self._events:
            if isinstance(event, Exception):
                raise event
            yield event


async def test_a_run_from_the_question_to_the_answer() -> None:
    model = ScriptedModel([["Let me see.", ScriptedCall("double", n=2), ScriptedCall("double", n=5)], "4 and 10."])
    conversation = Conversation()
    events = await listen(Agent(model, [double], "Be brief."), "Twice 2 and 5?", conversation=conversation)
    assert end_of(events).output == "4 and 10."
    assert [type(event).__name__ for event in of(TurnStarted, events)] == ["TurnStarted"] * 2
    assert "".join(event.text for event in of(Text, events)) == "Let me see.4 and 10."
    assert [event.name for event in of(CallOpened, events)] == ["double"] * 2
    assert "".join(event.arguments for event in of(CallArguments, events)) == '{"n": 2}{"n": 5}'
    assert [event.num_calls for event in of(TurnFinished, events)] == [2, 0]
    assert [(m.role, m.content) for m in conversation.messages] == [
        ("system", "Be brief."),
        ("user", "Twice 2 and 5?"),
        ("assistant", "Let me see."),
        ("tool", "4"),
        ("tool", "10"),
        ("assistant", "4 and 10."),
    ]
    assert [m.tool_call_id for m in conversation.messages[3:5]] == [c.id for c in conversation.messages[2].tool_calls]
    assert {ask.session_id for ask in model.asks} == {conversation.session_id}


async def test_a_call_begins_while_the_next_is_being_written() -> None:
    """The model does not go on before the first tool has begun, nor does the tool end before the model is done."""
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def first() -> str:
        has_begun.set()
        await may_end.wait()
        return "first"

    class Patient(ScriptedModel):
        async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
            async for event in super().stream(ask):
                if isinstance(event, Opened) and event.name == "double":
                    await has_begun.wait()
                yield event
            may_end.set()

    events = await listen(Agent(Patient([[ScriptedCall("first"), ScriptedCall("double", n=1)], "ok"]), [first, double]))
    begun = [i for i, event in enumerate(events) if isinstance(event, CallDispatched) and event.name == "first"]
    opened = [i for i, event in enumerate(events) if isinstance(event, CallOpened) and event.name == "double"]
    assert begun < opened


async def test_results_keep_the_order_of_the_calls() -> None:
    gates = [asyncio.Event() for _ in range(3)]

    @tool
    async def wait(n: int) -> str:
        if n < 2:
            await gates[n + 1].wait()
        gates[n].set()
        return str(n)

    conversation = Conversation()
    script = [[ScriptedCall("wait", n=n) for n in range(3)], "ok"]
    events = await listen(Agent(ScriptedModel(script), [wait]), conversation=conversation)
    assert [event.result for event in of(CallFinished, events)] == ["2", "1", "0"]
    assert [m.content for m in conversation.messages if m.role == "tool"] == ["0", "1", "2"]


async def test_one_that_fails_hides_nobody() -> None:
    @tool
    def crash() -> None:
        raise ValueError("oh")

    conversation = Conversation()
    script = [
        [ScriptedCall("crash"), ScriptedCall("double", n=1), ScriptedCall("nothing"), ScriptedCall("double", n="x")],
        "ok",
    ]
    events = await listen(Agent(ScriptedModel(script), [crash, double]), conversation=conversation)
    results = [m.content for m in conversation.messages if m.role == "tool"]
    assert results[:2] == ["Error: ValueError: oh", "2"]
    assert results[2] == "Error: there is no tool 'nothing'; there are: crash, double"
    assert results[3].startswith("Error: the arguments are wrong: n: ")
    assert [event.is_error for event in of(CallFinished, events)].count(True) == 3
    assert end_of(events).end == "done"


async def test_tools_are_offered_in_one_order() -> None:
    @tool
    def apple() -> None: ...

    models = [ScriptedModel(["ok"]), ScriptedModel(["ok"])]
    await Agent(models[0], [double, apple]).run("go")
    await Agent(models[1], [apple, double]).run("go")
    assert models[0].asks[0].tools == models[1].asks[0].tools
    with pytest.raises(ConfigError, match="two tools named 'double'"):
        await Agent(models[0], [double, double]).run("go")
    mine = FunctionTool(lambda: None, name="final_answer")
    with pytest.raises(ConfigError, match="two tools named 'final_answer'"):
        await Agent(models[0], [mine], output=int).run("go")


async def test_every_prompt_begins_as_the_one_before_it() -> None:
    model = ScriptedModel([[ScriptedCall("double", n=1)], [ScriptedCall("double", n=2)], "ok", "again"])
    conversation = Conversation()
    agent = Agent(model, [double], "Be brief.")
    await agent.run("go", conversation=conversation, notes="It is noon.")
    await agent.run("and now?", conversation=conversation, notes="It is one.")
    for before, after in zip(model.asks, model.asks[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
    assert model.asks[0].messages[1] == Message("user", "go\n\nIt is noon.")


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (Limits(turns=2), "turns"),
        (Limits(calls=1), "calls"),
        (Limits(tokens=1), "tokens"),
        (Limits(money=0.5), "money"),
    ],
)
async def test_limits(limits: Limits, limit: str) -> None:
    @tool(cost=0.3)
    def pay() -> None: ...

    agent = Agent(ScriptedModel(lambda _: ScriptedCall("pay")), [pay], limits=limits, prices=Prices(output=1e5))
    with pytest.raises(LimitReached) as caught:
        await agent.run("go")
    assert caught.value.limit == limit


async def test_the_limit_of_time_stops_what_runs() -> None:
    was_stopped = asyncio.Event()

    @tool(timeout_s=None)
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_stopped.set()

    events = await listen(Agent(ScriptedModel([ScriptedCall("hang")]), [hang], limits=Limits(time_s=0.5)))
    assert (end_of(events).end, was_stopped.is_set()) == ("limit", True)


async def test_a_cut_answer_is_told() -> None:
    cut = Model(TextDelta("The ans"), Ended("length"))
    events = await listen(Agent(cut))
    assert (end_of(events).end, end_of(events).output, end_of(events).is_cut) == ("done", "The ans", True)
    result = await Agent(cut).run("go")
    assert (result.output, result.is_cut) == ("The ans", True)
    with pytest.raises(LimitReached, match="cut off; raise max_tokens"):
        await Agent(Model(Ended("length"))).run("go")


async def test_a_call_that_was_cut_off_is_not_made() -> None:
    conversation = Conversation()
    cut = Model(Opened(0, "c", "double"), CallDelta(0, '{"n": '), Ended("length", usage=ApiUsage(num_output=9)))
    events = await listen(Agent(cut, [double]), conversation=conversation)
    assert end_of(events).end == "limit"
    assert not of(CallDispatched, events)
    assert conversation.messages[-1] == Message("assistant")


@pytest.mark.parametrize("error", [RequestError("no such model"), RuntimeError("a bug")])
async def test_a_model_that_fails_ends_the_run(error: Exception) -> None:
    before = num_tasks()
    events = await listen(Agent(Model(TextDelta("I"), error)))
    assert (end_of(events).end, isinstance(end_of(events).error, HotloopError)) == ("failed", True)
    assert str(error) in str(end_of(events).error)
    with pytest.raises(HotloopError):
        await Agent(Model(error)).run("go")
    assert num_tasks() == before


async def test_a_timeout_that_is_not_the_runs_is_a_failure() -> None:
    events = await listen(Agent(Model(TimeoutError("the proxy"))))
    assert (end_of(events).end, str(end_of(events).error)) == ("failed", "the run failed: TimeoutError('the proxy')")


async def test_what_a_broken_turn_has_done_is_in_the_conversation() -> None:
    """Whoever goes on from there would otherwise send the mail again."""
    has_begun = asyncio.Event()

    @tool(cost=0.5)
    async def send(to: str) -> str:
        if to == "bob":
            has_begun.set()
            await asyncio.Event().wait()
        return "sent"

    class Breaking(ScriptedModel):
        async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
            async for event in super().stream(ask):
                if isinstance(event, TextDelta):
                    await has_begun.wait()
                    raise RemoteError("broke off")
                yield event

    conversation = Conversation()
    script = [[ScriptedCall("send", to="ann"), ScriptedCall("send", to="bob"), "Sent."]]
    events = await listen(Agent(Breaking(script), [send]), conversation=conversation)
    assert (end_of(events).end, end_of(events).spent.money) == ("failed", 1.0)
    _, said, *results = conversation.messages
    assert [m.tool_call_id for m in results] == [call.id for call in said.tool_calls]
    assert [m.content.partition(";")[0] for m in results] == ["sent", "Error: this call was broken off"]


class Watching:
    """Predicts nothing, and counts how often it is told to stop."""

    num_closed = 0

    def open(self, *_: Any) -> "Watching":
        return self

    def begin_turn(self, *_: Any) -> None:
        pass

    hear = listen = claim = end_turn = begin_turn

    async def close(self) -> None:
        self.num_closed += 1


async def test_what_was_speculative_is_stopped_even_if_somebody_stops_the_stopping() -> None:
    """A run that has failed waits for a tool that does not stop; whoever waits for the run does not want to."""
    is_stopping, may_stop, watching = asyncio.Event(), asyncio.Event(), Watching()

    @tool(timeout_s=None)
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_stopping.set()
            await may_stop.wait()

    agent = Agent(
        ScriptedModel([ScriptedCall("stubborn")]), [stubborn], limits=Limits(time_s=0.5), speculation=watching
    )
    task = asyncio.create_task(agent.run("go"))
    await is_stopping.wait()
    task.cancel()
    await asyncio.wait({task})
    may_stop.set()
    assert (task.cancelled(), watching.num_closed) == (True, 1)


async def test_calls_before_the_one_too_many_are_in_the_conversation() -> None:
    conversation = Conversation()
    agent = Agent(ScriptedModel([[ScriptedCall("double", n=n) for n in range(3)]]), [double], limits=Limits(calls=2))
    assert end_of(await listen(agent, conversation=conversation)).end == "limit"
    assert [len(m.tool_calls) for m in conversation.messages if m.role == "assistant"] == [2]
    assert [m.role for m in conversation.messages] == ["user", "assistant", "tool", "tool"]


async def test_closing_the_stream_stops_everything() -> None:
    before = num_tasks()
    stopped: list[str] = []

    @tool(timeout_s=None)
    async def hang(run: Context[Run]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(run.id)

    events = Agent(ScriptedModel([[ScriptedCall("hang"), ScriptedCall("hang")]]), [hang]).stream("go")
    async for event in events:
        if isinstance(event, CallDispatched):
            break
    await events.aclose()
    assert len(stopped) in (1, 2)
    assert num_tasks() == before


async def test_cancelling_a_run_stops_everything() -> None:
    before = num_tasks()
    has_begun = asyncio.Event()
    thread_runs: list[Run] = []
    may_end = threading.Event()

    @tool(timeout_s=None)
    async def hang() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    @tool(timeout_s=None)
    def block(run: Context[Run]) -> None:
        thread_runs.append(run)
        may_end.wait(30)

    agent = Agent(ScriptedModel([[ScriptedCall("block"), ScriptedCall("hang")]]), [hang, block])
    task = asyncio.create_task(agent.run("go"))
    await has_begun.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    may_end.set()
    assert task.cancelled()
    assert num_tasks() == before
    assert all(run.is_cancelled for run in thread_runs)


def test_run_sync() -> None:
    agent = Agent(ScriptedModel([[ScriptedCall("double", n=4)], "8"]), [double])
    assert agent.run_sync("Twice 4?").output == "8"
    assert agent.run_sync("Twice 4?").spent.num_turns == 2


async def test_forks_share_what_came_before_and_nothing_else() -> None:
    model = ScriptedModel(lambda ask: ask.messages[-1].content.upper())
    base = Conversation([Message("system", "s"), Message("user", "u"), Message("assistant", "a")])
    results = await Agent(model).fork(["one", "two"], conversation=base)
    assert [result.output for result in results if not isinstance(result, HotloopError)] == ["ONE", "TWO"]
    assert all(ask.messages[:3] == base.messages for ask in model.asks)
    assert len(base) == 3
