"""An answer that is asked for again, since it broke off, told once: what was told before is not repeated.

    first    Let me look.[weather: {"city": "Ro      the connection broke
    again    Let me look.[weather: {"city": "Rome"}]
    told     Let me look.[weather: {"city": "Ro │ me"}]

A model that says something else makes the reader begin the turn anew, with a `TurnRestarted`.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from hotloop.agent.events import CallArguments, CallOpened, Event, Text, TurnRestarted
from hotloop.core import stream
from hotloop.wire import event as wire

Emit = Callable[[Event], None]


class Retelling:
    """The events of one turn's answers, the last of which counts."""

    def __init__(self, emit: Emit, turn: int, on_restart: Callable[[], None], taken: Collection[str] = ()) -> None:
        """`taken` are the ids of calls that were made before."""
        self._emit = emit
        self._taken = taken
        self._on_restart = on_restart
        self._turn = turn
        self._told: list[str] = []  # pieces: a text, a call's name, its arguments
        self._ids: list[str] = []  # of the calls that were told of
        self._begin()

    def _begin(self) -> None:
        self._now_ids: dict[int, str] = {}
        self._left = "".join(self._told)  # what was told and is not repeated yet
        self._held: list[tuple[Event, str]] = []
        self._known_ids = set(self._ids)
        self._reason = ""

    @property
    def is_following(self) -> bool:
        """Whether all that is said was told before."""
        return bool(self._left)

    def has_told(self, call_id: str) -> bool:
        """Whether a call was told of in an earlier answer, and this one has not said anything else so far."""
        return call_id in self._known_ids

    def restart(self, reason: str) -> None:
        """The answer broke off, and comes again from its beginning."""
        self._begin()
        self._reason = reason

    def rename(self, event: wire.Event) -> wire.Event:
        """A call that comes again has the id that it had, and another one an id that no other has: some servers number
        the calls of each answer from 0, and what was decided of one is not of another."""
        if isinstance(event, stream.CallOpened):
            number = len(self._now_ids)
            is_known = self.is_following and number < len(self._ids)
            call_id = self._ids[number] if is_known else self._make_unique(event.id)
            self._now_ids[event.index] = call_id
            return stream.CallOpened(event.index, call_id, event.name)
        return event

    def _make_unique(self, call_id: str) -> str:
        ids = (call_id, *(f"{call_id}_{n}" for n in range(2, len(self._taken) + len(self._now_ids) + 3)))
        return next(each for each in ids if each not in self._taken and each not in self._now_ids.values())

    def tell(self, event: wire.Event) -> None:
        match event:
            case stream.TextDelta():
                self._push(Text(self._turn, event.text), event.text)
            case stream.CallOpened():
                self._push(CallOpened(self._turn, event.id, event.name), f"\0{event.name}\0")
                if not self.is_following:
                    self._ids = list(self._now_ids.values())
            case stream.CallDelta():
                call_id = self._now_ids[event.index]
                self._push(CallArguments(self._turn, call_id, event.arguments), event.arguments)

    def end(self) -> None:
        """The answer is whole: one that says less than was told is another."""
        if self._left:
            self._diverge()

    def _push(self, event: Event, piece: str) -> None:
        if not self._left:
            self._tell(event, piece)
        elif self._left.startswith(piece):
            self._left = self._left[len(piece) :]
            self._held.append((event, piece))
        elif piece.startswith(self._left) and not isinstance(event, CallOpened):
            rest, self._left = piece[len(self._left) :], ""
            self._tell(_with_rest(event, rest), rest)
        else:
            self._held.append((event, piece))
            self._diverge()

    def _diverge(self) -> None:
        held, self._held, self._left, self._told = self._held, [], "", []
        self._ids, self._known_ids = list(self._now_ids.values()), set()
        self._emit(TurnRestarted(self._turn, self._reason))
        for event, piece in held:
            self._tell(replace(event, at=time.monotonic()), piece)
        self._on_restart()

    def _tell(self, event: Event, piece: str) -> None:
        self._told.append(piece)
        self._emit(event)


def _with_rest(event: Event, rest: str) -> Event:
    if isinstance(event, CallArguments):
        return replace(event, arguments=rest)
    assert isinstance(event, Text), "a name is not told in pieces"
    return replace(event, text=rest)
