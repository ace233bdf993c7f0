"""One run: ask the model, carry out its calls while it still writes, give it the results, until it has no more calls.

Whatever happens, a run ends in exactly one `RunEnded`, and nothing of it runs on.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from hotloop.agent import events
from hotloop.agent.compaction import Compaction
from hotloop.agent.conversation import Conversation
from hotloop.agent.limits import LimitReached, Limits, Run, RunUsage, price
from hotloop.agent.model import Ask, Model, PartialAnswer
from hotloop.agent.spans import RunTrace
from hotloop.agent.speculation import SpeculativeTools
from hotloop.agent.tools.dispatch import Approve, Caller, Dispatcher, Pending
from hotloop.agent.tools.results import ResultCache
from hotloop.agent.tools.tool import AgentTool, FinalAnswer, RunContext, ToolExited
from hotloop.core import stream
from hotloop.core.errors import HotloopError
from hotloop.core.message import Message
from hotloop.core.prices import Prices
from hotloop.core.request import Priority
from hotloop.trace.tracer import NullTracer, Tracer
from hotloop.wire import event as wire
from hotloop.wire.hints import choose_class
from hotloop.wire.usage import ApiUsage

log = logging.getLogger(__name__)

MIN_CHARS = 400
"""Results shorter than this are prefilled faster than it is asked for."""

UNKNOWN_WINDOW_TOKENS = 131_072
"""The context window that is assumed when the model's server does not report one."""

Emit = Callable[[events.Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What all runs of an agent have in common."""

    model: Model
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=Prices)
    approve: Approve | None = None
    speculation: SpeculativeTools | None = None
    results: ResultCache = field(default_factory=ResultCache)
    compaction: Compaction | None = None
    max_result_share: float = 0.25
    can_prefill_ahead: bool = True
    tool_choice: Literal["auto", "required"] = "auto"
    max_tokens: int | None = None
    temperature: float | None = None
    priority: Priority | None = None
    task: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    tracer: Tracer = field(default_factory=NullTracer)


class RunLoop:
    """A run that has not begun."""

    def __init__(
        self,
        settings: RunSettings,
        conversation: Conversation,
        tools: Sequence[AgentTool],
        context: Sequence[Any] = (),
        *,
        opening: Sequence[Message],
        final: FinalAnswer | None = None,
        emit: Emit,
        fresh: bool = False,
    ) -> None:
        """`opening` are the run's first messages: the user's prompt, and in a new conversation the instructions."""
        run_id = f"run-{secrets.token_hex(8)}"
        # Removed from the context: a sub-agent that is run speculatively reports no events, as it may never be called.
        within = next((thing for thing in context if isinstance(thing, Caller)), None)
        context = [thing for thing in context if not isinstance(thing, Caller)]
        if within:
            given = settings.priority if settings.priority is not None else within.options.priority
            task = settings.task or within.options.task
            settings = replace(settings, approve=settings.approve or within.approve, priority=given, task=task)
            emit = _tell_both(emit, partial(within.tell, run_id))
        self.spent = RunUsage()
        caller = next((thing for thing in context if isinstance(thing, Run)), None)
        usual = max(Priority.WORKFLOW, caller.priority) if caller else Priority.INTERACTIVE
        priority = choose_class(settings.priority, settings.task, usual=usual)
        self._run = Run(run_id, conversation.session_id, settings.limits, self.spent, caller, priority)
        run_context = RunContext([self._run, *context])
        run_context.check(tools)
        self.conversation = conversation
        self._mark = conversation.mark()  # after the last whole turn
        conversation.add(*opening)
        prompt = opening[-1].content
        self._trace = RunTrace(settings.tracer, agent=settings.name, prompt=prompt, prices=settings.prices)
        self._settings = settings = replace(settings, model=self._trace.watch(settings.model))
        self._emit = emit = self._trace.listening(emit)
        self._final = final
        self._begun: list[Pending] = []  # calls of this turn, until they are in the conversation
        self._answer = PartialAnswer()
        self._exited: ToolExited | None = None
        offered = sorted([*tools, *([final] if final else [])], key=lambda tool: tool.spec.name)
        self._tools = {tool.spec.name: tool for tool in offered}
        self._ahead = settings.speculation.open(self._tools, run_context, emit) if settings.speculation else None
        self._dispatcher = Dispatcher(
            self._tools,
            run_context,
            emit=emit,
            claim=self._ahead.claim if self._ahead else lambda call: None,
            count=partial(self.spent.count_call, settings.limits),
            abort=self._abort,
            spent=self.spent,
            results=(within.results if within else settings.results).open(run_id, conversation.session_id, fresh=fresh),
            concurrency=settings.limits.concurrency,
            max_result_tokens=self._max_result_tokens,
            approve=settings.approve,
        )

    async def go(self) -> None:
        """Run to the end, which is told by an event and never raised, but for being cancelled."""
        self._emit(events.RunStarted(self._run.id, self._run.session_id))
        ended: events.RunEnded | None = None
        try:
            ended = await self._end()
        finally:
            self._run.cancel()
            try:
                await self._close()
            finally:
                cancelled = HotloopError("the run was cancelled")
                self._emit(ended or events.RunEnded("cancelled", error=cancelled, spent=self.spent))

    async def _close(self) -> None:
        try:
            await self._dispatcher.close()
        finally:
            self._keep_begun()
            if self._ahead:
                await self._ahead.close()

    def _keep_begun(self) -> None:
        """Keep the calls of a turn that was broken off: whoever goes on must not make them again unknowingly. A turn
        without any leaves the conversation as it was, so that it can be tried again."""
        if not self._begun:
            self.conversation.rewind(self._mark)
        else:
            calls, thoughts = (each.call for each in self._begun), self._answer.thoughts
            said = Message("assistant", tool_calls=tuple(calls), thoughts=tuple(thoughts))
            self.conversation.add(said, *(each.message for each in self._begun))
            self._charge(self._answer.ended.usage, self._begun)

    async def _end(self) -> events.RunEnded:
        limits = self._settings.limits
        deadline = self._deadline = asyncio.timeout(limits.time_s)
        try:
            async with deadline:
                return events.RunEnded("done", await self._turns(), spent=self.spent)
        except LimitReached as limit:
            return events.RunEnded("limit", error=limit, spent=self.spent)
        except HotloopError as failure:
            return events.RunEnded("failed", error=failure, spent=self.spent)
        except Exception as unforeseen:
            if self._exited:
                return events.RunEnded("failed", error=self._exited, spent=self.spent)
            if isinstance(unforeseen, TimeoutError) and deadline.expired():
                late = LimitReached("time_s", f"the run has used its limit of {limits.time_s} seconds")
                return events.RunEnded("limit", error=late, spent=self.spent)
            log.exception("a run failed")
            return events.RunEnded("failed", error=HotloopError(f"the run failed: {unforeseen!r}"), spent=self.spent)

    def _abort(self, error: ToolExited) -> None:
        """End the run at once, whatever it waits for: its time is up."""
        self._exited = error
        self._deadline.reschedule(asyncio.get_running_loop().time())

    async def _turns(self) -> Any:
        """Turn after turn, until the model asks for nothing more."""
        while True:
            turn = await self._begin_turn()
            answer, pending = await self._listen(turn)
            await self._end_turn(turn, answer.message, pending)
            if self._final and self._final.is_given:
                return self._final.value
            if pending:
                continue
            if answer.ended.reason in ("length", "window"):
                raise LimitReached("max_tokens", "the model's answer was cut off; raise max_tokens")
            if self._final is None:
                return answer.text
            self.conversation.add(Message("user", f"Give the answer by calling {self._final.spec.name}."))

    async def _begin_turn(self) -> int:
        self._run.check()
        self.spent.num_turns += 1
        turn = self.spent.num_turns
        await self._compact(turn)
        self._emit(events.TurnStarted(turn))
        if self._ahead:
            self._ahead.begin_turn(self.conversation.messages, turn)
        return turn

    async def _end_turn(self, turn: int, said: Message | None, pending: Sequence[Pending]) -> None:
        """Wait for the calls; then what was said and their results are in the conversation."""
        if said and pending:
            if self._settings.can_prefill_ahead:
                await prefill_ahead(self._settings.model, pending, lambda results: self._ask(said, *results))
            await asyncio.wait([each.task for each in pending])
        usage = self._answer.ended.usage
        if said:
            self.conversation.add(said)
            self.conversation.num_tokens = usage.num_tokens or self.conversation.num_tokens
            self.conversation.add(*(each.message for each in pending))
            self._mark = self.conversation.mark()
        made, self._begun = self._begun, []
        if self._ahead:
            self._ahead.end_turn(self.conversation.messages)
        self._charge(usage, made)
        self._emit(events.TurnFinished(turn, usage, len(pending)))

    async def _compact(self, turn: int) -> None:
        compaction = self._settings.compaction
        if not compaction or self.conversation.num_tokens <= compaction.fill * compaction.window_tokens:
            return
        before = self.conversation.messages
        messages, usage = await compaction.shrink(self._settings.model, self._ask(), self.conversation.num_tokens)
        self._charge(usage)
        if messages != before:
            self.conversation.replace(messages)
            num_cut = sum(message.role == "tool" and message not in before for message in messages)
            self._emit(events.Compacted(turn, len(before), len(messages), usage, num_cut))

    async def _max_result_tokens(self) -> int:
        compaction, window = self._settings.compaction, None
        if compaction:
            window = compaction.window_tokens
        else:
            try:
                window = await self._settings.model.find_window()
            except HotloopError as error:
                log.info("the model's context window is not known: %s", error)
        return int(self._settings.max_result_share * (window or UNKNOWN_WINDOW_TOKENS))

    async def _listen(self, turn: int) -> tuple[PartialAnswer, list[Pending]]:
        """The model's answer; each call is dispatched the moment it is whole."""
        answer = self._answer = PartialAnswer()
        self._begun = []
        async with aclosing(self._settings.model.stream(self._ask())) as said:
            async for event in said:
                if self._ahead:
                    self._ahead.hear(event, turn)
                if call := answer.push(event):
                    self._begun.append(self._dispatcher.start(call, turn))
                self._tell(event, answer, turn)
        return answer, self._begun

    def _tell(self, event: wire.Event, answer: PartialAnswer, turn: int) -> None:
        match event:
            case stream.TextDelta():
                self._emit(events.Text(turn, event.text))
            case stream.CallOpened():
                self._emit(events.CallOpened(turn, event.id, event.name))
            case stream.CallDelta():
                self._emit(events.CallArguments(turn, answer.call_id(event.index), event.arguments))

    def _ask(self, *more: Message) -> Ask:
        settings = self._settings
        return Ask(
            messages=(*self.conversation.messages, *more),
            tools=tuple(tool.spec for tool in self._tools.values()),
            choice="required" if self._final or self._has_to_call(more) else "auto",
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            session_id=self.conversation.session_id,
            parent_id=self._run.caller.session_id if self._run.caller else "",
            priority=self._run.priority,
            task=settings.task,
            extra=settings.extra,
            trace=self._trace.context,
        )

    def _has_to_call(self, more: Sequence[Message]) -> bool:
        """Until something was called; `more` are results."""
        is_asked = self._settings.tool_choice == "required" and not self.spent.num_calls
        return is_asked and not more and bool(self._tools)

    def _charge(self, usage: ApiUsage, calls: Sequence[Pending] = ()) -> None:
        known = [each for each in calls if each.call.name in self._tools]
        cost = sum(self._tools[each.call.name].traits.cost * each.num_tries for each in known)
        self._run.charge(usage, price(usage, self._settings.prices) + cost)


def _tell_both(first: Emit, second: Emit) -> Emit:
    def emit(event: events.Event) -> None:
        first(event)
        second(event)

    return emit


async def prefill_ahead(model: Model, pending: Sequence[Pending], ask: Callable[[tuple[Message, ...]], Ask]) -> None:
    """Have the model prefill results while others are still on their way: the next turn has only the last to prefill.

    results   1 .............. 2 .............. 3
    model        [prefill 1]      [prefill 2]     [prefill 3, answer]

    In the order of the calls, since that is the order of the prompt, and only where it pays: the model's server keeps
    its cache, something is still running, and there is enough to prefill. A prefill that fails only saves nothing.
    """
    num_read = 0
    for i, each in enumerate(pending):
        if not model.can_prefill_ahead:
            return
        await asyncio.wait({each.task})
        num_done = next((j for j in range(i, len(pending)) if not pending[j].task.done()), len(pending))
        messages = tuple(done.message for done in pending[:num_done])
        num_new = sum(len(message.content) for message in messages[num_read:])
        if num_done < len(pending) and num_new >= MIN_CHARS:
            await _read_until(model, ask(messages), pending[-1].task if num_done == len(pending) - 1 else None)
            num_read = num_done


async def _read_until(model: Model, ask: Ask, last: "asyncio.Task[object] | None") -> None:
    """Have a prompt prefilled; once the last result is here, the real turn does it better."""
    reading = asyncio.create_task(model.prefill(ask))
    try:
        await asyncio.wait({reading, last} if last else {reading}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        reading.cancel()
        await asyncio.wait({reading})  # not itself: its being cancelled must not pass for ours, nor ours for its
    try:
        if not reading.cancelled():
            reading.result()
    except HotloopError as error:
        log.info("prefilling ahead failed: %s", error)
