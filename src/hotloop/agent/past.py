"""A run as its journal has it, to be gone on with; and what others than its process may say to it."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from hotloop.agent import journal as notes
from hotloop.agent.conversation import Conversation
from hotloop.agent.limits import RunUsage
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message, Thought, ToolCall
from hotloop.trace.journal import Entry, Journal, JournalRow, RunState, StopEnd
from hotloop.wire.usage import ApiUsage

_LOOK_EVERY_S = 0.1


@dataclass(slots=True)
class OpenTurn:
    """A turn that was not finished, or that nothing has followed yet."""

    number: int
    answer: notes.Answered | None = None
    is_counted: bool = False
    """Whether what it used up is in the run's sums."""
    calls: dict[str, ToolCall] = field(default_factory=dict)
    """Those that have begun, or wait to."""
    begun: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    outcomes: dict[str, notes.Returned] = field(default_factory=dict)
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
    began: notes.Began
    messages: list[Message]
    num_tokens: int | None = None
    num_turns: int = 0
    turned: notes.Turned = field(default_factory=lambda: notes.Turned(0, 0, ApiUsage(), 0.0, 0.0))
    """With what had been used when the last turn was over."""
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
        used = self.turned
        return RunUsage(
            self.num_turns,
            used.num_calls,
            used.usage,
            used.money,
            used.num_reused,
            used.saved_s,
            began_at=time.monotonic() - used.time_s,
        )

    def take(self, note: notes.Note) -> None:
        match note:
            case notes.Asked(turn):
                self._opened(turn)
                self.open = OpenTurn(turn)
            case notes.Called(turn, call, text, thoughts):
                opened = self._opened(turn)
                opened.calls[call.id] = call
                opened.begun.add(call.id)
                opened.waiting.discard(call.id)
                self.verdicts.pop(call.id, None)  # what was decided was of this, and not of doing it once more
                opened.text += text
                opened.thoughts += thoughts
            case notes.Waits(turn, call):
                opened = self._opened(turn)
                opened.calls[call.id] = call
                opened.waiting.add(call.id)
            case notes.Returned(turn, call_id):
                self._opened(turn).outcomes[call_id] = note
            case notes.Answered(turn):
                self._opened(turn).answer = note
                self.can_prefill = note.can_prefill
            case notes.Turned(turn):
                self._opened(turn).is_counted = True
                self.turned = note
            case notes.Replaced(messages):
                self._close_turn()
                self.messages, self.num_tokens = list(messages), None
            case notes.HandedOver(agent, messages):
                self._close_turn()
                self.messages, self.num_tokens = list(messages), None
                self.agents.append(agent)
            case notes.Added(messages, num_sent):
                self._close_turn()
                self.messages += messages
                self._take_off(messages[:num_sent])
            case notes.Sent(message):
                self.sent.append(message)
            case notes.Decided(call_id, verdict):
                self.verdicts[call_id] = verdict

    def _take_off(self, joined: Iterable[Message]) -> None:
        """Messages that have joined: not always those that were written down first."""
        for message in joined:
            if message in self.sent:
                self.sent.remove(message)

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
    match [notes.read_entry(row, entry) for entry in entries]:
        case [notes.Began() as began, *rest]:
            past = Past(row, began, [*began.messages, *began.opening])
        case _:
            raise ConfigError(f"the run {row.run_id} is {row.state}: it cannot be resumed")
    for note in rest:
        past.take(note)
    past.num_told = sum(entry.kind == notes.TOLD for entry in entries)
    return past


async def take_over(journal: Journal, run_id: str, *, is_call: bool = False) -> Past:
    """Make a run this process's. Raises RunTaken if another runs it, ConfigError if it cannot be gone on with."""
    row, entries = await asyncio.wrap_future(journal.read(run_id))
    if row.run_id != row.root_id and not is_call:
        raise ConfigError(f"the run {run_id} is a call of the run {row.root_id}: resume that")
    if row.state == "done" and not is_call:
        raise ConfigError(f"the run {row.run_id} is done")
    read_past(row, entries)
    taken = journal.take(row.run_id)
    try:
        was = await asyncio.wrap_future(taken)
        _, entries = await asyncio.wrap_future(journal.read(was.run_id))
        return read_past(was, entries)
    except BaseException:
        # Who gives up waiting may do so while it is taken.
        taken.add_done_callback(lambda _: None if taken.cancelled() or taken.exception() else give_back(journal, row))
        raise


def give_back(journal: Journal, row: JournalRow) -> None:
    """A run that was taken over, and did not begin: it is as it was before."""
    state: RunState = "running" if row.state == "interrupted" else row.state
    journal.end(row.run_id, notes.make_entry(notes.Ended(state)), state, keeps_entries=True)


async def decide(journal: Journal, run_id: str, call_id: str, verdict: bool | str) -> None:
    """Let a call run that waits for it, or not; the run goes on with that when it is resumed."""
    entry = notes.make_entry(notes.Decided(call_id, verdict), call_id)
    await asyncio.wrap_future(journal.decide(run_id, entry, waits=str(notes.Waits.__struct_config__.tag)))


async def send(journal: Journal, run_id: str, message: Message) -> None:
    """A message for a run, whoever runs it: it joins at the next turn, or when the run is resumed."""
    await asyncio.wrap_future(journal.tell(run_id, notes.make_told(notes.Sent(message))))


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
    await asyncio.wrap_future(
        journal.end(row.run_id, notes.make_entry(notes.Ended("cancelled")), "cancelled", keeps_entries=False)
    )


async def _stop(journal: Journal, run_id: str, end: StopEnd) -> JournalRow:
    """As the run is when it is not running any more. Raises ConfigError if it was not running."""
    row, _ = await asyncio.wrap_future(journal.read(run_id))
    if row.state != "running":
        raise ConfigError(f"the run {row.run_id} is {row.state}: it is not running")
    await asyncio.wrap_future(journal.tell(row.run_id, notes.make_told(notes.StopAsked(end))))
    while True:
        now, _ = await asyncio.wrap_future(journal.read(row.run_id, notes.TOLD))
        if now.state != "running":
            return now
        await asyncio.sleep(_LOOK_EVERY_S)
