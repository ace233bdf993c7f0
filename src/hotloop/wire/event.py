"""An answer as it is written, whatever API it is written in.

    Begun (TextDelta | ThoughtDelta* ThoughtClosed | CallOpened CallDelta* CallClosed)* Ended

The pieces of several calls may be interleaved; `in_order` brings them one after the other for APIs that cannot have
that. A call that was cut off is never closed. What goes wrong raises a RemoteError instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from hotloop.core.message import Thought
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta
from hotloop.wire.usage import Usage

EndReason = Literal["stop", "calls", "length", "window", "refusal"]
"""`length` is the limit that was asked for, `window` the model's own."""


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer begins. `id` is the server's own, empty if it does not say."""

    id: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtClosed:
    """A thought is whole: the text of its deltas, and its signature."""

    thought: Thought


@dataclass(frozen=True, slots=True)
class Ended:
    reason: EndReason = "stop"
    stop: str | None = None
    """The stop string that ended it, if the server tells."""
    usage: Usage = field(default_factory=Usage)


Event = Begun | TextDelta | ThoughtDelta | ThoughtClosed | CallOpened | CallDelta | CallClosed | Ended


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
