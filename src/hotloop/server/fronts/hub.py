"""All fronts of one engine: passes changes from one to the others, and adds up what they count.

Changes are kept, up to a bound in bytes, for a front that starts after them: it takes the place of one that is gone.
Lives on the event loop.
"""

import asyncio
from collections import deque
from typing import Any, Protocol

from hotloop.core.errors import HotloopError
from hotloop.engine.engine import Engine
from hotloop.server.engine_metrics import EngineMetrics
from hotloop.server.metrics import Counts, add_counts

MAX_KEPT_BYTES = 64 << 20
_COUNT_S = 1.0  # within which a front has to count; else what it counted last is taken


class Host(Protocol):
    """The end of a front's link."""

    def tell(self, what: str, value: Any = None) -> None: ...

    async def ask(self, what: str) -> Any: ...

    def send_frame(self, body: bytes) -> None: ...

    def read_sent(self) -> None:
        """Take all that the front has sent by now."""

    def fail(self, error: Exception) -> None:
        """On any thread: the engine will never run again."""


class Hub:
    def __init__(
        self, engine: Engine, model: str, *, num_fronts: int = 1, max_kept_bytes: int = MAX_KEPT_BYTES
    ) -> None:
        self.num_fronts = num_fronts
        self._metrics = EngineMetrics(engine, model)
        self._hosts: dict[Host, Counts] = {}
        self._counts_of_gone: Counts = []
        self._kept: deque[bytes] = deque()
        self._num_kept_bytes = 0
        self._max_kept_bytes = max_kept_bytes
        engine.on_failure = self._fail

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(self._hosts)

    @property
    def num_kept_bytes(self) -> int:
        return self._num_kept_bytes

    def render_metrics(self) -> bytes:
        return self._metrics.render()

    def join(self, host: Host) -> None:
        self._hosts[host] = []
        for frame in self._kept:
            host.send_frame(frame)

    def leave(self, host: Host) -> None:
        if (counts := self._hosts.pop(host, None)) is not None:
            self._counts_of_gone = add_counts(self._counts_of_gone, counts)

    def pass_on(self, frame: bytes, sender: Host) -> None:
        if self.num_fronts == 1:
            return
        self._kept.append(frame)
        self._num_kept_bytes += len(frame)
        while self._num_kept_bytes > self._max_kept_bytes:
            self._num_kept_bytes -= len(self._kept.popleft())
        for host in self._hosts:
            if host is not sender:
                host.send_frame(frame)

    def read_sent(self, asking: Host) -> None:
        """Pass on all that the others have sent by now."""
        for host in self.hosts:
            if host is not asking:
                host.read_sent()

    async def count(self, asking: Host, own: Counts) -> Counts:
        """What was counted in all other fronts, those that are gone among them."""
        if asking in self._hosts:  # it may have ended since it asked
            self._hosts[asking] = own
        others = [host for host in self._hosts if host is not asking]
        await asyncio.gather(*map(self._count, others))
        return add_counts(self._counts_of_gone, *(self._hosts.get(host, []) for host in others))

    async def _count(self, host: Host) -> None:
        try:
            counts = await asyncio.wait_for(host.ask("counts"), _COUNT_S)
        except (TimeoutError, HotloopError):
            return
        if host in self._hosts:
            self._hosts[host] = counts

    def _fail(self, error: Exception) -> None:
        """On the engine's thread."""
        for host in self.hosts:
            host.fail(error)
