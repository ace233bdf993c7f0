"""An answer's thoughts, told apart from what a family's own parser reads.

Invariant: as in `stream`, how the text is cut changes nothing but how the deltas are cut. Every stretch between two
marks has a parser of its own:

    <think> thought <tool_call> call </tool_call> </think> text <think> thought </think> text
            one parser: its text is a thought until  |     one  |       one     |        one
            it finds a call, which ends the thought  |

A closing ends a thought unless it stands in a call. Outside of one, marks count where a line begins, since an answer
may speak of them; special tokens count everywhere. Space around marks belongs to the format.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from hotloop.chat.stream import CallParser, num_held
from hotloop.chat.thinking import ThinkingFormat
from hotloop.core.message import Thought
from hotloop.core.stream import CallOpened, StreamEvent, TextDelta, ThoughtClosed, ThoughtDelta


class _Trimmed:
    """A text without the space around it, as it comes."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._space = ""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __str__(self) -> str:
        return "".join(self._pieces)

    def push(self, text: str) -> str:
        """What is sure to be part of it."""
        text = self._space + text if self._pieces else text.lstrip()
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._pieces.append(body)
        return body


class ThinkingParser:
    """Reads thoughts, and lets a parser of `make_parser` read each stretch of the answer."""

    def __init__(self, thinking: ThinkingFormat, make_parser: Callable[[], CallParser], *, is_open: bool) -> None:
        self._thinking = thinking
        self._make_parser = make_parser
        self._parser = make_parser()
        self._is_thinking = is_open
        self._thought = _Trimmed()
        self._is_blank = True  # whether nothing but space stands on the line so far
        self._is_behind_thought = False  # whether nothing but space was said since the last thought
        self._space = ""  # of the answer's text, before a thought or something else
        self._num_calls_before = 0  # of the stretches before this one
        self._pending = ""  # might be the beginning of a mark

    @property
    def num_calls(self) -> int:
        return self._num_calls_before + self._parser.num_calls

    @property
    def is_calling(self) -> bool:
        return self._parser.is_calling

    def push(self, text: str) -> list[StreamEvent]:
        self._pending += text
        events: list[StreamEvent] = []
        while mark := self._next_mark():
            at = self._pending.index(mark)
            events += self._say(at)
            events += self._meet(mark)
        events += self._say(len(self._pending) - num_held(self._pending, self._marks))
        return events

    def finish(self, *, is_cut: bool = False) -> list[StreamEvent]:
        events = self._say(len(self._pending))
        events += self._tell(self._parser.finish(is_cut=is_cut))
        return [*events, *self._close_thought(), *self._tell_space()]

    def _next_mark(self) -> str | None:
        found = [(at, mark) for mark in self._marks if (at := self._pending.find(mark)) >= 0]
        return min(found)[1] if found else None

    @property
    def _marks(self) -> tuple[str, str]:
        return self._thinking.opening, self._thinking.closing

    def _say(self, num_chars: int) -> list[StreamEvent]:
        text, self._pending = self._pending[:num_chars], self._pending[num_chars:]
        if text:
            line = text.rpartition("\n")[2]
            self._is_blank = not line.strip() and (self._is_blank or "\n" in text)
        return list(self._tell(self._parser.push(text))) if text else []

    def _meet(self, mark: str) -> list[StreamEvent]:
        """A mark is the next of the text. It may be the answer's own words."""
        is_opening = mark == self._thinking.opening
        if self._parser.is_calling:
            is_mark = False
        elif self._is_thinking:
            is_mark = not is_opening or not self._thought  # a model may open what the template has opened
        else:
            is_mark = self._is_blank or self._thinking.is_special
        if not is_mark:
            return self._say(1)
        self._pending = self._pending[len(mark) :]
        return self._turn(is_opening)

    def _turn(self, is_opening: bool) -> list[StreamEvent]:
        """A thought begins or ends here, and with it another stretch. A second mark of a kind says nothing new."""
        if is_opening == self._is_thinking:
            return []
        events = [*self._tell(self._parser.finish()), *self._close_thought()]
        self._num_calls_before += self._parser.num_calls
        self._parser = self._make_parser()
        self._is_thinking, self._is_behind_thought, self._is_blank = is_opening, not is_opening, True
        self._space = ""
        return events

    def _tell(self, events: Iterable[StreamEvent]) -> Iterator[StreamEvent]:
        for event in events:
            if isinstance(event, TextDelta):
                yield from self._tell_thought(event.text) if self._is_thinking else self._tell_text(event.text)
            elif not isinstance(event, ThoughtDelta | ThoughtClosed):
                if isinstance(event, CallOpened):
                    yield from self._close_thought()
                    yield from self._tell_space()
                yield replace(event, index=event.index + self._num_calls_before)

    def _tell_thought(self, text: str) -> Iterator[StreamEvent]:
        if body := self._thought.push(text):
            yield ThoughtDelta(body)

    def _tell_text(self, text: str) -> Iterator[StreamEvent]:
        """None follows a call, as everywhere; and space around a thought is not content."""
        if self._num_calls_before:
            return
        text = text.lstrip() if self._is_behind_thought else self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._is_behind_thought = False
            yield TextDelta(body)

    def _tell_space(self) -> Iterator[StreamEvent]:
        space, self._space = self._space, ""
        if space:
            yield TextDelta(space)

    def _close_thought(self) -> list[StreamEvent]:
        """An empty one is none: formats have it where there is nothing to think."""
        self._is_thinking = False
        thought, self._thought = str(self._thought), _Trimmed()
        return [ThoughtClosed(Thought(thought))] if thought else []
