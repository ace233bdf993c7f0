"""What a run writes down to be gone on with, and what of a run is known from that.

    began ( called* [asked called*] [answered] returned* turned  |
              replaced | handed over | added | sent | speculated )* ended

`called` is on the disk before a tool that may change something begins, and `returned` is written before the model hears
of its end. So of a process that was killed it is known of each call that it never began, that it ended and how, or that
it was running: only then is it `Uncertain` whether it did anything. `answered` is the model's whole answer; a turn
without one was being written.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from hotloop.agent.conversation import Conversation
from hotloop.agent.limits import RunUsage
from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.message import Attachment, Message, Thought, ToolCall
from hotloop.trace.journal import Entry, Journal, JournalRow, RunState, StopEnd
from hotloop.wire.event import EndReason
from hotloop.wire.usage import ApiUsage


class Began(msgspec.Struct, tag="began"):
    """What the conversation was before the run, and its first messages."""

    messages: Sequence[Message]
    num_tokens: int
    opening: Sequence[Message]
    is_plan: bool = False


class Called(msgspec.Struct, tag="called"):
    """A tool begins; with what was said before, in the same turn, since the last call."""

    turn: int
    call: ToolCall
    text: str = ""
    thoughts: tuple[Thought, ...] = ()


class Asked(msgspec.Struct, tag="asked"):
    """The turn is asked for anew, since its answer broke off: what it had called changed nothing."""

    turn: int


class Waits(msgspec.Struct, tag="waits"):
    """A call cannot begin before somebody has decided."""

    turn: int
    call: ToolCall


class Decided(msgspec.Struct, tag="decided"):
    call_id: str
    verdict: bool | str


class Returned(msgspec.Struct, tag="returned"):
    turn: int
    call_id: str
    text: str
    is_error: bool = False
    num_tries: int = 1
    attachments: tuple[Attachment, ...] = ()


class Answered(msgspec.Struct, tag="answered"):
    turn: int
    message: Message
    reason: EndReason
    usage: ApiUsage
    can_prefill: bool = False
    """Whether the server prefills a prompt without answering, so that this is worth asking when the run goes on."""


class Turned(msgspec.Struct, tag="turned"):
    """A turn is over, and this is what the run has used so far."""

    turn: int
    num_calls: int
    usage: ApiUsage
    money: float
    time_s: float


class Replaced(msgspec.Struct, tag="replaced"):
    """The conversation was shortened."""

    messages: Sequence[Message]


class Added(msgspec.Struct, tag="added"):
    """Something was said that is no turn of the model's; the first `num_sent` that had been sent, if it was those."""

    messages: Sequence[Message]
    num_sent: int = 0


class Sent(msgspec.Struct, tag="sent"):
    """A message for the next turn."""

    message: Message


class StopAsked(msgspec.Struct, tag="stop"):
    """Another process wants the run to end."""

    end: StopEnd


class HandedOver(msgspec.Struct, tag="handed over"):
    """Another agent answers from here on, and this is what it reads."""

    agent: str
    messages: Sequence[Message]


class Speculated(msgspec.Struct, tag="speculated"):
    turn: int
    name: str
    arguments: str


class Ended(msgspec.Struct, tag="ended"):
    end: str
    error: str = ""


_Turn = Asked | Called | Waits | Decided | Returned | Answered | Turned | Speculated
Note = Began | _Turn | Replaced | HandedOver | Added | Sent | StopAsked | Ended

_decoder = msgspec.json.Decoder(Note)
_TOLD = "told"  # the kind of entries that are another process's
_LOOK_EVERY_S = 0.1


class Uncertain(ToolCall):
    """A call that was running when its process ended: nobody knows whether it did anything. What to do is decided by
    `Agent(on_uncertain=...)`, or by the approver: True runs it again."""

    __slots__ = ()


class WaitingCall(NamedTuple):
    """A call that somebody has to decide on, and its run: servers may give calls of two sub-agents the same id."""

    run_id: str
    call: ToolCall


class ApprovalPending(HotloopError):
    """The run has ended until somebody decides: `hotloop runs approve RUN CALL`, or `agent.resume(run_id,
    approvals={call_id: True})`. Where calls of two sub-agents have one id, `(each.run_id, each.call.id)` of `waiting`
    says which is meant."""

    def __init__(self, run_id: str, waiting: Sequence[WaitingCall]) -> None:
        named = ", ".join(f"{each.call.name} ({_describe(each, run_id)})" for each in waiting)
        super().__init__(f"the run {run_id} waits for a decision on {named}: `hotloop runs approve` takes it")
        self.run_id = run_id
        self.waiting = tuple(waiting)
        self.calls = tuple(each.call for each in waiting)


def _describe(waiting: WaitingCall, run_id: str) -> str:
    whose = "" if waiting.run_id == run_id else f" of the run {waiting.run_id}"
    doubt = ", which may have run before" if isinstance(waiting.call, Uncertain) else ""
    return f"{waiting.call.id}{whose}{doubt}"


class RunStopped(HotloopError):
    """The run was paused or cancelled, and what it had begun has come to its end: `agent.resume(run_id)` goes on."""

    def __init__(self, run_id: str, end: StopEnd) -> None:
        super().__init__(f"the run {run_id} was {end}; `agent.resume` or `hotloop runs resume` goes on with it")
        self.run_id = run_id
        self.end = end


def _encode(note: Note) -> bytes:
    try:
        return msgspec.json.encode(note)
    except UnicodeEncodeError:  # half a pair of surrogates, which JSON may spell out, cannot be written
        return json.dumps(msgspec.to_builtins(note), ensure_ascii=False).encode("utf-8", "replace")


def _entry(note: Note, call_id: str = "") -> Entry:
    return Entry(str(note.__struct_config__.tag), _encode(note), call_id)


def _decode(row: JournalRow, entry: Entry) -> Note:
    try:
        note: Note = _decoder.decode(entry.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the journal of the run {row.run_id} is damaged: {error}") from None
    return note


class RunJournal:
    """One run's. Where there is no journal nothing is written, and all else is the same. Of what other processes have
    written `num_told` entries are known."""

    def __init__(self, journal: Journal | None, run_id: str, num_told: int = 0) -> None:
        self._journal = journal
        self._num_told = num_told
        self.run_id = run_id
        self._failure: BaseException | None = None
        self._said = 0  # characters of this turn's text that were written down, and thoughts
        self._num_thoughts = 0

    @property
    def store(self) -> Journal | None:
        return self._journal

    @property
    def is_kept(self) -> bool:
        return self._journal is not None

    def begin(self, row: JournalRow, note: Began) -> None:
        if self._journal:
            self._watch(self._journal.begin(row, _entry(note)))

    async def called(self, turn: int, call: ToolCall, text: str, thoughts: Sequence[Thought], *, waits: bool) -> None:
        """Before the tool begins; with `waits` it is on the disk then. Raises HotloopError if it cannot be."""
        note = Called(turn, call, text[self._said :], tuple(thoughts[self._num_thoughts :]))
        self._said, self._num_thoughts = len(text), len(thoughts)
        if not self._journal:
            return
        written = self._journal.write(self.run_id, _entry(note, call.id), is_synced=waits)
        self._watch(written)
        if waits:
            await self._settle(written)

    async def returned(self, note: Returned, *, waits: bool) -> None:
        """A tool has ended; with `waits` that is committed then. Raises HotloopError if it cannot be."""
        if not self._journal:
            return
        written = self._journal.write(self.run_id, _entry(note, note.call_id))
        self._watch(written)
        if waits:
            await self._settle(written)

    async def _settle(self, written: "Future[None]") -> None:
        """Until it is written. What came before it is written then, too."""
        await asyncio.wait({asyncio.wrap_future(written)})
        if self._failure:
            reason = f"the run's journal cannot be written: {self._failure}"
            raise HotloopError(f"{reason}; without one (HOTLOOP_TRACE=off) it would run") from self._failure

    def note(self, note: Note, call_id: str = "") -> None:
        if self._journal:
            self._watch(self._journal.write(self.run_id, _entry(note, call_id)))

    async def heard(self) -> list[Note]:
        """What other processes have written since this was asked last."""
        assert self._journal, "where nothing is written nobody else writes"
        row, entries = await asyncio.wrap_future(self._journal.read(self.run_id, _TOLD))
        new, self._num_told = entries[self._num_told :], len(entries)
        return [_decode(row, entry) for entry in new]

    def ask_again(self, turn: int) -> None:
        self._said = self._num_thoughts = 0
        self.note(Asked(turn))

    def turned(self, turn: int, spent: RunUsage) -> None:
        self._said = self._num_thoughts = 0
        self.note(Turned(turn, spent.num_calls, spent.usage, spent.money, spent.time_s))

    def end(self, state: RunState, error: str) -> None:
        """Of a run that is done nothing that was said is kept."""
        if self._journal:
            note = _entry(Ended(state, error))
            self._watch(self._journal.end(self.run_id, note, state, keeps_entries=state != "done"))

    def _watch(self, written: "Future[None]") -> None:
        written.add_done_callback(self._look)

    def _look(self, written: "Future[None]") -> None:
        self._failure = self._failure or written.exception()


@dataclass(slots=True)
class OpenTurn:
    """A turn that was not finished, or that nothing has followed yet."""

    number: int
    answer: Answered | None = None
    is_counted: bool = False
    """Whether what it used up is in the run's sums."""
    calls: dict[str, ToolCall] = field(default_factory=dict)
    """Those that have begun, or wait to."""
    begun: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    outcomes: dict[str, Returned] = field(default_factory=dict)
    text: str = ""
    thoughts: tuple[Thought, ...] = ()

    @property
    def message(self) -> Message:
        """What was said, as far as it is known."""
        if self.answer:
            return self.answer.message
        return Message("assistant", self.text, tool_calls=tuple(self.calls.values()), thoughts=self.thoughts)

    @property
    def running(self) -> set[str]:
        """Calls that had begun, and of which no end is known."""
        return self.begun - self.outcomes.keys()


@dataclass(slots=True)
class Past:
    """A run as its journal has it."""

    row: JournalRow
    began: Began
    messages: list[Message]
    num_tokens: int | None = None
    num_turns: int = 0
    num_calls: int = 0
    usage: ApiUsage = field(default_factory=ApiUsage)
    money: float = 0.0
    time_s: float = 0.0
    open: OpenTurn | None = None
    verdicts: dict[str, bool | str] = field(default_factory=dict)
    can_prefill: bool = False
    sent: list[Message] = field(default_factory=list)
    """Messages that wait for the next turn."""
    num_told: int = 0
    """How many entries are another process's."""
    agents: list[str] = field(default_factory=list)
    """Who was handed the conversation, one after the other, as the tools are named."""

    @property
    def conversation(self) -> Conversation:
        conversation = Conversation(self.messages, session_id=self.row.session)
        conversation.num_tokens = self.num_tokens or conversation.num_tokens
        return conversation

    @property
    def begins_with_plan(self) -> bool:
        """Whether the run is to plan first, and has no whole plan yet."""
        is_first = self.open is None or (self.open.number == 1 and not self.open.answer)
        return self.began.is_plan and is_first and self.num_turns <= 1

    @property
    def spent(self) -> RunUsage:
        began_at = time.monotonic() - self.time_s
        return RunUsage(
            num_turns=self.num_turns, num_calls=self.num_calls, usage=self.usage, money=self.money, began_at=began_at
        )

    def take(self, note: Note) -> None:
        match note:
            case Asked(turn):
                self.open = OpenTurn(turn)
            case Called(turn, call, text, thoughts):
                opened = self._opened(turn)
                opened.calls[call.id] = call
                opened.begun.add(call.id)
                opened.waiting.discard(call.id)
                self.verdicts.pop(call.id, None)  # what was decided was of this, and not of doing it once more
                opened.text += text
                opened.thoughts += thoughts
            case Waits(turn, call):
                opened = self._opened(turn)
                opened.calls[call.id] = call
                opened.waiting.add(call.id)
            case Returned(turn, call_id):
                self._opened(turn).outcomes[call_id] = note
            case Answered(turn):
                self._opened(turn).answer = note
                self.can_prefill = note.can_prefill
            case Turned(turn, num_calls, usage, money, time_s):
                self._opened(turn).is_counted = True
                self.num_calls, self.usage, self.money, self.time_s = num_calls, usage, money, time_s
            case Replaced(messages):
                self._close_turn()
                self.messages, self.num_tokens = list(messages), None
            case HandedOver(agent, messages):
                self._close_turn()
                self.messages, self.num_tokens = list(messages), None
                self.agents.append(agent)
            case Added(messages, num_sent):
                self._close_turn()
                self.messages += messages
                del self.sent[:num_sent]
            case Sent(message):
                self.sent.append(message)
            case Decided(call_id, verdict):
                self.verdicts[call_id] = verdict

    def _opened(self, turn: int) -> OpenTurn:
        if self.open is None or self.open.number != turn:
            self._close_turn()
            self.open, self.num_turns = OpenTurn(turn), turn
        return self.open

    def _close_turn(self) -> None:
        """What came next shows that the run went on behind it; a turn that was never answered had failed."""
        if self.open and self.open.answer:
            said, outcomes = self.open.answer.message, self.open.outcomes
            self.messages.append(said)
            for call in said.tool_calls:
                if outcome := outcomes.get(call.id):
                    given = outcome.attachments
                    message = Message("tool", outcome.text, tool_call_id=call.id, name=call.name, attachments=given)
                    self.messages.append(message)
            self.num_tokens = self.open.answer.usage.num_tokens or None
        self.open = None


def read_past(row: JournalRow, entries: Iterable[Entry]) -> Past:
    """Raises ConfigError if there is nothing that a run could be gone on with by."""
    entries = list(entries)
    match [_decode(row, entry) for entry in entries]:
        case [Began() as began, *rest]:
            past = Past(row, began, [*began.messages, *began.opening])
        case _:
            raise ConfigError(f"the run {row.run_id} is {row.state}: there is nothing left to go on with")
    for note in rest:
        past.take(note)
    past.num_told = sum(entry.kind == _TOLD for entry in entries)
    return past


async def take_over(journal: Journal, run_id: str, *, is_call: bool = False) -> Past:
    """Make a run this process's. Raises RunTaken if another runs it, ConfigError if it cannot be gone on with."""
    row, entries = await asyncio.wrap_future(journal.read(run_id))
    if row.run_id != row.root_id and not is_call:
        raise ConfigError(f"the run {run_id} is a call of the run {row.root_id}: resume that")
    if row.state == "done" and not is_call:
        raise ConfigError(f"the run {row.run_id} is done")
    read_past(row, entries)
    await asyncio.wrap_future(journal.take(row.run_id))
    return read_past(*await asyncio.wrap_future(journal.read(row.run_id)))


def give_back(journal: Journal, past: Past) -> None:
    """A run that was taken over, and did not begin."""
    journal.end(past.row.run_id, _entry(Ended(past.row.state)), past.row.state, keeps_entries=True)


async def decide(journal: Journal, run_id: str, call_id: str, verdict: bool | str) -> None:
    """Let a call run that waits for it, or not; the run goes on with that when it is resumed."""
    entry = _entry(Decided(call_id, verdict), call_id)
    await asyncio.wrap_future(journal.decide(run_id, entry, waits=str(Waits.__struct_config__.tag)))


async def send(journal: Journal, run_id: str, message: Message) -> None:
    """A message for a run, whoever runs it: it joins at the next turn, or when the run is resumed."""
    await asyncio.wrap_future(journal.tell(run_id, Entry(_TOLD, _encode(Sent(message)))))


async def pause(journal: Journal, run_id: str) -> JournalRow:
    """Have a run that another process runs end behind its turn; when that is, or when it ended otherwise."""
    return await _stop(journal, run_id, "paused")


async def cancel(journal: Journal, run_id: str) -> None:
    """A run is over, and forgotten but for its figures; one that another process runs, when what it had begun has come
    to its end. Raises ConfigError."""
    row, entries = await asyncio.wrap_future(journal.read(run_id))
    if row.state == "running":
        row = await _stop(journal, row.run_id, "cancelled")
    elif not entries:  # it was cancelled so before
        raise ConfigError(f"the run {row.run_id} is {row.state}: there is nothing to cancel")
    if row.state == "done":
        raise ConfigError(f"the run {row.run_id} is {row.state}: there is nothing to cancel")
    await asyncio.wrap_future(journal.take(row.run_id))
    await asyncio.wrap_future(journal.end(row.run_id, _entry(Ended("cancelled")), "cancelled", keeps_entries=False))


async def _stop(journal: Journal, run_id: str, end: StopEnd) -> JournalRow:
    """As the run is when it is not running any more. Raises ConfigError if it was not running."""
    row, _ = await asyncio.wrap_future(journal.read(run_id))
    if row.state != "running":
        raise ConfigError(f"the run {row.run_id} is {row.state}: it is not running")
    await asyncio.wrap_future(journal.tell(row.run_id, Entry(_TOLD, _encode(StopAsked(end)))))
    while True:
        now, _ = await asyncio.wrap_future(journal.read(row.run_id, _TOLD))
        if now.state != "running":
            return now
        await asyncio.sleep(_LOOK_EVERY_S)
