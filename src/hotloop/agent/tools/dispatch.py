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
import traceback
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Any

from hotloop.agent.conversation import estimate_tokens
from hotloop.agent.events import CallDispatched, CallFinished, Event, SubAgentEvent
from hotloop.agent.journal import ApprovalPending, Returned, RunJournal, RunStopped, WaitingCall, Waits
from hotloop.agent.limits import RunUsage
from hotloop.agent.tools.consent import BROKEN_OFF, Approve, Consent, Undecided
from hotloop.agent.tools.outcome import Outcome
from hotloop.agent.tools.result import cut, cut_to_tokens, render_cut, render_result, take_attachments
from hotloop.agent.tools.results import ResultCache, RunResults
from hotloop.agent.tools.tool import AgentTool, RunContext, ToolCrashed, ToolError, ToolExited, ToolOptions
from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.message import Message, ToolCall
from hotloop.trace.journal import StopEnd

log = logging.getLogger(__name__)

MAX_TRIES = 3
MIN_RESULT_TOKENS = 512
"""Results up to this are never cut."""
MAX_TRACEBACK_CHARS = 10_000
_FIRST_PAUSE_S = 0.1  # before another try; twice as long before the next
_MAX_STOP_S = 5.0  # for a tool that was cancelled
_MAX_CANCELLED_S = 2.5  # for one whose caller was cancelled: who did that waits for longer
_MAX_LATE_S = 0.5  # for one that was cancelled since its time is up, and may have something to say about it
LATE = "it took longer than its timeout_s"  # what a tool that is cancelled for that reason is told


@dataclass(slots=True)
class EarlyCall:
    """A call that runs before the model has asked for it."""

    key: str
    cost: float
    task: "asyncio.Task[Outcome]"
    where: Hashable = None
    """In the `ResultCache`, where its tool has its results kept."""
    began_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Caller:
    """The call that a sub-agent runs in, handed to it in its run_context: where its events go, and who approves."""

    call: ToolCall
    turn: int
    emit: Callable[[Event], None]
    approve: Approve | None
    journal: RunJournal
    root_id: str
    is_again: bool
    """Whether the call had begun before its run was broken off."""
    options: ToolOptions
    results: ResultCache
    stops_with: Callable[[Callable[[StopEnd], None]], None]
    """Takes what stops the sub-agent's run, to be called when the caller's is to stop."""

    def tell(self, run_id: str, event: Event) -> None:
        self.emit(SubAgentEvent(self.turn, self.call.id, self.call.name, run_id, event))


@dataclass(slots=True)
class Pending:
    call: ToolCall
    task: "asyncio.Task[Outcome]"

    @classmethod
    def of(cls, call: ToolCall, outcome: Outcome) -> "Pending":
        """A call whose outcome is known."""

        async def known() -> Outcome:
            return outcome

        return cls(call, asyncio.create_task(known()))

    @property
    def num_tries(self) -> int:
        """How often the tool was run for it; one that was broken off may have been."""
        return self.task.result().num_tries if self._is_known else 1

    @property
    def waits_for(self) -> tuple[WaitingCall, ...]:
        return self.task.result().waits_for if self._is_known else ()

    @property
    def is_useless(self) -> bool:
        """Whether it has ended without a result that another call could have, too."""
        return self.task.done() and (not self._is_known or self.task.result().is_error or bool(self.waits_for))

    @property
    def message(self) -> Message:
        """The result, or that there will be none: for a call that is done, or a run that is over."""
        outcome = self.task.result() if self._is_known else Outcome(BROKEN_OFF)
        attachments = outcome.attachments
        return Message("tool", outcome.text, tool_call_id=self.call.id, name=self.call.name, attachments=attachments)

    @property
    def _is_known(self) -> bool:
        return self.task.done() and not self.task.cancelled() and not self.task.exception()


@dataclass(slots=True, eq=False)
class Dispatcher:
    """Starts calls, and waits for them. `claim` gives the call that runs already, if one does."""

    tools: Mapping[str, AgentTool]
    run_context: RunContext
    emit: Callable[[Event], None]
    claim: Callable[[ToolCall], EarlyCall | None]
    count: Callable[[], None]
    abort: Callable[[HotloopError], None]
    spent: RunUsage
    concurrency: InitVar[int]
    max_result_tokens: Callable[[], Awaitable[int]]
    results: RunResults
    journal: RunJournal
    called: Callable[[ToolCall, bool], Awaitable[None]]
    """Told before a tool begins, and whether what it does may be done again."""
    consent: Consent = field(default_factory=Consent)
    root_id: str = ""
    silenced: "set[asyncio.Task[Outcome]]" = field(default_factory=set)
    """Calls of which nothing is told or written down any more, since their turn is asked for again."""
    _room: asyncio.Semaphore = field(init=False)
    _rooms: dict[str, asyncio.Semaphore] = field(init=False)
    _running: set[asyncio.Task[Outcome]] = field(default_factory=set)
    _lasting: "set[asyncio.Task[Any] | None]" = field(default_factory=set)
    """Calls that have begun and must come to their end, since they may change something."""
    _stops: "dict[asyncio.Task[Any] | None, Callable[[StopEnd], None]]" = field(default_factory=dict)
    """What stops the sub-agents that run, by their calls."""

    def __post_init__(self, concurrency: int) -> None:
        self._room = asyncio.Semaphore(concurrency)
        self._rooms = {
            name: asyncio.Semaphore(tool.options.max_concurrency)
            for name, tool in self.tools.items()
            if tool.options.max_concurrency
        }

    def start(self, call: ToolCall, turn: int) -> Pending:
        """Dispatch a call, to begin as soon as there is room. Raises LimitReached if there were too many."""
        self.count()
        task = asyncio.create_task(self._run(call, turn), name=f"tool {call.name}")
        self._running.add(task)
        task.add_done_callback(self._forget)
        return Pending(call, task)

    def _forget(self, task: "asyncio.Task[Outcome]") -> None:
        for tasks in (self._running, self._lasting, self.silenced):
            tasks.discard(task)
        self._stops.pop(task, None)

    def tell_again(self, pending: Pending, turn: int) -> None:
        """What was told of a call, for a reader who has begun the turn anew."""
        call = pending.call
        self.emit(CallDispatched(turn, call.id, call.name, call.arguments, was_speculative=True))
        if pending.task.done():
            outcome = pending.task.result()
            self.emit(CallFinished(turn, call.id, call.name, outcome.text, outcome.is_error, duration_s=0.0))

    def stop_sub_agents(self, end: StopEnd) -> None:
        for stop_run in list(self._stops.values()):
            stop_run(end)

    async def finish(self) -> None:
        """Until the calls that may change something have come to their end; others are not wanted any more."""
        for task in self._running - self._lasting:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        await stop(self._running)

    async def _run(self, call: ToolCall, turn: int) -> Outcome:
        try:
            return await self._outcome(call, turn)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # whatever it is, the run must not go on as if it had been a result
            self.abort(error if isinstance(error, HotloopError) else HotloopError(f"the run failed: {error!r}"))
            raise

    async def _outcome(self, call: ToolCall, turn: int) -> Outcome:
        tool = self.tools.get(call.name)
        began_at, saved_s = time.monotonic(), 0.0
        try:
            outcome = await self._refusal(tool, call)
        except Undecided as undecided:
            self._note_waiting(call, turn)
            outcome = Outcome("", waits_for=(WaitingCall(self.journal.run_id, undecided.call),))
        if outcome is None and tool:
            began_at = time.monotonic()
            if early := self.claim(call):  # what runs already needs no room
                began_at = early.began_at
                self._tell(CallDispatched(turn, call.id, call.name, call.arguments, was_speculative=True))
                outcome = await early.task
            elif reused := await self._reuse(tool, call, turn):
                outcome, saved_s = reused
            else:
                outcome, began_at = await self._run_tool(tool, call, turn)
        assert outcome, "a call that is not refused has a tool"
        if outcome.waits_for:
            return outcome
        duration_s = time.monotonic() - began_at
        outcome = await self._fit(outcome)
        returned = Returned(turn, call.id, outcome.text, outcome.is_error, outcome.num_tries, outcome.attachments)
        if not self._is_silenced:
            await self.journal.returned(returned, waits=tool is not None and tool.options.may_be_uncertain)
        finished = CallFinished(turn, call.id, call.name, outcome.text, outcome.is_error, duration_s, outcome.num_tries)
        cut: dict[str, Any] = {"num_chars_cut": outcome.num_chars_cut, "traceback": outcome.traceback}
        self._tell(replace(finished, saved_s=saved_s, **cut))
        return outcome

    async def _reuse(self, tool: AgentTool, call: ToolCall, turn: int) -> tuple[Outcome, float] | None:
        """The result of the same call that was made before, or is being made, and the time that saves."""
        reuse = self.results.find(tool, call.arguments, self.run_context)
        outcome = await reuse.wait() if reuse else None
        if not reuse or not outcome:
            return None
        self._tell(CallDispatched(turn, call.id, call.name, call.arguments, reused=reuse.kind))
        self.spent.num_reused += 1
        self.spent.saved_s += reuse.saved_s
        return outcome._replace(num_tries=0), reuse.saved_s

    async def _run_tool(self, tool: AgentTool, call: ToolCall, turn: int) -> tuple[Outcome, float]:
        """The outcome, and when it began to run."""
        async with self._rooms.get(call.name, nullcontext()), self._room:
            began_at = time.monotonic()
            if not tool.options.can_repeat:
                self._lasting.add(asyncio.current_task())
            if not self._is_silenced:
                await self.called(call, tool.options.may_be_uncertain)
            self._tell(CallDispatched(turn, call.id, call.name, call.arguments))
            things = RunContext((self._caller(tool, call, turn), *self.run_context.things))
            run = partial(carry_out, tool, call.arguments, things)
            return await self.results.fetch(tool, call.arguments, self.run_context, run), began_at

    def _caller(self, tool: AgentTool, call: ToolCall, turn: int) -> Caller:
        return Caller(
            call,
            turn,
            self.emit,
            approve=self.consent.approve,
            journal=self.journal,
            root_id=self.root_id,
            is_again=call.id in self.consent.running,
            options=tool.options,
            results=self.results.cache,
            stops_with=partial(self._stops.__setitem__, asyncio.current_task()),
        )

    def _note_waiting(self, call: ToolCall, turn: int) -> None:
        if not self.journal.is_kept:
            raise ConfigError("Approval.later() needs the run's journal: give the agent a tracer, or set HOTLOOP_TRACE")
        self.journal.note(Waits(turn, call), call.id)

    def _tell(self, event: Event) -> None:
        if not self._is_silenced:
            self.emit(event)

    @property
    def _is_silenced(self) -> bool:
        return asyncio.current_task() in self.silenced

    async def _fit(self, outcome: Outcome) -> Outcome:
        """Cut a result that is too long for the model's window. Short results do not ask for the window."""
        if estimate_tokens(outcome.text) <= MIN_RESULT_TOKENS:
            return outcome
        text, num_chars_cut = cut_to_tokens(outcome.text, max(await self.max_result_tokens(), MIN_RESULT_TOKENS))
        if not num_chars_cut:
            return outcome
        return outcome._replace(text=text, whole=outcome.text, num_chars_cut=num_chars_cut)

    async def _refusal(self, tool: AgentTool | None, call: ToolCall) -> Outcome | None:
        """What the model is told instead of a result; None if the call may run."""
        if tool is None:
            there = ", ".join(sorted(self.tools)) or "none"
            reason = f"Error: there is no tool {call.name!r}; there are: {there}"
            return Outcome(render_result(reason), is_error=True, num_tries=0)
        ruling = await self.consent.ask(tool, call)
        return ruling and Outcome(render_result(ruling.text), ruling.is_error, num_tries=0)


async def carry_out(tool: AgentTool, arguments: str, run_context: RunContext) -> Outcome:
    """Run a tool. A tool that crashed or ran late is tried again if that does no harm; what it refused is not."""
    pause_s = _FIRST_PAUSE_S
    max_tries = MAX_TRIES if tool.options.can_repeat else 1
    for num_tries in range(1, max_tries + 1):
        outcome, can_retry = await _try(tool, arguments, run_context, num_tries)
        if not can_retry or num_tries == max_tries or _is_cancelled():
            break
        await asyncio.sleep(pause_s)
        pause_s *= 2
    return outcome


async def _try(tool: AgentTool, arguments: str, run_context: RunContext, num_tries: int) -> tuple[Outcome, bool]:
    """The outcome, and whether another try might go better."""
    try:
        value, attachments = take_attachments(await _run_in_time(tool, arguments, run_context))
        text, num_chars_cut = render_cut(value)
        return Outcome(text, num_tries=num_tries, num_chars_cut=num_chars_cut, attachments=attachments), False
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        reason, can_retry = f"{tool.spec.name} cancelled itself", True
        where = ""
    except (ToolExited, RunStopped):  # a sub-agent's run that was stopped goes on when this one does
        raise
    except ApprovalPending as pending:  # of a sub-agent
        return Outcome("", waits_for=pending.waiting), False
    except (Exception, BaseExceptionGroup) as error:  # not ours: whatever it raises is for the model
        reason, can_retry = describe_failure(error)
        where = _log_crash(tool, error)
    outcome = Outcome(render_result(f"Error: {reason}"), is_error=True, num_tries=num_tries, traceback=where)
    return outcome, can_retry


async def _run_in_time(tool: AgentTool, arguments: str, run_context: RunContext) -> Any:
    """In a task of its own: a tool may swallow its cancellation, and is then left behind."""
    running = asyncio.create_task(run_tool(tool, arguments, run_context), name=f"tool {tool.spec.name}")
    try:
        done, _ = await asyncio.wait([running], timeout=tool.options.timeout_s)
    except asyncio.CancelledError:
        await stop([running], _MAX_CANCELLED_S)
        raise
    if not done:
        await stop([running], _MAX_LATE_S, LATE)
    if done or (running.done() and not running.cancelled() and not running.exception()):
        return running.result()
    raise ToolCrashed(describe_timeout(tool))


async def run_tool(tool: AgentTool, arguments: str, run_context: RunContext) -> Any:
    """What the tool returns. Raises what it raises, but ToolExited for what would end the program out of any task, and
    ToolCrashed for what is no Exception, such as what a library of its own is cancelled by."""
    try:
        return await tool.run(arguments, run_context)
    except (Exception, BaseExceptionGroup, asyncio.CancelledError, GeneratorExit):
        raise
    except (KeyboardInterrupt, SystemExit) as error:
        raise ToolExited(f"the tool {tool.spec.name} raised {error!r}, which ends the run") from error
    except BaseException as error:
        raise ToolCrashed(f"{type(error).__name__}: {error}") from error


def describe_failure(error: BaseException) -> tuple[str, bool]:
    """The error message that the model gets for a failed tool, and whether to retry."""
    match error:
        case ToolError() | HotloopError():
            return str(error) or type(error).__name__, isinstance(error, ToolCrashed)
        case TimeoutError():
            return "TimeoutError", True
    return f"{type(error).__name__}: {error}", True


def _log_crash(tool: AgentTool, error: BaseException) -> str:
    """Log the traceback of a tool that crashed, and return it for the trace, without the error's message, which may
    quote the arguments. Empty for a ToolError, or an error of ours."""
    crash = error.__cause__ if isinstance(error, ToolCrashed) else error
    if crash is None or (crash is error and isinstance(error, ToolError | HotloopError)):
        return ""
    log.warning("the tool %s crashed", tool.spec.name, exc_info=crash)
    frames = "".join(traceback.format_tb(crash.__traceback__))
    return cut(frames, MAX_TRACEBACK_CHARS)[0] + type(crash).__qualname__


def describe_timeout(tool: AgentTool) -> str:
    return f"{tool.spec.name} did not answer within {tool.options.timeout_s:g} s"


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
