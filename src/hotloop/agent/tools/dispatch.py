"""The calls of a run, from the moment each is whole to the moment its result is known.

    model  ──[call a]──[call b]────[call c]──┐
    a           └─────────────┐              │
    b                    └────┼─────┐        │
    c                         │     │   └────┼──┐
    results                   1     2        │  3   given to the model in the order of its calls

Calls run at once, as far as the limits allow; one that fails is a result like any other. Nothing a tool does gets out
of here but its outcome; only being cancelled does, and a tool that would end the program, which ends its run.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

from hotloop.agent.events import CallDispatched, CallFinished, Event
from hotloop.agent.tools.tool import AgentTool, Surroundings, ToolCrashed, ToolError, ToolExited, render_result
from hotloop.core.errors import HotloopError
from hotloop.core.message import Message, ToolCall

log = logging.getLogger(__name__)

MAX_TRIES = 3
_FIRST_PAUSE_S = 0.1  # before another try; twice as long before the next
_MAX_STOP_S = 5.0  # for a tool that was cancelled
_MAX_CANCELLED_S = 2.5  # for one whose caller was cancelled: who did that waits for longer
_MAX_LATE_S = 0.5  # for one that was cancelled since its time is up, and may have something to say about it
LATE = "it took longer than its timeout_s"  # what a tool that is cancelled for that reason is told
_BROKEN_OFF = "Error: this call was broken off; it is not known whether it did anything"

Approve = Callable[[ToolCall], Awaitable[bool | str]]
"""Asked before a tool that needs approval runs: True lets it; False, or words for the model, does not."""


class Outcome(NamedTuple):
    """What the model is told."""

    text: str
    is_error: bool = False
    num_tries: int = 1


@dataclass(slots=True)
class EarlyCall:
    """A call that runs before the model has asked for it."""

    key: str
    cost: float
    task: "asyncio.Task[Outcome]"
    began_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Pending:
    call: ToolCall
    task: "asyncio.Task[Outcome]"

    @property
    def num_tries(self) -> int:
        """How often the tool was run for it; one that was broken off may have been."""
        return self.task.result().num_tries if self._is_known else 1

    @property
    def message(self) -> Message:
        """The result, or that there will be none: for a call that is done, or a run that is over."""
        text = self.task.result().text if self._is_known else _BROKEN_OFF
        return Message("tool", text, tool_call_id=self.call.id, name=self.call.name)

    @property
    def _is_known(self) -> bool:
        return self.task.done() and not self.task.cancelled() and not self.task.exception()


@dataclass(slots=True, eq=False)
class Dispatcher:
    """Starts calls, and waits for them. `claim` gives the call that runs already, if one does."""

    tools: Mapping[str, AgentTool]
    surroundings: Surroundings
    emit: Callable[[Event], None]
    claim: Callable[[ToolCall], EarlyCall | None]
    count: Callable[[], None]
    abort: Callable[[ToolExited], None]
    concurrency: InitVar[int]
    approve: Approve | None = None
    _room: asyncio.Semaphore = field(init=False)
    _rooms: dict[str, asyncio.Semaphore] = field(init=False)
    _running: set[asyncio.Task[Outcome]] = field(default_factory=set)

    def __post_init__(self, concurrency: int) -> None:
        self._room = asyncio.Semaphore(concurrency)
        self._rooms = {
            name: asyncio.Semaphore(tool.traits.max_concurrency)
            for name, tool in self.tools.items()
            if tool.traits.max_concurrency
        }

    def start(self, call: ToolCall, turn: int) -> Pending:
        """Dispatch a call, to begin as soon as there is room. Raises LimitReached if there were too many."""
        self.count()
        task = asyncio.create_task(self._run(call, turn), name=f"tool {call.name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return Pending(call, task)

    async def close(self) -> None:
        await stop(self._running)

    async def _run(self, call: ToolCall, turn: int) -> Outcome:
        try:
            return await self._outcome(call, turn)
        except ToolExited as error:
            self.abort(error)
            raise

    async def _outcome(self, call: ToolCall, turn: int) -> Outcome:
        tool = self.tools.get(call.name)
        refusal = await self._refusal(tool, call)
        began_at = time.monotonic()
        if refusal or tool is None:
            outcome = Outcome(render_result(f"Error: {refusal}"), is_error=True, num_tries=0)
        elif early := self.claim(call):  # what runs already needs no room
            began_at = early.began_at
            self.emit(CallDispatched(turn, call.id, call.name, call.arguments, was_foreseen=True))
            outcome = await early.task
        else:
            async with self._rooms.get(call.name, nullcontext()), self._room:
                began_at = time.monotonic()
                self.emit(CallDispatched(turn, call.id, call.name, call.arguments))
                outcome = await carry_out(tool, call.arguments, self.surroundings)
        duration_s = time.monotonic() - began_at
        self.emit(CallFinished(turn, call.id, call.name, outcome.text, outcome.is_error, duration_s, outcome.num_tries))
        return outcome

    async def _refusal(self, tool: AgentTool | None, call: ToolCall) -> str:
        """Why a call may not run; empty if it may."""
        if tool is None:
            return f"there is no tool {call.name!r}; there are: {', '.join(sorted(self.tools)) or 'none'}"
        if not tool.traits.needs_approval:
            return ""
        if self.approve is None:
            return "this tool needs approval, and nobody is there to give it"
        try:
            verdict = await self.approve(call)
        except Exception as error:
            log.exception("the approval of %s failed", call.name)
            return f"the call could not be approved: {error}"
        if verdict is True:
            return ""
        return f"the call was not approved{': ' + verdict if isinstance(verdict, str) and verdict else ''}"


async def carry_out(tool: AgentTool, arguments: str, surroundings: Surroundings) -> Outcome:
    """Run a tool. A tool that crashed or ran late is tried again if that does no harm; what it refused is not."""
    pause_s = _FIRST_PAUSE_S
    max_tries = MAX_TRIES if tool.traits.idempotent or tool.traits.read_only else 1
    for num_tries in range(1, max_tries + 1):
        outcome, can_retry = await _try(tool, arguments, surroundings, num_tries)
        if not can_retry or num_tries == max_tries or _is_cancelled():
            break
        await asyncio.sleep(pause_s)
        pause_s *= 2
    return outcome


async def _try(tool: AgentTool, arguments: str, surroundings: Surroundings, num_tries: int) -> tuple[Outcome, bool]:
    """The outcome, and whether another try might go better."""
    try:
        return Outcome(render_result(await _run_in_time(tool, arguments, surroundings)), num_tries=num_tries), False
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        reason, can_retry = f"{tool.spec.name} cancelled itself", True
    except ToolExited:
        raise
    except (Exception, BaseExceptionGroup) as error:  # not ours: whatever it raises is for the model
        reason, can_retry = describe_failure(error)
    return Outcome(render_result(f"Error: {reason}"), is_error=True, num_tries=num_tries), can_retry


async def _run_in_time(tool: AgentTool, arguments: str, surroundings: Surroundings) -> Any:
    """In a task of its own: a tool may swallow its cancellation, and is then left behind."""
    running = asyncio.create_task(run_tool(tool, arguments, surroundings), name=f"tool {tool.spec.name}")
    try:
        done, _ = await asyncio.wait([running], timeout=tool.traits.timeout_s)
    except asyncio.CancelledError:
        await stop([running], _MAX_CANCELLED_S)
        raise
    if not done:
        await stop([running], _MAX_LATE_S, LATE)
    if done or (running.done() and not running.cancelled() and not running.exception()):
        return running.result()
    raise ToolCrashed(describe_timeout(tool))


async def run_tool(tool: AgentTool, arguments: str, surroundings: Surroundings) -> Any:
    """What the tool returns. Raises what it raises, but ToolExited for what would end the program out of any task."""
    try:
        return await tool.run(arguments, surroundings)
    except (KeyboardInterrupt, SystemExit) as error:
        raise ToolExited(f"the tool {tool.spec.name} raised {error!r}, which ends the run") from error


def describe_failure(error: BaseException) -> tuple[str, bool]:
    """The error message that the model gets for a failed tool, and whether to retry."""
    match error:
        case ToolError() | HotloopError():
            return str(error) or type(error).__name__, isinstance(error, ToolCrashed)
        case TimeoutError():
            return "TimeoutError", True
    return f"{type(error).__name__}: {error}", True


def describe_timeout(tool: AgentTool) -> str:
    return f"{tool.spec.name} did not answer within {tool.traits.timeout_s:g} s"


def _is_cancelled() -> bool:
    """Whether we were told to stop, though the tool may have made something else of it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def stop(running: Iterable[asyncio.Task[Any]], max_s: float = _MAX_STOP_S, why: str | None = None) -> None:
    """Cancel all of them. A task that does not stop is left behind and logged."""
    tasks = list(running)
    for task in tasks:
        task.cancel(why)
    if tasks:
        _, stuck = await asyncio.wait(tasks, timeout=max_s)
        for task in stuck:
            log.warning("%s does not stop when it is cancelled", task.get_name())
