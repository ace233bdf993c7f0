"""Which session works for which: an agent's sub-agents, theirs, and so on. Names only; the oldest are forgotten.

root ── a ── a1        a request of a1 is charged to the root, and closing a closes a1
     └─ b
"""

from collections.abc import Iterator

from cachetools import FIFOCache

MAX_SESSIONS = 8192
MAX_DEPTH = 16


class SessionTree:
    def __init__(self) -> None:
        self._parents: FIFOCache[str, str] = FIFOCache(MAX_SESSIONS)

    def add(self, name: str, parent: str) -> str:
        """A session has a request; returns its root. Once it has a parent it keeps that one: a session that is its own
        ancestor, or is too far below its root, is a root."""
        if name and parent and name not in self._parents:
            line = [parent, *self._above(parent)]
            if name not in line and len(line) < MAX_DEPTH:
                self._parents[name] = parent
        lowest = name or parent
        return (*self.above(lowest), lowest)[0]

    def above(self, name: str) -> tuple[str, ...]:
        """The sessions that it works for, the root first."""
        return tuple(self._above(name))[::-1]

    def below(self, name: str) -> list[str]:
        """The session and all that work for it."""
        return [name, *(each for each in self._parents if name in self._above(each))]

    def forget(self, name: str) -> None:
        self._parents.pop(name, None)

    def _above(self, name: str) -> Iterator[str]:
        while name := self._parents.get(name, ""):
            yield name
