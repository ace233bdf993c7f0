"""An answer as it is written, whatever API it is written in.

    Begun (TextDelta | ThoughtDelta* ThoughtClosed | CallOpened CallDelta* CallClosed)* Ended

The pieces of several calls may be interleaved; `in_order` brings them one after the other for APIs that cannot have
that. A call that was cut off is never closed. What goes wrong raises a RemoteError instead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from hotloop.core.message import Thought
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, StreamEvent, TextDelta, ThoughtClosed
from hotloop.wire.part import Call, Text
from hotloop.wire.usage import ApiUsage

EndReason = Literal["stop", "calls", "length", "window", "refusal"]
"""`length` is the limit that was asked for, `window` the model's own."""


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer begins. `id` is the server's own, empty if it does not say."""

    id: str = ""
    model: str = ""
    usage: ApiUsage = field(default_factory=ApiUsage)


@dataclass(frozen=True, slots=True)
class Ended:
    reason: EndReason = "stop"
    stop: str | None = None
    """The stop string that ended it, if the server tells."""
    usage: ApiUsage = field(default_factory=ApiUsage)


Event = Begun | StreamEvent | Ended


class CallOrder:
    """Holds back what follows an open call until that call is closed, so that calls come one after the other."""

    def __init__(self) -> None:
        self._open: int | None = None
        self._held: list[Event] = []

    def push(self, event: Event) -> Iterator[Event]:
        if isinstance(event, Ended):
            while self._held:
                self._open = None
                yield from self._release()
            yield event
        elif self._open is not None and getattr(event, "index", None) != self._open:
            self._held.append(event)
        else:
            yield event
            if isinstance(event, CallOpened):
                self._open = event.index
            elif isinstance(event, CallClosed):
                self._open = None
                yield from self._release()

    def _release(self) -> Iterator[Event]:
        held, self._held = self._held, []
        for event in held:
            yield from self.push(event)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Its parts are in the order in which they began; texts that follow each other are one."""

    id: str = ""
    model: str = ""
    parts: tuple[Text | Thought | Call, ...] = ()
    ended: Ended = field(default_factory=Ended)
    cut: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def thoughts(self) -> list[Thought]:
        return [part for part in self.parts if isinstance(part, Thought)]


def gather(events: Iterable[Event]) -> Answer:
    begun, ended = Begun(), Ended()
    parts: list[Thought | CallOpened | list[str]] = []  # a list is a text
    arguments: dict[int, list[str]] = {}
    open_calls: dict[int, str] = {}
    for event in events:
        match event:
            case Begun():
                begun = event
            case Ended():
                ended = event
            case TextDelta():
                if not parts or not isinstance(parts[-1], list):
                    parts.append([])
                last = parts[-1]
                assert isinstance(last, list)
                last.append(event.text)
            case ThoughtClosed():
                parts.append(event.thought)
            case CallOpened():
                parts.append(event)
                open_calls[event.index] = event.id
            case CallDelta():
                arguments.setdefault(event.index, []).append(event.arguments)
            case CallClosed():
                open_calls.pop(event.index, None)
    whole: list[Text | Thought | Call] = []
    for part in parts:
        if isinstance(part, CallOpened):
            whole.append(Call(part.id, part.name, "".join(arguments.get(part.index, ()))))
        else:
            whole.append(Text("".join(part)) if isinstance(part, list) else part)
    return Answer(begun.id, begun.model, tuple(whole), ended, frozenset(open_calls.values()))
