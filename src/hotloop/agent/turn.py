"""One turn of a run: the model's answer, and the calls that it makes while it is still written.

    answer    Let me look.─[a]─[b]─ broke off    asked again: Let me look.─[a]─[b]─[c]─end
    begun                   a   a,b     -                              a   a,b  a,b,c
    dropped                            a,b                             b    -

What an answer that broke off has called may be called again, or the turn ends where it broke off. A call that comes
again takes what was dropped instead of running anew.
"""

import itertools
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from hotloop.agent import events
from hotloop.agent.conversation import Mark
from hotloop.agent.journal import RunJournal
from hotloop.agent.model import Ask, Model, PartialAnswer
from hotloop.agent.past import OpenTurn
from hotloop.agent.predict.history import call_key
from hotloop.agent.retelling import Emit, Retelling
from hotloop.agent.speculation import RunSpeculation
from hotloop.agent.tools.dispatch import Dispatcher, EarlyCall, Pending
from hotloop.agent.tools.outcome import Outcome
from hotloop.agent.tools.tool import AgentTool, FinalAnswer
from hotloop.agent.wire.http import Retries
from hotloop.core import stream
from hotloop.core.errors import RemoteError
from hotloop.core.message import Message, ToolCall
from hotloop.wire import event as wire
from hotloop.wire.arguments import read_arguments
from hotloop.wire.event import Ended, EndReason

log = logging.getLogger(__name__)

_BROKEN_STREAMS = Retries(max_tries=10, first_pause_s=0.2)
"""How often an answer is asked for that breaks off behind its first words: who sent it has died, others may live, or it
is started again, which takes a minute at most."""


class Taken(NamedTuple):
    """What came of a turn."""

    reason: EndReason
    said: Message
    calls: list[Pending]


@dataclass(slots=True, eq=False)
class Turn:
    """The turn under way, or the next one, which has no number yet. `mark` is what the conversation goes back to if
    nothing comes of it."""

    mark: Mark
    tools: Mapping[str, AgentTool]
    final: FinalAnswer | None
    dispatcher: Dispatcher
    ahead: RunSpeculation | None
    journal: RunJournal
    emit: Emit
    number: int = 0
    answer: PartialAnswer = field(default_factory=PartialAnswer)
    begun: list[Pending] = field(default_factory=list)
    """Its calls."""
    dropped: list[Pending] = field(default_factory=list)
    """Calls of its earlier answers, which had broken off."""
    _num_written: int = 0
    _num_partial: int = 0
    """Characters of calls, now and when last told of."""

    async def listen(self, model: Model, ask: Callable[[], Ask]) -> None:
        """Hear the answer. One that breaks off is asked for again, unless it has called what may not be called twice:
        then it ends where it broke off, with the calls that were whole."""
        taken = {call.id for message in ask().messages for call in message.tool_calls}
        telling, has_broken = Retelling(self.emit, self.number, self._restart, taken), False
        for num_tries in itertools.count(1):
            self.answer, self.begun, self._num_partial, self._num_written = PartialAnswer(), [], 0, 0
            try:
                await self._hear(model, ask(), telling)
                return
            except RemoteError as error:
                has_broken = has_broken or self.answer.has_begun
                if not (error.can_retry and has_broken):  # one that never began was asked for often enough
                    raise
                log.warning("the answer of turn %d broke off: %s", self.number, error)
                if not all(self.can_repeat(each.call) for each in self.begun):
                    return
                self.dropped += self.begun
                self.begun = []
                await _BROKEN_STREAMS.wait(num_tries, error)
                self.journal.ask_again(self.number)
                telling.restart(str(error))

    async def _hear(self, model: Model, ask: Ask, telling: Retelling) -> None:
        """One answer; each call is dispatched the moment it is whole."""
        async with aclosing(model.stream(ask)) as said:
            async for received in said:
                event = telling.rename(received)
                if self.ahead:
                    self.ahead.hear(event, self.number)
                if call := self.answer.push(event):
                    self.begun.append(self._take_again(call, telling) or self.dispatcher.start(call, self.number))
                telling.tell(event)
                self._tell_partial(event)
        telling.end()

    def reopen(self, opened: OpenTurn) -> None:
        """Go on with a turn of which the answer is known: calls that have results keep them, the others are made."""
        self.answer.ended = Ended(opened.answer.reason, usage=opened.answer.usage) if opened.answer else Ended()
        known, calls = known_outcomes(opened), opened.message.tool_calls
        if opened.is_counted:
            self.dispatcher.spent.num_calls -= len(calls)  # they are counted again
        self.begun = [self._go_on(call, known.get(call.id)) for call in calls]

    def _go_on(self, call: ToolCall, known: Outcome | None) -> Pending:
        if known and not (self.final and call.name == self.final.spec.name):
            self.dispatcher.spent.num_calls += 1
            return Pending.of(call, known)
        return self.dispatcher.start(call, self.number)

    def can_repeat(self, call: ToolCall) -> bool:
        """Whether a call does no harm if it is made again; one of an unknown tool does nothing."""
        tool = self.tools.get(call.name)
        return tool is None or tool.options.can_repeat

    def claim(self, call: ToolCall) -> EarlyCall | None:
        """A call that runs already, or has its result: a speculative one, or one of an answer that broke off."""
        early = self.ahead.claim(call) if self.ahead else None
        if early or not self.dropped:
            return early
        key = _key_of(call)
        found = next((each for each in self.dropped if key and key == _key_of(each.call)), None)
        if found is None or found.is_useless:
            return None
        self.dropped.remove(found)
        return EarlyCall(key or "", 0.0, found.task)

    async def note_call(self, call: ToolCall, *, waits: bool) -> None:
        """A tool is about to begin; with `waits` that is on the disk then."""
        await self.journal.called(self.number, call, self.answer.text, self.answer.thoughts, waits=waits)

    def leave_behind(self) -> list[Message]:
        """Of a turn that was broken off, what whoever goes on must know of: the calls that were made. Nothing if there
        was none, so that the turn can be tried again."""
        if not self.begun or any(each.waits_for for each in self.begun):
            return []
        calls, thoughts = (each.call for each in self.begun), tuple(self.answer.thoughts)
        said = Message("assistant", tool_calls=tuple(calls), thoughts=thoughts)
        return [said, *(each.message for each in self.begun)]

    def _tell_partial(self, event: wire.Event) -> None:
        """An answer that has a type, each time it has grown by an eighth: reading it every time would take long."""
        if not self.final or not isinstance(event, stream.CallDelta):
            return
        self._num_written += len(event.arguments)
        if self._num_written <= 1.125 * self._num_partial:
            return
        self._num_partial = self._num_written
        name, arguments = self.answer.open_call(event.index)
        if name == self.final.spec.name and (value := self.final.read_partial(arguments)) is not None:
            self.emit(events.PartialOutput(self.number, value))

    def _restart(self) -> None:
        """The answer that comes instead of one that broke off says something else, and the reader begins anew: of calls
        that it has in common with the other is told again, of the others no more. The journal begins anew, too: it must
        not take the result of a dropped call for that of another with the same id."""
        self.journal.ask_again(self.number)
        self.dispatcher.silenced.update(each.task for each in self.dropped if not each.task.done())
        for each in self.begun:
            self.dispatcher.tell_again(each, self.number)

    def _take_again(self, call: ToolCall, telling: Retelling) -> Pending | None:
        """The same call of an answer that broke off, as long as this one says the same."""
        if not telling.has_told(call.id):
            return None
        found = next((each for each in self.dropped if each.call == call), None)
        if found:
            self.dropped.remove(found)
        return found


def known_outcomes(opened: OpenTurn) -> dict[str, Outcome]:
    """The results that the journal has of a turn's calls, by their ids."""
    return {
        call_id: Outcome(each.text, each.is_error, each.num_tries, attachments=each.attachments)
        for call_id, each in opened.outcomes.items()
    }


def _key_of(call: ToolCall) -> str | None:
    return call_key(call.name, read_arguments(call.arguments))
