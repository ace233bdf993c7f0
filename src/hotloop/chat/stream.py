"""An answer's text as it comes, told apart into prose and tool calls.

Invariant: how the text is cut into pushes changes nothing but how the deltas are cut. Prose is given out as soon as it
cannot be the beginning of a call; a call that turns out not to be one becomes prose again. Text behind a call is not
told: what a small model writes there is the format's own words once more, or what it thinks the tool will say.
"""

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from hotloop.core.stream import CallClosed, CallDelta, CallOpened, StreamEvent, TextDelta

_MAX_REPLAY = 1_000_000  # characters read twice because they were no call; text made to cost more is not looked into


class CallParser(Protocol):
    """Told an answer's text piece by piece, tells what it means."""

    @property
    def num_calls(self) -> int: ...

    @property
    def is_calling(self) -> bool:
        """Whether the text so far ends inside a call."""
        ...

    def push(self, text: str) -> list[StreamEvent]: ...

    def finish(self, *, is_cut: bool = False) -> list[StreamEvent]:
        """What was held back: half a call that never became one is text again, unless the answer was cut in it."""
        ...


def num_held(text: str, marks: Sequence[str]) -> int:
    """How many characters at its end may be the beginning of a mark."""
    longest = min(len(text), max(map(len, marks)) - 1)
    sizes = (size for size in range(longest, 0, -1) if any(mark.startswith(text[-size:]) for mark in marks))
    return next(sizes, 0)


class PlainText:
    """The parser of an answer that cannot hold calls."""

    num_calls = 0
    is_calling = False

    def push(self, text: str) -> list[StreamEvent]:
        return [TextDelta(text)] if text else []

    def finish(self, *, is_cut: bool = False) -> list[StreamEvent]:
        return []


class DiscardOutput(PlainText):
    """The parser of an answer that nobody asked for."""

    def push(self, text: str) -> list[StreamEvent]:
        return []


class WrappedParser(ABC):
    """A parser around another, which sees that one's events on their way out."""

    def __init__(self, parser: CallParser) -> None:
        self._parser = parser

    @property
    def num_calls(self) -> int:
        return self._parser.num_calls

    @property
    def is_calling(self) -> bool:
        return self._parser.is_calling

    def push(self, text: str) -> list[StreamEvent]:
        return self._pass(self._parser.push(text))

    def finish(self, *, is_cut: bool = False) -> list[StreamEvent]:
        return self._pass(self._parser.finish(is_cut=is_cut))

    @abstractmethod
    def _pass(self, events: list[StreamEvent]) -> list[StreamEvent]: ...


class CallsOnly(WrappedParser):
    """The parser of an answer that must be calls: what else there is of it is half a call, and not told."""

    def _pass(self, events: list[StreamEvent]) -> list[StreamEvent]:
        return [event for event in events if not isinstance(event, TextDelta)]


class NamedCalls(WrappedParser):
    """The parser of an answer whose first calls have been told of before, by these ids."""

    def __init__(self, parser: CallParser, call_ids: Sequence[str]) -> None:
        super().__init__(parser)
        self._call_ids = [f"call_{call_id.removeprefix('toolu_').removeprefix('call_')}" for call_id in call_ids]

    def _pass(self, events: list[StreamEvent]) -> list[StreamEvent]:
        return [
            replace(event, id=self._call_ids[event.index])
            if isinstance(event, CallOpened) and event.index < len(self._call_ids)
            else event
            for event in events
        ]


class EventCollector:
    """Collects events. Owns the rule of text: none follows a call, and whitespace before one is not content."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.is_calling = False
        self._has_prose = False
        self._space = ""
        self._pieces: list[str] = []
        self._events: list[StreamEvent] = []

    def text(self, text: str) -> None:
        if self.num_calls:
            return
        for char in text:
            if char.isspace():
                self._space += char
            else:
                self._write(self._space + char)
                self._space = ""

    def open_call(self, name: str, number: str | None = None) -> None:
        """`number`: what the model calls it by, which its id then says as well."""
        # One newline before a call belongs to the format: templates write it there themselves.
        if self._has_prose:
            self._write(self._space.removesuffix("\n"))
        self._space = ""
        self._flush()
        call_id = f"call_{number + '_' if number else ''}{secrets.token_hex(12)}"
        self._events.append(CallOpened(self.num_calls, call_id, name))
        self.num_calls += 1
        self.is_calling, self._has_prose = True, False

    def arguments(self, text: str) -> None:
        self._pieces.append(text)

    def close_call(self) -> None:
        self._flush()
        self._events.append(CallClosed(self.num_calls - 1))
        self.is_calling = False

    def cut_call(self) -> None:
        """What follows is no longer of the call, which never became whole."""
        self._flush()
        self.is_calling = False

    def end(self) -> None:
        self._write(self._space)
        self._space = ""

    def take(self) -> list[StreamEvent]:
        self._flush()
        events, self._events = self._events, []
        return events

    def _write(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._has_prose = True

    def _flush(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        if text:
            self._events.append(CallDelta(self.num_calls - 1, text) if self.is_calling else TextDelta(text))


class MarkedParser(ABC):
    """Prose until one of the openings; from there a family's own states, one character at a time.

    A state is a method that takes the next character. A family begins in `opened`; it keeps in `self.raw` what it has
    read and not yet given out, and hands it to `give_back` if that was no call. `loose` openings are prose as well.
    """

    def __init__(self, *openings: str, loose: tuple[str, ...] = ()) -> None:
        self.answer = EventCollector()
        self.raw = ""
        self.state: Callable[[str], None] = self.prose
        self._openings = openings + loose
        self._sure_openings = openings
        self._candidate = ""
        self._queue: deque[str] = deque()
        self._num_replayable = _MAX_REPLAY

    @property
    def num_calls(self) -> int:
        return self.answer.num_calls

    @property
    def is_calling(self) -> bool:
        return self.answer.is_calling

    def push(self, text: str) -> list[StreamEvent]:
        self._queue.extend(text)
        while self._queue:
            self.state(self._queue.popleft())
        return self.answer.take()

    def finish(self, *, is_cut: bool = False) -> list[StreamEvent]:
        self.cut()
        is_half_a_call = is_cut and self.raw.startswith(self._sure_openings)
        self.answer.text(self._candidate + ("" if is_half_a_call else self.raw))
        self._candidate = self.raw = ""
        self.answer.end()
        return self.answer.take()

    def prose(self, char: str) -> None:
        self._candidate += char
        while self._candidate and not any(opening.startswith(self._candidate) for opening in self._openings):
            self.answer.text(self._candidate[0])
            self._candidate = self._candidate[1:]
        if self._candidate in self._openings:
            self.raw, self._candidate = self._candidate, ""
            self.opened(self.raw)

    def to_prose(self) -> None:
        self.raw, self.state = "", self.prose

    def give_back(self) -> None:
        """What was read is no call: its first character is text, and the rest is looked at again."""
        raw = self.raw
        self.to_prose()
        self._num_replayable -= len(raw)
        num_text = 1 if self._num_replayable > 0 else len(raw)
        self.answer.text(raw[:num_text])
        self._queue.extendleft(reversed(raw[num_text:]))

    def again(self, text: str) -> None:
        """Look at these characters again, in the state that is now."""
        self._queue.extendleft(reversed(text))

    @abstractmethod
    def opened(self, opening: str) -> None:
        """One of the openings was read: from here on the family's own states see each character."""

    @abstractmethod
    def cut(self) -> None:
        """The text has ended: settle what is under way."""
