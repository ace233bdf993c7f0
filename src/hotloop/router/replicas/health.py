"""How a replica is: asked every second, and told by what its answers do.

A probe that is refused takes a replica out at once; probes that are not answered do so when two in a row were missed
and not a byte has come from it meanwhile. Whoever is taken out is asked on, and is back with the first good answer.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from hotloop.core.errors import HotloopError
from hotloop.router.kinds import KINDS, METRICS_PATHS, Kind, kind_by_metrics, kind_by_url, read_load
from hotloop.router.replicas.replica import Replica
from hotloop.router.upstream.wire import UpstreamFailed, UpstreamRequest

MAX_MISSED = 2
DISCOVERY_EVERY = 30
"""After so many probes a replica is asked again which models it has."""
MAX_PAGE_BYTES = 4 << 20


class ProbeFailed(HotloopError):
    """A replica did not say that it is well; `is_gone` if there is nobody to say so."""

    def __init__(self, message: str, *, is_gone: bool = False) -> None:
        super().__init__(message)
        self.is_gone = is_gone


class Watch:
    """Keeps asking one replica. `on_change` hears of every change of state, `on_probe` that it was asked."""

    def __init__(
        self,
        replica: Replica,
        interval_s: float,
        on_change: Callable[[Replica], None],
        on_probe: Callable[[Replica], None],
    ) -> None:
        self._replica = replica
        self._interval_s = interval_s
        self._on_change = on_change
        self._on_probe = on_probe

    async def run(self) -> None:
        for turn in range(1 << 62):
            await self.probe(is_discovery=turn % DISCOVERY_EVERY == 0 or self._replica.state != "up")
            self._on_probe(self._replica)
            await asyncio.sleep(self._interval_s)

    async def probe(self, *, is_discovery: bool) -> None:
        replica, begun_at = self._replica, time.monotonic()
        try:
            if is_discovery:
                await self._discover()
            await self._ask_health()
        except ProbeFailed as failure:
            self._miss(failure, begun_at)
        else:
            replica.num_missed = 0
            self._set("up", "well")

    def _miss(self, failure: ProbeFailed, begun_at: float) -> None:
        replica = self._replica
        if replica.last_byte_at > begun_at and not failure.is_gone:
            return
        replica.num_missed += 1
        if failure.is_gone or replica.num_missed >= MAX_MISSED or replica.state == "new":
            self._set("down", str(failure))

    def _set(self, state: str, why: str) -> None:
        replica = self._replica
        if replica.state == "leaving":
            return
        has_changed, replica.why = replica.state != state, why
        if has_changed:
            replica.state = "up" if state == "up" else "down"
            self._on_change(replica)

    async def _discover(self) -> None:
        """What it is, and which models it has."""
        replica = self._replica
        if replica.config.kind == "auto":
            replica.kind = kind_by_url(replica.config.url) or await self._recognise()
        if replica.config.models:
            replica.models = replica.config.models
        elif replica.kind.models_path:
            status, page = await self._get(replica.kind.models_path)
            names = _model_names(page) if status == 200 else []
            replica.models = {name: name for name in names}

    async def _recognise(self) -> Kind:
        for path in METRICS_PATHS:
            status, page = await self._get(path)
            kind = kind_by_metrics(page.decode("utf-8", "replace")) if status == 200 else None
            if kind:
                return kind
        return KINDS["openai_compatible"]

    async def _ask_health(self) -> None:
        kind, path = self._replica.kind, self._replica.config.health_path or self._replica.kind.health_path
        if path:
            status, _ = await self._get(path)
            if status >= 400:
                raise ProbeFailed(f"{path} answered {status}")
        if kind.metrics_path and kind.running:
            status, page = await self._get(kind.metrics_path)
            load = read_load(kind, page.decode("utf-8", "replace")) if status == 200 else None
            self._replica.num_elsewhere = max(0, (load or 0) - self._replica.num_running)

    async def _get(self, path: str) -> tuple[int, bytes]:
        try:
            answer = await self._replica.probes.send(UpstreamRequest("GET", path, self._replica.headers({})))
            try:
                page = bytearray()
                async for chunk in answer.chunks():
                    page += chunk
                    if len(page) > MAX_PAGE_BYTES:
                        raise ProbeFailed(f"{path} is larger than {MAX_PAGE_BYTES} bytes")
            finally:
                await answer.aclose()
        except UpstreamFailed as error:
            raise ProbeFailed(str(error), is_gone=error.stage == "connect" and not error.is_timeout) from None
        return answer.status, bytes(page)


class _ModelCard(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ModelCard] = []


def _model_names(page: bytes) -> list[str]:
    try:
        return [card.id for card in msgspec.json.decode(page, type=_ModelList).data]
    except msgspec.MsgspecError:
        return []
