"""One run: ask the model, carry out its calls while it still writes, give it the results, until it has no more calls.

Whatever happens, a run ends in exactly one `RunEnded`, and nothing of it runs on.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from hotloop.agent import events
from hotloop.agent import journal as notes
from hotloop.agent.checks import check_guards
from hotloop.agent.conversation import Conversation, Mark
from hotloop.agent.fallback import describe_kind
from hotloop.agent.journal import ApprovalPending, RunJournal, RunStopped
from hotloop.agent.limits import LimitReached, Run, RunUsage, price
from hotloop.agent.model import Ask
from hotloop.agent.past import Past
from hotloop.agent.prefill_ahead import prefill_ahead, read_until
from hotloop.agent.retelling import Emit
from hotloop.agent.settings import Equipment, RunSettings
from hotloop.agent.spans import RunTrace
from hotloop.agent.speculation import RunSpeculation
from hotloop.agent.tools.consent import Consent
from hotloop.agent.tools.dispatch import Caller, Dispatcher, Pending, stop
from hotloop.agent.tools.handoff import Handoff
from hotloop.agent.tools.tool import RunContext, ToolError
from hotloop.agent.turn import Taken, Turn, known_outcomes
from hotloop.core.errors import ConfigError, HotloopError, RemoteError
from hotloop.core.message import Message, ToolCall
from hotloop.core.request import Priority
from hotloop.trace.journal import JournalRow, StopEnd
from hotloop.wire.event import EndReason
from hotloop.wire.hints import choose_class
from hotloop.wire.usage import ApiUsage

log = logging.getLogger(__name__)

UNKNOWN_WINDOW_TOKENS = 131_072
"""The context window that is assumed when the model's server does not report one."""

_HEED_EVERY_S = 0.5

HandTo = Callable[[Handoff], Awaitable[Equipment]]


class Output(NamedTuple):
    value: Any


class RunLoop:
    """A run that has not begun."""

    is_plan = False

    def __init__(
        self,
        equipment: Equipment,
        conversation: Conversation,
        context: Sequence[Any] = (),
        *,
        opening: Sequence[Message],
        emit: Emit,
        hand_to: HandTo,
        fresh: bool = False,
        past: Past | None = None,
    ) -> None:
        """`opening` are the run's first messages: the user's prompt, and in a new conversation the instructions. Of a
        run that goes on, `past` is what its journal says; the conversation has its messages then. `hand_to` gives what
        another agent brings."""
        settings = equipment.settings
        run_id = past.row.run_id if past else f"run-{secrets.token_hex(8)}"
        # Removed from the context: a sub-agent that is run speculatively reports no events, as it may never be called.
        within = next((thing for thing in context if isinstance(thing, Caller)), None)
        context = [thing for thing in context if not isinstance(thing, Caller)]
        if within:
            settings = _settings_within(settings, within)
            equipment = replace(equipment, settings=settings)
            emit = _tell_both(emit, partial(within.tell, run_id))
            within.stops_with(self.stop)
        self.conversation = conversation
        self.spent = past.spent if past else RunUsage()
        self._run = _make_run(run_id, settings, conversation, self.spent, context)
        self._run_context = RunContext([self._run, *context])
        equipment.check(self._run_context)
        self._hand_to = hand_to
        self._past = past
        begun = opening or (past.began.opening if past else ())
        self._prompt = prompt = next((each.content for each in reversed(begun) if each.role == "user"), "")
        row = past.row if past else None
        self._trace = RunTrace(settings.tracer, agent=settings.name, prompt=prompt, prices=settings.prices, row=row)
        journal = within.journal.store if within else self._trace.tracer.journal
        self._journal = RunJournal(journal, run_id, past.num_told if past else 0)
        self._row = row or self._make_row(settings, run_id, within)
        self._began = notes.Began(conversation.messages, conversation.num_tokens, tuple(opening), self.is_plan)
        mark = conversation.mark()
        conversation.add(*opening)
        self._emit = self._trace.listening(_timed(emit))
        self._is_kept = past is not None  # in the journal
        self._is_cut = self._is_over = False
        self._deadline: asyncio.Timeout | None = None
        self._failure: HotloopError | None = None  # what a tool, the journal, or being stopped ended the run with
        self._stop: StopEnd | None = None  # how the run is to end, once that can be
        self._sent = [*past.sent] if past else []  # messages for the next turn
        self._beside: list[asyncio.Task[None]] = []  # what runs beside the turns: guards, and who listens to others
        self._guard: asyncio.Task[None] | None = None  # of what the run was asked, beside its first turn
        results = within.results if within else settings.results
        self._results = results.open(run_id, conversation.session_id, fresh=fresh)
        self._equip(equipment, mark)

    def _equip(self, equipment: Equipment, mark: Mark) -> None:
        """Have turns taken with what this agent brings."""
        settings = replace(equipment.settings, model=self._trace.watch(equipment.settings.model))
        self._settings, self._final = settings, equipment.final
        tools, final = equipment.tools, equipment.final
        if final and settings.validators:
            final.validate = self._validate
        offered = sorted([*tools, *([final] if final else [])], key=lambda tool: tool.spec.name)
        self._tools = {tool.spec.name: tool for tool in offered}
        guesses, past = settings.speculation, self._past
        self._ahead: RunSpeculation | None = None
        if guesses:
            self._ahead = guesses.open(self._tools, self._run_context, self._note_speculated, self._results)
        running = past.open.running if past and past.open else ()
        self._dispatcher = Dispatcher(
            self._tools,
            self._run_context,
            emit=_tell_both(self._emit, self._ahead.listen) if self._ahead else self._emit,
            claim=lambda call: self._turn.claim(call),
            count=partial(self.spent.count_call, self._run.limits),
            abort=self._abort,
            spent=self.spent,
            results=self._results,
            concurrency=self._run.limits.concurrency,
            max_result_tokens=self._max_result_tokens,
            journal=self._journal,
            called=self._note_call,
            consent=Consent(settings.approve, settings.on_uncertain, set(running), past.verdicts if past else {}),
            root_id=self._row.root_id,
        )
        self._turn = self._next_turn(mark)

    def _next_turn(self, mark: Mark) -> Turn:
        return Turn(
            mark,
            tools=self._tools,
            final=self._final,
            dispatcher=self._dispatcher,
            ahead=self._ahead,
            journal=self._journal,
            emit=self._emit,
        )

    def _make_row(self, settings: RunSettings, run_id: str, within: Caller | None) -> JournalRow:
        is_child = within and within.journal.is_kept and self._run.caller
        return JournalRow(
            run_id=run_id,
            root_id=within.root_id if within and is_child else run_id,
            caller_id=self._run.caller.id if is_child and self._run.caller else "",
            call_id=within.call.id if within and is_child else "",
            trace_id=self._trace.run_context.trace_id,
            span_id=self._trace.run_context.span_id,
            agent=settings.name,
            session=self._run.session_id,
            source=settings.source,
        )

    def send(self, message: Message) -> None:
        """Say something to the model at the next turn, which there is one of then. Raises ConfigError if it is over."""
        if self._is_over:
            raise ConfigError("the run has ended: send the message with the conversation's next run")
        if self._is_kept:
            self._journal.note(notes.Sent(message))
        self._sent.append(message)

    def stop(self, end: StopEnd) -> None:
        """End between two turns (`paused`), or as soon as the calls that have effects have come to their end."""
        if self._stop in (end, "cancelled"):
            return
        self._stop = end
        self._dispatcher.stop_sub_agents(end)
        if end == "cancelled":
            self._abort(RunStopped(self._run.id, end))

    async def go(self) -> None:
        """Run to the end, which is told by an event and never raised, but for being cancelled."""
        self._emit(events.RunStarted(self._run.id, self._run.session_id))
        ended: events.RunEnded | None = None
        try:
            ended = await self._end()
            if self._stop:
                await self._dispatcher.finish()
        finally:
            self._run.cancel()
            try:
                await stop(self._beside)
                await self._close()
            finally:
                self._is_over = True
                cancelled = HotloopError("the run was cancelled")
                ended = ended or events.RunEnded("cancelled", error=cancelled, spent=self.spent)
                self._journal.end(ended.end, str(ended.error or ""))
                self._emit(replace(ended, at=time.monotonic()))

    async def _close(self) -> None:
        try:
            await self._dispatcher.close()
        finally:
            self._keep_begun()
            if self._ahead:
                await self._ahead.close()

    def _keep_begun(self) -> None:
        """Keep the calls of a turn that was broken off: whoever goes on must not make them again unknowingly."""
        if left := self._turn.leave_behind():
            self.conversation.add(*left)
            self._charge(self._turn.answer.ended.usage, self._turn.begun)
        else:
            self.conversation.rewind(self._turn.mark)

    async def _end(self) -> events.RunEnded:
        deadline = self._deadline = asyncio.timeout(self._run.limits.time_s)
        try:
            async with deadline:
                self._keep()
                self._begin_beside()
                output = await self._turns()
                self._is_over = True
                await self._pass_guards(output)
                return events.RunEnded("done", output, is_cut=self._is_cut, spent=self.spent)
        except Exception as error:
            return self._ended_by(error, is_late=deadline.expired())

    def _keep(self) -> None:
        """The journal has the run from here on; first of all what it was sent before it began."""
        if self._past is None:
            self._journal.begin(self._row, self._began)
            for message in self._sent:
                self._journal.note(notes.Sent(message))
        self._is_kept = True

    def _ended_by(self, error: Exception, *, is_late: bool) -> events.RunEnded:
        if not isinstance(error, HotloopError):
            time_s = self._run.limits.time_s
            late = LimitReached("time_s", f"the run has used its limit of {time_s} seconds")
            if not self._failure and not (is_late and isinstance(error, TimeoutError)):
                log.error("a run failed", exc_info=error)
                self._failure = HotloopError(f"the run failed: {error!r}")
            error = self._failure or late
        end: events.RunEnd = "failed"
        match error:
            case RunStopped():
                end, error = error.end, RunStopped(self._run.id, error.end)  # it may be of a sub-agent's run
            case ApprovalPending():
                end = "waiting"
            case LimitReached():
                end = "limit"
        return events.RunEnded(end, error=error, spent=self.spent)

    def _abort(self, error: HotloopError) -> None:
        """End the run at once, whatever it waits for: its time is up."""
        self._failure = self._failure or error
        if self._deadline:
            with suppress(RuntimeError):  # it has just ended
                self._deadline.reschedule(asyncio.get_running_loop().time())

    async def _turns(self) -> Any:
        """Turn after turn, until the model asks for nothing more."""
        taken = await self._reopen(self._past) if self._past else None
        while True:
            if self._stop and not taken:
                raise RunStopped(self._run.id, self._stop)
            taken = taken or await self._take_turn()
            await self._hand_over(taken.calls)
            output = await self._read_output(*taken)
            taken = None
            if output is not None and self._is_heard:
                await self._hear()
            if output is not None and not self._sent:
                return output.value

    async def _read_output(self, reason: EndReason, message: Message, pending: Sequence[Pending]) -> Output | None:
        """The answer of the run, if a turn has given one that is accepted."""
        final = self._final
        if final and (given := [each for each in pending if final.has_accepted(each.call) and not each.is_useless]):
            return Output(final.accepted[given[-1].call.arguments])
        if pending:
            return None
        self._is_cut = reason in ("length", "window")
        if self._is_cut and (self._final or not message.content):
            raise LimitReached("max_tokens", "the model's answer was cut off; raise max_tokens")
        if self._final is None:
            try:
                return Output(message.content if self._is_cut else await self._validate(message.content))
            except ToolError as error:
                self._say(Message("user", f"This answer cannot be accepted: {error}. Give another one."))
                return None
        self._say(Message("user", f"Give the answer by calling {self._final.spec.name}."))
        return None

    async def _hand_over(self, pending: Sequence[Pending]) -> None:
        """Give the conversation to the agent that the turn has handed it to, if it has: to the first, if to several."""
        called = [self._tools.get(each.call.name) for each in pending if not each.is_useless]
        handoff = next((tool for tool in called if isinstance(tool, Handoff)), None)
        if handoff is None:
            return
        equipment = (await self._hand_to(handoff)).following(self._settings)
        equipment.check(self._run_context)
        said = [message for i, message in enumerate(self.conversation.messages) if i or message.role != "system"]
        if equipment.instructions:
            said.insert(0, Message("system", equipment.instructions))
        self.conversation.replace(said)
        self._journal.note(notes.HandedOver(handoff.spec.name, said))
        if self._ahead:
            await self._ahead.close()
        self._equip(equipment, self.conversation.mark())
        self._emit(events.HandedOver(self.spent.num_turns, handoff.spec.name))

    async def _validate(self, output: Any) -> Any:
        """The output as it is accepted. Raises ToolError if it is not."""
        for validator in self._settings.validators:
            changed = await validator.call(self._run_context, output)
            output = output if changed is None else changed
        return output

    def _begin_beside(self) -> None:
        if guards := self._settings.input_guards:
            self._guard = asyncio.create_task(check_guards(guards, self._run_context, self._prompt))
            self._guard.add_done_callback(self._look_at_guard)
            self._beside.append(self._guard)
        if self._is_heard:
            self._beside.append(asyncio.create_task(self._heed()))

    @property
    def _is_heard(self) -> bool:
        """Whether other processes may say something to it."""
        return self._journal.is_kept and self._row.run_id == self._row.root_id

    async def _heed(self) -> None:
        while True:
            await asyncio.sleep(_HEED_EVERY_S)
            if not await self._hear():
                return

    async def _hear(self) -> bool:
        """Do what other processes want of the run: `hotloop runs send`, `pause` and `cancel`. False if they cannot be
        heard."""
        try:
            for note in await self._journal.heard():
                if isinstance(note, notes.Sent):
                    self._sent.append(note.message)
                elif isinstance(note, notes.StopAsked):
                    self.stop(note.end)
        except HotloopError as error:
            log.warning("messages from other processes cannot be read: %s", error)
            return False
        return True

    def _look_at_guard(self, guard: "asyncio.Task[None]") -> None:
        if not guard.cancelled() and (error := guard.exception()):
            self._abort(error if isinstance(error, HotloopError) else HotloopError(f"a guard failed: {error!r}"))

    async def _pass_guards(self, output: Any) -> None:
        """Nothing is answered before what was asked has been found good, nor what is not found good itself."""
        if self._guard:
            await self._guard
        await check_guards(self._settings.output_guards, self._run_context, output)

    def _say(self, *messages: Message) -> None:
        """What is no answer of the model's."""
        self.conversation.add(*messages)
        self._journal.note(notes.Added(messages))

    async def _take_turn(self) -> Taken:
        await self._begin_turn()
        turn, settings = self._turn, self._settings
        await turn.listen(settings.model, self._ask)
        said, ended = turn.answer.message, turn.answer.ended
        self._journal.note(
            notes.Answered(turn.number, said, ended.reason, ended.usage, settings.model.can_prefill_ahead)
        )
        taken = Taken(ended.reason, said, turn.begun)
        await self._end_turn(said, taken.calls)
        return taken

    async def _reopen(self, past: Past) -> Taken | None:
        """The last turn of a run that goes on: its calls that have results keep them, and the others are made. One
        whose answer is not known is asked for again, if all that it has called may be called again."""
        opened, turn = past.open, self._turn
        if opened is None:
            return None
        if not opened.answer and all(map(turn.can_repeat, opened.calls.values())):
            known = known_outcomes(opened)
            turn.dropped = [Pending.of(call, known[call.id]) for call in opened.calls.values() if call.id in known]
            self._dispatcher.consent.running.clear()
            self.spent.num_turns -= 1  # it is counted when it begins
            self._journal.ask_again(opened.number)
            return None
        turn.number, said = opened.number, opened.message
        self._emit(events.TurnStarted(turn.number))
        warming = self._warm(past, said)
        turn.reopen(opened)
        ended = turn.answer.ended
        if not opened.answer:
            self._journal.note(notes.Answered(turn.number, said, ended.reason, ended.usage))
        taken = Taken(ended.reason, said, turn.begun)
        try:
            await self._end_turn(said, taken.calls, is_counted=opened.is_counted)
        finally:
            await stop(warming)
        self._dispatcher.consent.running.clear()  # a later call may have the id of one of them
        return taken

    def _warm(self, past: Past, said: Message) -> "list[asyncio.Task[None]]":
        """Have the server prefill, or read from where it keeps it, what the next prompt begins with, meanwhile."""
        if not (past.can_prefill and said.tool_calls and self._settings.can_prefill_ahead):
            return []
        return [asyncio.create_task(read_until(self._settings.model, self._ask(said), None))]

    async def _note_call(self, call: ToolCall, waits: bool) -> None:
        if waits and self._guard:  # what may change something waits until what was asked is found good
            await asyncio.wait({self._guard})
            self._guard.result()
        await self._turn.note_call(call, waits=waits)

    def _note_speculated(self, event: events.CallSpeculated) -> None:
        self._journal.note(notes.Speculated(event.turn, event.name, event.arguments))
        self._emit(event)

    async def _begin_turn(self) -> None:
        self._run.check()
        self.spent.num_turns += 1
        self._turn.number = turn = self.spent.num_turns
        sent, self._sent = self._sent, []
        if sent:
            self.conversation.add(*sent)
            self._journal.note(notes.Added(sent, len(sent)))
        await self._compact(turn)
        self._emit(events.TurnStarted(turn))
        for message in sent:
            self._emit(events.MessageJoined(turn, message.content))
        if self._ahead:
            self._ahead.begin_turn(self.conversation.messages, turn)

    async def _end_turn(self, said: Message | None, calls: Sequence[Pending], *, is_counted: bool = False) -> None:
        """Wait for the calls; then what was said and their results are in the conversation, and the next turn may
        begin."""
        turn = self._turn
        if said and calls:
            if self._settings.can_prefill_ahead:
                await prefill_ahead(self._settings.model, calls, lambda results: self._ask(said, *results))
            await asyncio.wait([each.task for each in calls])
        if waiting := [found for each in calls for found in each.waits_for]:
            raise ApprovalPending(self._run.id, waiting)
        usage = turn.answer.ended.usage
        if said:
            self.conversation.add(said)
            self.conversation.num_tokens = usage.num_tokens or self.conversation.num_tokens
            self.conversation.add(*(each.message for each in calls))
        self._turn = self._next_turn(self.conversation.mark() if said else turn.mark)
        await stop(each.task for each in turn.dropped)
        if self._ahead:
            self._ahead.end_turn(self.conversation.messages)
        if not is_counted:
            self._charge(usage, turn.begun)
        self._journal.turned(turn.number, self.spent)
        self._emit(events.TurnFinished(turn.number, usage, len(calls)))

    async def _compact(self, turn: int) -> None:
        compaction = self._settings.compaction
        if not compaction or self.conversation.num_tokens <= compaction.fill * compaction.window_tokens:
            return
        before = self.conversation.messages
        messages, usage = await compaction.shrink(self._settings.model, self._ask(), self.conversation.num_tokens)
        self._charge(usage)
        if messages != before:
            self.conversation.replace(messages)
            self._journal.note(notes.Replaced(messages))
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
                log.info("the model's context window is unknown: %s", error)
        return int(self._settings.max_result_share * (window or UNKNOWN_WINDOW_TOKENS))

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
            on_fallback=self._note_fallback,
        )

    def _note_fallback(self, model: str, error: RemoteError) -> None:
        self._emit(events.ModelPassedOver(self.spent.num_turns, model, str(error), describe_kind(error)))

    def _has_to_call(self, more: Sequence[Message]) -> bool:
        """Until something was called; `more` are results."""
        is_asked = self._settings.tool_choice == "required" and not self.spent.num_calls
        return is_asked and not more and bool(self._tools)

    def _charge(self, usage: ApiUsage, calls: Sequence[Pending] = ()) -> None:
        known = [each for each in calls if each.call.name in self._tools]
        cost = sum(self._tools[each.call.name].options.cost * each.num_tries for each in known)
        self._run.charge(usage, price(usage, self._settings.prices) + cost)


def _settings_within(settings: RunSettings, within: Caller) -> RunSettings:
    """What a sub-agent's agent does not say is its caller's."""
    return replace(
        settings,
        approve=settings.approve or within.approve,
        priority=settings.priority if settings.priority is not None else within.options.priority,
        task=settings.task or within.options.task,
    )


def _make_run(
    run_id: str, settings: RunSettings, conversation: Conversation, spent: RunUsage, context: Sequence[Any]
) -> Run:
    caller = next((thing for thing in context if isinstance(thing, Run)), None)
    usual = max(Priority.WORKFLOW, caller.priority) if caller else Priority.INTERACTIVE
    priority = choose_class(settings.priority, settings.task, usual=usual)
    return Run(run_id, conversation.session_id, settings.limits, spent, caller, priority)


def _timed(emit: Emit) -> Emit:
    """Events that say how long after the beginning of their run they are."""
    began_at = time.monotonic()
    return lambda event: emit(replace(event, at_s=max(event.at - began_at, 0.0)))


def _tell_both(first: Emit, second: Emit) -> Emit:
    def emit(event: events.Event) -> None:
        first(event)
        second(event)

    return emit
