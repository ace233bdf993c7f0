"""Results of tools that only read, so that the same is not fetched twice: kept for a while, and shared while it comes.

    read x   ├──── runs ────┤ kept for cache_s ........ |        another read x here is answered at once
    read x          └ joins ┤
    write y                        ├── runs ──┤                  drops what was kept of its group, as it begins and ends

Two calls are the same if they are of one tool object, with the same arguments as JSON values and the same things of the
context. A read that overlaps a write of its group is for its caller alone: nobody can tell what it has seen. A tool
without a group is taken to write, and to read, what any other does. Errors are not kept.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from cachetools import LRUCache

from hotloop.agent.predict.history import canonical
from hotloop.agent.tools.outcome import Outcome
from hotloop.agent.tools.tool import FINAL_ANSWER, AgentTool, RunContext
from hotloop.core.errors import ConfigError
from hotloop.wire.arguments import read_arguments

MAX_CHARS = 16_000_000
_ENTRY_CHARS = 500  # what an entry takes beside its text

ReuseKind = Literal["cached", "joined"]


class _Key(NamedTuple):
    scope: str
    tool: int
    arguments: str
    things: tuple[int, ...]


class _Kept(NamedTuple):
    outcome: Outcome
    took_s: float
    until: float
    epoch: tuple[int, int]
    held: tuple[Any, ...]
    """What the ids in its key are of: as long as these live nothing else has them."""


@dataclass(slots=True, eq=False)
class _Coming:
    future: "asyncio.Future[Outcome]"
    began_at: float
    epoch: tuple[int, int]


class Reuse(NamedTuple):
    """A result that need not be fetched."""

    kind: ReuseKind
    saved_s: float
    """What fetching took, as far as it was not waited for."""
    outcome: Outcome | None
    coming: "asyncio.Future[Outcome] | None" = None

    async def wait(self) -> Outcome | None:
        """None if it was broken off: whoever joined it has to fetch for himself."""
        if self.coming is None:
            return self.outcome
        await asyncio.wait({self.coming})
        return None if self.coming.cancelled() else self.coming.result()


class ResultCache:
    """`results=ResultCache()` of an agent; by default each has its own. Bounded; for one event loop at a time. The
    scope `tenant` is all runs that use one cache: give each tenant one.
    """

    def __init__(self, *, max_chars: int = MAX_CHARS, clock: Callable[[], float] = time.monotonic) -> None:
        if max_chars < 1:
            raise ConfigError(f"max_chars must be at least 1, not {max_chars}")
        self._clock = clock
        self._kept: LRUCache[Hashable, _Kept] = LRUCache(max_chars, getsizeof=_size)
        self._coming: dict[Hashable, _Coming] = {}
        self._num_writes = Counter[str]()  # by group, begun and ended; "" has all of them
        self._num_ungrouped = 0
        self._num_writing = Counter[str]()

    def open(self, run_id: str, session_id: str, *, fresh: bool = False) -> "RunResults":
        """For one run. `fresh`: it fetches everything anew; what it fetches is kept for others."""
        scopes = {"run": f"run {run_id}", "session": f"session {session_id}", "tenant": "tenant"}
        return RunResults(self, scopes, fresh=fresh)

    @contextmanager
    def writing(self, group: str) -> Iterator[None]:
        """While this lasts a tool of the group runs that may change what others of it read."""
        self._note_write(group)
        self._num_writing[group] += 1
        try:
            yield
        finally:
            self._num_writing[group] -= 1
            self._note_write(group)

    def _note_write(self, group: str) -> None:
        self._num_writes[""] += 1
        if group:
            self._num_writes[group] += 1
        else:
            self._num_ungrouped += 1

    def epoch(self, group: str) -> tuple[int, int]:
        """Another one after each write that a read of the group may see."""
        return self._num_writes[group], self._num_ungrouped

    def is_writing(self, group: str) -> bool:
        if not group:
            return any(self._num_writing.values())
        return bool(self._num_writing[group] or self._num_writing[""])

    def find(self, key: Hashable, group: str) -> Reuse | None:
        now, epoch = self._clock(), self.epoch(group)
        if kept := self._kept.get(key):
            if kept.epoch == epoch and now < kept.until:
                return Reuse("cached", kept.took_s, kept.outcome)
            del self._kept[key]
        coming = self._coming.get(key)
        is_here = coming and coming.future.get_loop() is asyncio.get_running_loop()
        if coming and is_here and coming.epoch == epoch and not self.is_writing(group):
            return Reuse("joined", now - coming.began_at, None, coming.future)
        return None

    async def fetch(
        self, key: Hashable, tool: AgentTool, held: tuple[Any, ...], fetch: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Fetch a result that others may join meanwhile, and keep it if nothing was written."""
        options, began_at = tool.options, self._clock()
        epoch, is_alone = self.epoch(options.group), self.is_writing(options.group)
        coming = _Coming(asyncio.get_running_loop().create_future(), began_at, epoch)
        self._coming[key] = coming
        try:
            outcome = await fetch()
            coming.future.set_result(outcome)
        finally:
            coming.future.cancel()  # of one that is done nothing comes
            if self._coming.get(key) is coming:
                del self._coming[key]
        is_current = not is_alone and self.epoch(options.group) == epoch
        if options.cache_s and is_current and not outcome.is_error:
            now = self._clock()
            kept = _Kept(outcome, now - began_at, now + options.cache_s, epoch, held)
            if _size(kept) <= self._kept.maxsize:
                self._kept[key] = kept
        return outcome


class RunResults:
    """A cache as one run sees it."""

    def __init__(self, cache: ResultCache, scopes: dict[str, str], *, fresh: bool) -> None:
        self.cache = cache
        self._scopes = scopes
        self._fresh = fresh

    def find(self, tool: AgentTool, arguments: str, run_context: RunContext) -> Reuse | None:
        key = self.key(tool, arguments, run_context)
        return self.cache.find(key, tool.options.group) if key and not self._fresh else None

    def key(self, tool: AgentTool, arguments: str, run_context: RunContext) -> Hashable | None:
        """Equal for two calls if one's result may answer the other; None of a call that is never kept."""
        return self._key(tool, arguments, run_context)[0]

    async def fetch(
        self, tool: AgentTool, arguments: str, run_context: RunContext, fetch: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Have a tool run: one that reads so that others may join, any other as what it is, a write. An agent's
        call is neither: those that it makes are."""
        if not tool.options.read_only:
            if tool.spec.name == FINAL_ANSWER or tool.options.resumable:
                return await fetch()
            with self.cache.writing(tool.options.group):
                return await fetch()
        key, held = self._key(tool, arguments, run_context)
        return await (self.cache.fetch(key, tool, held, fetch) if key else fetch())

    def _key(self, tool: AgentTool, arguments: str, run_context: RunContext) -> tuple[_Key | None, tuple[Any, ...]]:
        given = read_arguments(arguments)
        text = None if given is None else canonical(given)
        if text is None or not tool.options.read_only:
            return None, ()
        things: list[Any] = [run_context.find(wanted) for wanted in tool.wants]
        scope = self._scopes[tool.options.cache_scope]
        return _Key(scope, id(tool), text, tuple(map(id, things))), (tool, *things)


def _size(kept: _Kept) -> int:
    attached = sum(len(each.url) for each in kept.outcome.attachments)
    return len(kept.outcome.text) + len(kept.outcome.whole) + attached + _ENTRY_CHARS
