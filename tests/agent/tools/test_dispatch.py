"""How calls are carried out: so many at once, within a time, again where that does no harm, and only if approved."""

import asyncio
import contextlib
import time
from typing import Any

import pytest
from tests.agent.runs import end_of, listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, CallFinished
from hotloop.agent.limits import Limits
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.dispatch import MAX_TRIES, carry_out
from hotloop.agent.tools.tool import FunctionTool, RunContext, ToolError, ToolExited, ToolOptions, tool
from hotloop.core.message import ToolCall


class Crowd:
    """Counts how many are inside at once. Each leaves once nobody new has come in for a while of the event loop."""

    def __init__(self) -> None:
        self.num_inside = self.num_most = 0

    async def visit(self) -> None:
        self.num_inside += 1
        self.num_most = max(self.num_most, self.num_inside)
        for _ in range(200):
            await asyncio.sleep(0)
        self.num_inside -= 1


@pytest.mark.parametrize(
    ("max_concurrency", "concurrency", "most"), [(None, 16, 8), (3, 16, 3), (None, 2, 2), (5, 2, 2)]
)
async def test_so_many_at_once(max_concurrency: int | None, concurrency: int, most: int) -> None:
    crowd = Crowd()
    visit = FunctionTool(crowd.visit, options=ToolOptions(max_concurrency=max_concurrency))
    agent = Agent(ScriptedModel([[ScriptedCall("visit")] * 8, "ok"]), [visit], limits=Limits(concurrency=concurrency))
    events = await listen(agent)
    assert (crowd.num_most, len(of(CallFinished, events))) == (most, 8)


async def test_it_is_told_how_long_a_call_took() -> None:
    began_at = time.monotonic()
    events = await listen(Agent(ScriptedModel([[ScriptedCall("rest")], "ok"]), [FunctionTool(rest)]))
    [finished] = of(CallFinished, events)
    assert 0 < finished.duration_s <= time.monotonic() - began_at


async def rest() -> None:
    await asyncio.sleep(0.01)


async def test_a_tool_with_few_places_does_not_take_those_of_others() -> None:
    """One of the narrow ones runs, and the others do not stand in the way of the wide one."""
    may_end = asyncio.Event()

    @tool(max_concurrency=1)
    async def narrow() -> None:
        await may_end.wait()

    @tool
    async def wide() -> None:
        may_end.set()

    agent = Agent(
        ScriptedModel([[ScriptedCall("narrow")] * 3 + [ScriptedCall("wide")], "ok"]),
        [narrow, wide],
        limits=Limits(concurrency=2),
    )
    assert end_of(await listen(agent)).end == "done"


class Flaky:
    """Fails so many times first."""

    def __init__(self, num_failures: int, error: Exception) -> None:
        self.num_calls = 0
        self._num_failures = num_failures
        self._error = error

    async def work(self) -> str:
        self.num_calls += 1
        if self.num_calls <= self._num_failures:
            raise self._error
        return "worked"


@pytest.mark.parametrize(
    ("options", "error", "num_calls"),
    [
        (ToolOptions(), OSError("gone"), 1),
        (ToolOptions(idempotent=True), OSError("gone"), 2),
        (ToolOptions(read_only=True), TimeoutError(), 2),
        (ToolOptions(read_only=True), ToolError("never"), 1),
    ],
)
async def test_another_try_only_where_it_does_no_harm(options: ToolOptions, error: Exception, num_calls: int) -> None:
    flaky = Flaky(1, error)
    outcome = await carry_out(FunctionTool(flaky.work, options=options), "{}", RunContext())
    assert (flaky.num_calls, outcome.num_tries, outcome.is_error) == (num_calls, num_calls, num_calls == 1)


async def test_not_for_ever() -> None:
    flaky = Flaky(100, OSError("gone"))
    outcome = await carry_out(FunctionTool(flaky.work, options=ToolOptions(read_only=True)), "{}", RunContext())
    assert (flaky.num_calls, outcome.text) == (MAX_TRIES, "Error: OSError: gone")


async def test_not_again_once_it_is_cancelled() -> None:
    """Though the tool makes an error of it that would do for another try."""
    has_begun, num_tries = asyncio.Event(), 0

    @tool(read_only=True, timeout_s=None)
    async def stubborn() -> None:
        nonlocal num_tries
        num_tries += 1
        if has_begun.is_set():
            return
        has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("closed") from None

    task = asyncio.create_task(carry_out(stubborn, "{}", RunContext()))
    await has_begun.wait()
    task.cancel()
    await asyncio.wait({task})
    assert num_tries == 1


async def test_errors_that_happened_together_are_told() -> None:
    error = BaseExceptionGroup("two", [asyncio.CancelledError()])

    @tool
    async def leave() -> None:
        raise error

    outcome = await carry_out(leave, "{}", RunContext())
    assert (outcome.text, outcome.is_error) == (f"Error: {type(error).__name__}: {error}", True)


def leaving(error: BaseException, *, is_async: bool) -> FunctionTool:
    async def leave() -> None:
        raise error

    def leave_in_thread() -> None:
        raise error

    return FunctionTool(leave if is_async else leave_in_thread, name="leave", options=ToolOptions(read_only=True))


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
async def test_a_tool_that_would_end_the_program_ends_the_run(error: BaseException, is_async: bool) -> None:
    """The call is not tried again, its siblings are stopped, and the conversation says what was called."""
    stopped = asyncio.Event()

    @tool(timeout_s=None)
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    model = ScriptedModel([[ScriptedCall("hang"), ScriptedCall("leave")], "never said"])
    conversation = Conversation()
    async with asyncio.timeout(60):
        events = await listen(Agent(model, [hang, leaving(error, is_async=is_async)]), conversation=conversation)
    assert end_of(events).end == "failed"
    assert str(end_of(events).error) == f"the tool leave raised {error!r}, which ends the run"
    assert stopped.is_set()
    assert len(model.asks) == 1
    assert [message.role for message in conversation.messages] == ["user", "assistant", "tool", "tool"]


async def test_a_tool_of_a_sub_agent_that_would_end_the_program_ends_both_runs() -> None:
    inner = Agent(ScriptedModel([ScriptedCall("leave"), "never said"]), [leaving(KeyboardInterrupt(), is_async=True)])
    outer = Agent(ScriptedModel([ScriptedCall("ask", prompt="go"), "never said"]), [inner.as_tool("ask", "Ask.")])
    events = await listen(outer)
    assert "the tool leave raised KeyboardInterrupt()" in str(end_of(events).error)


def test_a_program_survives_a_tool_that_would_end_it() -> None:
    agent = Agent(ScriptedModel([ScriptedCall("leave")]), [leaving(KeyboardInterrupt(), is_async=True)])
    with pytest.raises(ToolExited, match="KeyboardInterrupt"):
        agent.run_sync("go")


async def test_a_tool_that_hangs_is_given_up() -> None:
    @tool(timeout_s=0.01)
    async def hang() -> None:
        await asyncio.Event().wait()

    outcome = await carry_out(hang, "{}", RunContext())
    assert (outcome.text, outcome.is_error) == ("Error: hang did not answer within 0.01 s", True)


async def test_a_tool_that_will_not_be_cancelled_does_not_outlive_its_time(caplog: pytest.LogCaptureFixture) -> None:
    may_end = asyncio.Event()

    @tool(timeout_s=0.01)
    async def stubborn() -> str:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()
        return "at last"

    async with asyncio.timeout(20):
        outcome = await carry_out(stubborn, "{}", RunContext())
    assert (outcome.text, outcome.is_error) == ("Error: stubborn did not answer within 0.01 s", True)
    assert "tool stubborn does not stop when it is cancelled" in caplog.text
    may_end.set()


async def test_what_a_tool_says_when_its_time_is_up_is_heard() -> None:
    @tool(timeout_s=0.01)
    async def hasty() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "the half of it"
        return "all"

    assert (await carry_out(hasty, "{}", RunContext())).text == "the half of it"


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        (True, "done"),
        (False, "Error: the call was not approved"),
        ("ask Ann", "Error: the call was not approved: ask Ann"),
        (RuntimeError("no terminal"), "Error: the call could not be approved: no terminal"),
    ],
)
async def test_approval(verdict: Any, result: str) -> None:
    asked: list[ToolCall] = []

    async def approve(call: ToolCall) -> bool | str:
        asked.append(call)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict  # type: ignore[no-any-return]

    @tool(needs_approval=True)
    def pay(amount: int) -> None: ...

    @tool
    def look() -> None: ...

    script = [[ScriptedCall("pay", amount=5), ScriptedCall("look")], "ok"]
    agent = Agent(ScriptedModel(script), [pay, look], approve=approve)
    events = await listen(agent)
    assert {event.name: event.result for event in of(CallFinished, events)} == {"pay": result, "look": "done"}
    assert [call.arguments for call in asked] == ['{"amount": 5}']
    dispatched = {event.name for event in of(CallDispatched, events)}
    assert dispatched == ({"pay", "look"} if verdict is True else {"look"})


async def test_a_call_costs_what_was_tried_and_a_refused_one_nothing() -> None:
    flaky = Flaky(1, OSError("gone"))
    work = FunctionTool(flaky.work, options=ToolOptions(idempotent=True, cost=0.5))
    pay = FunctionTool(lambda: None, name="pay", options=ToolOptions(needs_approval=True, cost=9.0))
    script = [[ScriptedCall("work"), ScriptedCall("pay")], "ok"]
    events = await listen(Agent(ScriptedModel(script), [work, pay], approve=lambda call: False))
    assert end_of(events).spent.money == 1.0
