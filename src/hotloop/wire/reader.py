"""What the readers of all formats have in common: an answer that begins, calls whose pieces come, and the end.

    {"city": "Par|is"}
                     ^ closed here: the tool can begin as soon as the answer goes on

No API tells the end of a call reliably, so a call is whole when the brackets of its arguments are closed; what has no
brackets is whole if the answer is. A server may close the brackets of an answer that has run out of room, and a filter
may stop one anywhere: so the end of a call is believed only once something else follows it, or the model itself has
ended the answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from hotloop.core.nesting import Nesting
from hotloop.core.stream import CallClosed, CallDelta, CallOpened
from hotloop.wire.arguments import answer_stem
from hotloop.wire.errors import bad_answer
from hotloop.wire.event import Begun, Ended, EndReason, Event
from hotloop.wire.sse import ServerEvent
from hotloop.wire.usage import ApiUsage

NameCall = Callable[[str, int], str]
"""An id for a call that comes without one, from what is left of the answer's id without its prefix, and a number."""

CUT: frozenset[EndReason] = frozenset(("length", "window", "refusal"))
"""The model did not end the answer itself, so its last call may not be what the model meant to write."""

Shape = TypeVar("Shape", bound=msgspec.Struct)


def name_call(stem: str, number: int) -> str:
    return f"call_{stem}_{number}"


class OpenCall:
    def __init__(self, index: int, call_id: str, name: str = "") -> None:
        self.id = call_id
        self.name = name
        self.has_arguments = self.is_opened = self.is_closed = False
        self._index = index
        self.empty = ""  # all that was written so far is this empty object
        self._nesting = Nesting()

    def open(self) -> Iterator[Event]:
        """Tell of it, if that was not done: its name is whole."""
        if not self.is_opened:
            self.is_opened = True
            yield CallOpened(self._index, self.id, self.name)

    def add(self, arguments: str) -> Iterator[Event]:
        """More of the arguments; what comes behind their end is dropped. Some servers begin with an empty object and
        then write the arguments: so its end is not believed."""
        if not arguments or self.is_closed or (self.empty and not arguments.lstrip().startswith("{")):
            return
        yield from self.open()
        self.empty = arguments if not self.has_arguments and arguments.strip() == "{}" else ""
        self.has_arguments = True
        if self.empty:
            return
        end = self._find_end(arguments)
        yield CallDelta(self._index, arguments[:end])
        if end is not None:
            yield from self.close()

    def close(self) -> Iterator[Event]:
        yield from self.open()
        if not self.is_closed:
            self.is_closed = True
            if self.empty:
                yield CallDelta(self._index, self.empty)
            yield CallClosed(self._index)

    def _find_end(self, arguments: str) -> int | None:
        nesting = self._nesting
        for i, char in enumerate(arguments):
            nesting.push(char)
            if char in "}]" and not nesting.is_open:
                return i + 1
        return None


class Reader(ABC):
    """An answer as events. Raises RemoteError for what makes no sense, and for failures."""

    def __init__(self, name_call: NameCall = name_call) -> None:
        self.is_over = False
        """Whether the last word has been said."""
        self.usage: ApiUsage | None = None
        self._has_begun = False
        self._stem = ""
        self._name_call = name_call
        self._calls: list[OpenCall] = []
        self._held: list[Event] = []  # ends of calls that are not believed yet

    @abstractmethod
    def push(self, event: ServerEvent) -> Iterator[Event]: ...

    @abstractmethod
    def finish(self) -> Iterator[Event]:
        """There are no more events; raises RemoteError if the answer is not whole."""

    @abstractmethod
    def whole(self, data: bytes) -> Iterator[Event]:
        """An answer that came at once."""

    def _begin(self, answer_id: Any = None, model: Any = None) -> Iterator[Event]:
        if not self._has_begun:
            self._has_begun = True
            answer_id, model = (value if isinstance(value, str) else "" for value in (answer_id, model))
            self._stem = answer_stem(answer_id)
            yield Begun(answer_id, model, self.usage or ApiUsage())

    def _begin_call(self, call_id: str | None, name: str = "") -> OpenCall:
        """`call_id` is what the server calls it, if it does."""
        number = len(self._calls)
        call = OpenCall(number, call_id or self._name_call(self._stem, number), name)
        self._calls.append(call)
        return call

    def _hold(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, CallClosed):
                self._held.append(event)
            else:
                yield event

    def _settle(self) -> Iterator[Event]:
        """The answer has gone on, or is whole: so the calls before are."""
        held, self._held = self._held, []
        yield from held

    def _end(self, reason: EndReason, stop: str | None = None) -> Iterator[Event]:
        """Calls of an answer that was cut off stay open, unless their end was believed before."""
        self.is_over = True
        if reason not in CUT:
            yield from self._settle()
            for call in self._calls:
                yield from call.close()
        if reason == "stop" and stop is None and self._calls:
            reason = "calls"
        yield Ended(reason, stop, self.usage or ApiUsage())


def decode(decoder: "msgspec.json.Decoder[Shape]", data: bytes | str) -> Shape:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_answer(error) from None
