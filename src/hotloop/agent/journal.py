"""What a run writes down to be gone on with; `past.py` reads it.

    began ( called* [asked called*] [answered] returned* turned  |
              replaced | handed over | added | sent | speculated )* ended

`called` is on the disk before a tool that may change something begins, and `returned` is written before the model hears
of its end. So of a process that was killed it is known of each call that it never began, that it ended and how, or that
it was running: only then is it `Uncertain` whether it did anything. `answered` is the model's whole answer; a turn
without one was being written.
"""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import msgspec

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
    num_reused: int = 0
    saved_s: float = 0.0


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
TOLD = "told"  # the kind of entries that are another process's


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


def make_entry(note: Note, call_id: str = "") -> Entry:
    return Entry(str(note.__struct_config__.tag), _encode(note), call_id)


def make_told(note: Note) -> Entry:
    """What another process writes."""
    return Entry(TOLD, _encode(note))


def read_entry(row: JournalRow, entry: Entry) -> Note:
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
            self._watch(self._journal.begin(row, make_entry(note)))

    async def called(self, turn: int, call: ToolCall, text: str, thoughts: Sequence[Thought], *, waits: bool) -> None:
        """Before the tool begins; with `waits` it is on the disk then. Raises HotloopError if it cannot be."""
        note = Called(turn, call, text[self._said :], tuple(thoughts[self._num_thoughts :]))
        self._said, self._num_thoughts = len(text), len(thoughts)
        if not self._journal:
            return
        written = self._journal.write(self.run_id, make_entry(note, call.id), is_synced=waits)
        self._watch(written)
        if waits:
            await self._settle(written)

    async def returned(self, note: Returned, *, waits: bool) -> None:
        """A tool has ended; with `waits` that is committed then. Raises HotloopError if it cannot be."""
        if not self._journal:
            return
        written = self._journal.write(self.run_id, make_entry(note, note.call_id))
        self._watch(written)
        if waits:
            await self._settle(written)

    async def _settle(self, written: "Future[None]") -> None:
        """Until it is written. What came before it is written then, too."""
        await asyncio.wait({asyncio.wrap_future(written)})
        if self._failure:
            reason = f"the run's journal cannot be written: {self._failure}"
            raise HotloopError(f"{reason}; HOTLOOP_TRACE=off runs it without one") from self._failure

    def note(self, note: Note, call_id: str = "") -> None:
        if self._journal:
            self._watch(self._journal.write(self.run_id, make_entry(note, call_id)))

    async def heard(self) -> list[Note]:
        """What other processes have written since this was asked last."""
        assert self._journal, "where nothing is written nobody else writes"
        row, entries = await asyncio.wrap_future(self._journal.read(self.run_id, TOLD))
        new, self._num_told = entries[self._num_told :], len(entries)
        return [read_entry(row, entry) for entry in new]

    def ask_again(self, turn: int) -> None:
        self._said = self._num_thoughts = 0
        self.note(Asked(turn))

    def turned(self, turn: int, spent: RunUsage) -> None:
        self._said = self._num_thoughts = 0
        reused = spent.num_reused, spent.saved_s
        self.note(Turned(turn, spent.num_calls, spent.usage, spent.money, spent.time_s, *reused))

    def end(self, state: RunState, error: str) -> None:
        """Of a run that is done nothing that was said is kept."""
        if self._journal:
            note = make_entry(Ended(state, error))
            self._watch(self._journal.end(self.run_id, note, state, keeps_entries=state != "done"))

    def _watch(self, written: "Future[None]") -> None:
        written.add_done_callback(self._look)

    def _look(self, written: "Future[None]") -> None:
        self._failure = self._failure or written.exception()
