"""A run as rows over time: what the model wrote, and which tools ran meanwhile. Told events, it draws.

turn 2  model                     ━━━━━━━━━━━━                  0.9 s  1,203 prompt tokens, 87% cached, 41 output
        weather {"city":"Paris"}  ··━━━━━━━━━━━━━━━━            1.2 s  18 degrees
        weather {"city":"Rome"}       ····━━━━━━━━━━━━━━━━━━━━  1.6 s  24 degrees
"""

import time
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from hotloop.agent import events
from hotloop.agent.limits import RunUsage
from hotloop.cli.output import Bar, count, draw_bar, shorten
from hotloop.wire.usage import ApiUsage

BAR_CELLS = 30
LABEL_CHARS = 36
_NOTE_CHARS = 60


@dataclass(slots=True)
class CallRow:
    """One call: opened, begun (which may be before the model had finished writing), ended."""

    name: str
    opened_at: float
    arguments: str = ""
    began_at: float | None = None
    ended_at: float | None = None
    result: str = ""
    is_error: bool = False
    was_speculative: bool = False
    activity: str = ""
    """Which tool a sub-agent runs now."""

    @property
    def label(self) -> str:
        return shorten(f"{self.name} {self.arguments}", LABEL_CHARS)

    @property
    def note(self) -> str:
        if self.ended_at is None:
            return "being written" if self.began_at is None else f"running {self.activity}".strip()
        return ("speculative; " if self.was_speculative else "") + shorten(self.result, _NOTE_CHARS)


@dataclass(slots=True)
class TurnRow:
    number: int
    began_at: float
    said_at: float
    """When the model last said anything."""
    ended_at: float | None = None
    words: str = ""
    usage: ApiUsage | None = None
    calls: dict[str, CallRow] = field(default_factory=dict)

    @property
    def note(self) -> str:
        return describe_usage(self.usage) if self.usage else shorten(self.words[-200:], _NOTE_CHARS, tail=True)

    def __rich__(self) -> Table:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for justify in ("left", "left", "left", "right", "left"):
            grid.add_column(justify=justify, no_wrap=True)
        end = self.ended_at or time.monotonic()
        self._add(
            grid, f"turn {self.number}", "model", [Bar(self.began_at, self.said_at, ("━", "cyan"))], self.note, end
        )
        for call in list(self.calls.values()):  # drawn by another thread than the one that tells
            began_at = call.began_at or end
            waited = Bar(call.opened_at, began_at, ("·", "dim"))
            ran = Bar(began_at, call.ended_at or end, ("━", "red" if call.is_error else "green"))
            self._add(grid, "", call.label, [waited, ran], call.note, end)
        return grid

    def _add(self, grid: Table, title: str, label: str, bars: list[Bar], note: str, end: float) -> None:
        length_s = bars[-1].end - bars[-1].begin
        bar = draw_bar((each for each in bars if each.end > each.begin), self.began_at, end, BAR_CELLS)
        grid.add_row(Text(title, "bold"), Text(label), bar, f"{length_s:.1f} s", Text(note, "dim"))


class Timeline:
    """A run so far. `turn` is the one that is under way."""

    def __init__(self) -> None:
        self.turn: TurnRow | None = None
        self.num_turns = 0
        self.num_calls = 0
        self.num_errors = 0
        self._calls: dict[str, CallRow] = {}

    def push(self, event: events.Event) -> TurnRow | None:
        """Take an event; gives the turn that is over with it, if one is."""
        match event:
            case events.TurnStarted():
                self.num_turns = event.turn
                self.turn = TurnRow(event.turn, event.at, event.at)
            case events.TurnFinished() if self.turn:
                turn, self.turn = self.turn, None
                turn.ended_at, turn.usage = event.at, event.usage
                return turn
            case events.CallDispatched() | events.CallFinished():
                self._push_call(event)
            case events.SubAgentEvent() if self.turn and event.call_id in self.turn.calls:
                self.turn.calls[event.call_id].activity = _describe_activity(event.inner)
            case events.Text() | events.CallOpened() | events.CallArguments() if self.turn:
                self._push_words(event, self.turn)
        return None

    def describe_cancelled(self) -> str:
        """What was done when it was given up, and what was not."""
        stopped = [call.label for call in self.turn.calls.values() if not call.ended_at] if self.turn else []
        done = f"cancelled in turn {self.num_turns}: {count(self.num_calls, 'call')} finished"
        return done + (f"; stopped: {', '.join(stopped)}" if stopped else "")

    def describe_end(self, spent: RunUsage) -> str:
        money = f", {spent.money:.4g} of money" if spent.money else ""
        failed = f" ({self.num_errors} failed)" if self.num_errors else ""
        calls = count(self.num_calls, "call") + failed
        return f"{count(spent.num_turns, 'turn')}, {calls}, {describe_usage(spent.usage)}, {spent.time_s:.1f} s{money}"

    def _push_words(self, event: events.Text | events.CallOpened | events.CallArguments, turn: TurnRow) -> None:
        turn.said_at = event.at
        match event:
            case events.Text():
                turn.words += event.text
            case events.CallOpened():
                turn.calls[event.call_id] = CallRow(event.name, event.at)
            case events.CallArguments() if event.call_id in turn.calls:
                turn.calls[event.call_id].arguments += event.arguments

    def _push_call(self, event: events.CallDispatched | events.CallFinished) -> None:
        calls = self.turn.calls if self.turn else self._calls
        call = calls.setdefault(event.call_id, CallRow(event.name, event.at))
        if isinstance(event, events.CallDispatched):
            call.began_at, call.arguments, call.was_speculative = event.at, event.arguments, event.was_speculative
            return
        self.num_calls += 1
        self.num_errors += event.is_error
        call.began_at, call.ended_at = event.at - event.duration_s, event.at
        call.result, call.is_error = event.result, event.is_error


def _describe_activity(event: events.Event) -> str:
    match event:
        case events.SubAgentEvent():
            return f"{event.agent} {_describe_activity(event.inner)}".strip()
        case events.CallDispatched():
            return event.name
    return ""


def describe_usage(usage: ApiUsage) -> str:
    share = (usage.num_cached or 0) / usage.num_prompt if usage.num_prompt else 0.0
    return f"{usage.num_prompt:,} prompt tokens, {share:.0%} cached, {usage.num_output:,} output"
