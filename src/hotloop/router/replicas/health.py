"""Whether a replica is healthy: probed every second, and seen from its answers.

A probe that is refused takes a replica out at once; probes that are not answered do so when two in a row were missed
and not a byte has come from it meanwhile. A replica that is out is probed on, and is back with the first good answer.
"""

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Literal

import msgspec

from hotloop.router.kinds import KINDS, METRICS_PATHS, Kind, kind_by_metrics, kind_by_url, read_load
from hotloop.router.replicas.replica import Replica
from hotloop.router.upstream.wire import UpstreamFailed, UpstreamRequest, fetch

MAX_MISSED = 2
DISCOVERY_EVERY = 30
"""After so many probes a replica is asked again which models it has."""
MAX_PAGE_BYTES = 4 << 20


class Watch:
    """Keeps probing one replica. `on_change` hears of every change of state, `on_probe` of every probe."""

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
        for turn in count():
            await self.probe(is_discovery=turn % DISCOVERY_EVERY == 0 or self._replica.state != "up")
            self._on_probe(self._replica)
            await asyncio.sleep(self._interval_s)

    async def probe(self, *, is_discovery: bool) -> None:
        replica, begun_at, is_gone = self._replica, time.monotonic(), False
        try:
            if is_discovery:
                await self._discover()
            complaint = await self._check()
        except UpstreamFailed as failure:
            complaint, is_gone = str(failure), failure.is_gone
        if not complaint:
            replica.num_missed = 0
            self._set("up", "healthy")
        elif is_gone or replica.last_byte_at <= begun_at:
            replica.num_missed += 1
            if is_gone or replica.num_missed >= MAX_MISSED or replica.state == "new":
                self._set("down", complaint)

    def _set(self, state: Literal["up", "down"], why: str) -> None:
        replica = self._replica
        if replica.state == "leaving":
            return
        has_changed = replica.state != state
        replica.state, replica.why = state, why
        if has_changed:
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
            replica.models = {name: name for name in _model_names(page)} if status == 200 else {}

    async def _recognise(self) -> Kind:
        for path in METRICS_PATHS:
            status, page = await self._get(path)
            kind = kind_by_metrics(page.decode("utf-8", "replace")) if status == 200 else None
            if kind:
                return kind
        return KINDS["openai_compatible"]

    async def _check(self) -> str:
        """What is wrong; empty if nothing is. Takes down the load as well."""
        replica, kind = self._replica, self._replica.kind
        path = replica.config.health_path or kind.health_path
        if path:
            status, _ = await self._get(path)
            if status >= 400:
                return f"{path} answered {status}"
        if kind.metrics_path and kind.running:
            status, page = await self._get(kind.metrics_path)
            load = read_load(kind, page.decode("utf-8", "replace")) if status == 200 else None
            replica.num_elsewhere = max(0, (load or 0) - replica.num_running)
        return ""

    async def _get(self, path: str) -> tuple[int, bytes]:
        request = UpstreamRequest("GET", path, self._replica.headers({}))
        status, _, page = await fetch(self._replica.probes, request, MAX_PAGE_BYTES)
        return status, page


class _ModelCard(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ModelCard] = []


def _model_names(page: bytes) -> list[str]:
    try:
        return [card.id for card in msgspec.json.decode(page, type=_ModelList).data]
    except msgspec.MsgspecError:
        return []
