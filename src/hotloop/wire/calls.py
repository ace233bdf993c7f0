"""A tool call as its pieces come over a wire, and the moment it is whole.

    {"city": "Par|is"}
                     ^ closed here: the tool can begin as soon as the answer goes on

A chat has no word for the end of a call; messages and responses have one, and say it of calls that were cut off, too.
So a call is whole when the brackets of its arguments are closed. What has no brackets is whole if the answer is. A
server may close the brackets of an answer that has run out of room, around whatever was written by then: so the end of
a call is believed only once something else follows it, or the answer ends for another reason.
"""

from collections.abc import Callable, Iterable, Iterator

from hotloop.core.nesting import Nesting
from hotloop.core.stream import CallClosed, CallDelta, CallOpened
from hotloop.wire.arguments import answer_stem
from hotloop.wire.event import Event

NameCall = Callable[[str, int], str]
"""An id for a call that comes without one, from what is left of the answer's id without its prefix, and a number."""


def name_call(stem: str, number: int) -> str:
    return f"call_{stem}_{number}"


class OpenCall:
    """One call of an answer."""

    def __init__(self, index: int, call_id: str, name: str = "") -> None:
        self.id = call_id
        self.name = name
        self.has_arguments = False
        self.is_opened = False
        self.is_closed = False
        self._index = index
        self._empty = ""  # all that was written so far is this empty object
        self._nesting = Nesting()

    @property
    def is_empty(self) -> bool:
        """Whether an empty object is all it has."""
        return bool(self._empty)

    def open(self) -> Iterator[Event]:
        """Tell of it, if that was not done: its name is whole."""
        if not self.is_opened:
            self.is_opened = True
            yield CallOpened(self._index, self.id, self.name)

    def add(self, arguments: str) -> Iterator[Event]:
        """More of the arguments. What comes behind their end is dropped: the tool has begun.

        But some servers begin with an empty object and then write the arguments: so its end is not believed.
        """
        if not arguments or self.is_closed or (self._empty and not arguments.lstrip().startswith("{")):
            return
        yield from self.open()
        self._empty = arguments if not self.has_arguments and arguments.strip() == "{}" else ""
        self.has_arguments = True
        if self._empty:
            return
        end = self._find_end(arguments)
        yield CallDelta(self._index, arguments[:end])
        if end is not None:
            yield from self.close()

    def close(self) -> Iterator[Event]:
        """Nothing more comes."""
        yield from self.open()
        if not self.is_closed:
            self.is_closed = True
            if self._empty:
                yield CallDelta(self._index, self._empty)
            yield CallClosed(self._index)

    def _find_end(self, arguments: str) -> int | None:
        nesting = self._nesting
        for i, char in enumerate(arguments):
            nesting.push(char)
            if char in "}]" and nesting.depth <= 0 and not nesting.is_in_string:
                return i + 1
        return None


class OpenCalls:
    """All calls of an answer, and the ends that are not believed yet."""

    def __init__(self, name_call: NameCall) -> None:
        self.all: list[OpenCall] = []
        self.answer_id = ""
        self._name_call = name_call
        self._held: list[Event] = []

    def begin(self, call_id: str | None, name: str = "") -> OpenCall:
        """`call_id` is what the server calls it, if it does."""
        number = len(self.all)
        call = OpenCall(number, call_id or self._name_call(answer_stem(self.answer_id), number), name)
        self.all.append(call)
        return call

    def hold(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events, but for the ends of calls among them."""
        for event in events:
            if isinstance(event, CallClosed):
                self._held.append(event)
            else:
                yield event

    def settle(self) -> Iterator[Event]:
        """The answer has gone on, or is whole: so the calls before are."""
        held, self._held = self._held, []
        yield from held

    def finish(self) -> Iterator[Event]:
        """The answer is whole."""
        yield from self.settle()
        for call in self.all:
            yield from call.close()
