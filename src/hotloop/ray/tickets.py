"""What was placed and is not over yet, so that what a replica has to do comes to nothing when nothing runs.

    offer      place, and count on it                       offered
    settle     the request goes there                       running     (or to another one, or to nobody)
    complete   nothing more comes from there                awaited, until its answer's summary is known

A request may be offered again if nobody took it. One event loop's; knows nothing of Ray.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from hotloop.router.placement.placement import Placement, Ticket
from hotloop.router.placement.policy import PromptDigest, ReplicaChoice
from hotloop.router.summary import AnswerSummary
from hotloop.router.upstream.wire import Headers

CallSoon = Callable[[Callable[[], None]], object]
"""Calls something on the event loop, from any thread."""


class InFlight:
    """What becomes of a request, from the ingress to the placement: two threads of one process. A replica has no use
    for it, so what is pickled is an empty one."""

    def __init__(self) -> None:
        self.begun: Future[None] = Future()
        """Done when something of the answer is there."""
        self.ended: Future[AnswerSummary] = Future()
        """Done when nothing more will come, however it ended."""

    def __reduce__(self) -> tuple[type["InFlight"], tuple[()]]:
        return InFlight, ()


@dataclass(frozen=True, slots=True)
class Outline(PromptDigest):
    """A prompt to place. The default is one that any replica answers alike."""

    owner: str = ""
    """The replica that made what this builds on; nobody else knows it."""
    trip: InFlight = field(default_factory=InFlight)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    status: int
    headers: Headers
    replica: str
    choice: ReplicaChoice | None


class Tickets:
    """An attempt is one try to get a request to a replica."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._offered: dict[Hashable, tuple[Ticket, Outline]] = {}
        self._running: defaultdict[tuple[str, str], list[tuple[Ticket, Outline]]] = defaultdict(list)

    def remove_replica(self, name: str) -> None:
        self.placement.remove_replica(name)
        for key in [key for key in self._running if key[0] == name]:
            del self._running[key]

    def offer(self, attempt: Hashable, outline: Outline, names: Collection[str]) -> ReplicaChoice | None:
        """Who should take it. Offered before, it was not taken."""
        self._withdraw(attempt)
        ticket = self.placement.place(outline, now=time.monotonic(), among=names)
        if ticket is None:
            return None
        self._offered[attempt] = ticket, outline
        return ticket.choice

    def settle(self, attempt: Hashable, name: str | None, request_id: str, call_soon: CallSoon) -> None:
        """It goes to this replica, whoever was chosen; None: whoever asked has gone."""
        if attempt not in self._offered:
            return
        ticket, outline = self._offered[attempt]
        if ticket.choice.name == name:
            del self._offered[attempt]
        else:
            self._withdraw(attempt)
            moved = self.placement.place(outline, now=time.monotonic(), among=[name]) if name else None
            if moved is None or name is None:
                return
            ticket = moved
        self._running[name, request_id].append((ticket, outline))
        outline.trip.begun.add_done_callback(lambda _: call_soon(partial(self.placement.begin, ticket)))

    def complete(self, name: str, request_id: str, call_soon: CallSoon) -> None:
        """Nothing more comes from there; what the answer was is still to be heard."""
        running = self._running.get((name, request_id))
        if not running:
            return
        ticket, outline = running.pop()
        if not running:
            del self._running[name, request_id]

        def finish(ended: Future[AnswerSummary]) -> None:
            call_soon(partial(self.placement.finish, ticket, ended.result(), now=time.monotonic()))

        outline.trip.ended.add_done_callback(finish)

    def _withdraw(self, attempt: Hashable) -> None:
        if attempt in self._offered:
            ticket, _ = self._offered.pop(attempt)
            self.placement.finish(ticket, AnswerSummary(num_output=0), now=time.monotonic())
