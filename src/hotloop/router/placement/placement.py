"""Keeps what the policies look at: who holds which prefix, where each session was, how much everybody has to do.

Used by the router for real requests and by the simulator for recorded ones; time comes from outside. Bounded.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hotloop.router.index import PrefixIndex
from hotloop.router.policy import Choice, Placing, Policy, View

MAX_SESSIONS = 100_000
FADE_S = 300.0
"""How fast what a replica was given lately is forgotten: by e in this time."""
OUTPUT_COST = 8.0
"""What a token written costs, in tokens read."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that was placed; given back when it is over."""

    choice: Choice
    work_tokens: float


class Placement:
    """Places requests. `block_tokens` is how many tokens a hash of a key stands for."""

    def __init__(self, policy: Policy, *, block_tokens: int, seed: int | None = None) -> None:
        self._policy = policy
        self._block_tokens = block_tokens
        self._index: PrefixIndex[str] = PrefixIndex()
        self._views: dict[str, View] = {}
        self._faded_at = 0.0
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._dice = random.Random(seed)
        self._num_placed = 0

    def add_replica(self, name: str, *, capacity_tokens: int, weight: float = 1.0) -> None:
        self._index.remove_replica(name)
        self._index.add_replica(name, max(1, capacity_tokens // self._block_tokens))
        self._views[name] = View(name, weight=weight)

    def remove_replica(self, name: str) -> None:
        self._index.remove_replica(name)
        self._views.pop(name, None)

    def place(
        self,
        key: bytes,
        num_tokens: int,
        *,
        session: str = "",
        num_output: int = 0,
        now: float = 0.0,
        among: frozenset[str] | None = None,
    ) -> Ticket | None:
        """Choose a replica for a prompt, and count on it; None if there is none to choose from."""
        views = [view for view in self._views.values() if among is None or view.name in among]
        if not views:
            return None
        self._fade(now)
        with self._seen(key, num_tokens, session):
            choice = self._policy(views, Placing(num_tokens, session, self._num_placed, self._dice))
        self._num_placed += 1
        self._index.insert(choice.name, key)
        view = self._views[choice.name]
        view.held_tokens = self._index.num_blocks(choice.name) * self._block_tokens
        if session:
            self._remember(session, choice.name)
        work = num_tokens - choice.matched_tokens + OUTPUT_COST * num_output
        view.work_tokens += work
        view.recent_tokens += work
        view.num_running += 1
        return Ticket(choice, work)

    def finish(self, ticket: Ticket) -> None:
        """A request that was placed is over, however it ended."""
        view = self._views.get(ticket.choice.name)
        if view:
            view.num_running -= 1
            view.work_tokens = max(0.0, view.work_tokens - ticket.work_tokens)

    def check(self) -> None:
        self._index.check()
        assert len(self._homes) <= MAX_SESSIONS
        assert all(view.work_tokens >= 0 and not view.matched_tokens for view in self._views.values())

    @contextmanager
    def _seen(self, key: bytes, num_tokens: int, session: str) -> Iterator[None]:
        """While the body runs, the views know what they have of this prompt, and whose session it is."""
        touched = []
        for name, num_blocks in self._index.match(key).items():
            view = self._views[name]
            view.matched_tokens = min(num_blocks * self._block_tokens, num_tokens)
            touched.append(view)
        home = self._views.get(self._homes.get(session, "")) if session else None
        if home:
            home.is_home = True
            touched.append(home)
        try:
            yield
        finally:
            for view in touched:
                view.matched_tokens, view.is_home = 0, False

    def _fade(self, now: float) -> None:
        """Now and then is enough, and cheaper than for every request."""
        if now - self._faded_at > FADE_S / 16:
            share = math.exp((self._faded_at - now) / FADE_S)
            self._faded_at = now
            for view in self._views.values():
                view.recent_tokens *= share

    def _remember(self, session: str, name: str) -> None:
        self._homes[session] = name
        self._homes.move_to_end(session)
        if len(self._homes) > MAX_SESSIONS:
            self._homes.popitem(last=False)
