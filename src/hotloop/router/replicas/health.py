"""Whether a replica is healthy: probed every second, and seen from its answers.

A probe that is refused takes a replica out at once; probes that are not answered do so when two in a row were missed
and not a byte has come from it meanwhile. A replica that is out is probed on, and is back with the first good answer.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Annotated, Any

import msgspec

from hotloop.core.structs import compiled
from hotloop.router.kinds import KINDS, METRICS_PATHS, ReplicaKind, kind_by_metrics, kind_by_url, read_load
from hotloop.router.replicas.replica import Replica, State
from hotloop.router.upstream.wire import UpstreamFailed, UpstreamRequest, fetch, parse_json
from hotloop.wire.models import ServedModel, parse_model

log = logging.getLogger("hotloop.router")

MAX_MISSED = 2
DISCOVERY_EVERY = 30
"""After so many probes a replica is asked again which models it has."""
MAX_PAGE_BYTES = 4 << 20


MAX_MODELS = 10_000
_DRAINING, _SHUTTING_DOWN = "it is shutting down", b"shutting down"


@compiled
class _ModelId(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(max_length=512)]


@compiled
class _SchedulingOptions(msgspec.Struct):
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False


@compiled
class _ModelList(msgspec.Struct):
    data: list[dict[str, Any]] = []


async def watch(
    replica: Replica, interval_s: float, on_change: Callable[[Replica], None], on_probe: Callable[[Replica], None]
) -> None:
    """Keep probing. `on_change` hears of every change of state, `on_probe` of every probe."""
    for turn in count():
        is_discovery = turn % DISCOVERY_EVERY == 0 or replica.state != "up"
        try:
            has_changed = await probe(replica, is_discovery=is_discovery)
        except Exception as error:  # whatever a replica says, it is watched on
            has_changed = _set(replica, "down", f"it cannot be probed: {error}")
            log.log(
                logging.ERROR if has_changed else logging.DEBUG, "the probe of %s failed", replica.name, exc_info=True
            )
        if has_changed:
            on_change(replica)
        on_probe(replica)
        await asyncio.sleep(interval_s)


async def probe(replica: Replica, *, is_discovery: bool) -> bool:
    """Whether its state is another now."""
    begun_at, is_gone = time.monotonic(), False
    replica.is_silent = False
    try:
        if is_discovery:
            await _discover(replica)
        complaint = await _check(replica)
    except UpstreamFailed as failure:
        complaint, is_gone = str(failure), failure.is_gone
        replica.is_silent = failure.is_timeout and replica.last_byte_at <= begun_at
    if not complaint:
        replica.num_missed = 0
        return _set(replica, "up", "healthy")
    if complaint == _DRAINING:
        return _set(replica, "draining", complaint)
    if is_gone or replica.last_byte_at <= begun_at:
        replica.num_missed += 1
        if is_gone or replica.num_missed >= MAX_MISSED or replica.state == "new":
            return _set(replica, "down", complaint)
    return False


def _set(replica: Replica, state: State, why: str) -> bool:
    if replica.state == "leaving":
        return False
    has_changed = replica.state != state
    if has_changed and state == "up":
        replica.missing_apis = frozenset()  # it may be another version now
    replica.state, replica.why = state, why
    return has_changed


async def _discover(replica: Replica) -> None:
    if replica.config.kind == "auto":
        replica.kind = kind_by_url(replica.config.url) or await _recognise(replica)
    if replica.state != "up":
        replica.class_step = await _read_class_step(replica)
    given = replica.config.models
    replica.models = given or replica.models
    if replica.kind.models_path:
        try:
            status, page = await _get(replica, replica.kind.models_path)
        except UpstreamFailed:
            if not given:
                raise
            return  # its list is not needed
        listed = _read_models(page) if status == 200 else None
        if listed is not None or status == 404:  # what cannot be read changes nothing: one without takes any model
            listed = listed or {}
            replica.models = given or {name: name for name in listed}
            replica.cards = {name: _card(name, listed[own]) for name, own in replica.models.items() if own in listed}


async def _read_class_step(replica: Replica) -> int:
    """vLLM's numbers do no harm where it schedules by none, but for old versions, which refuse them. What SGLang's mean
    it has to be asked."""
    if replica.kind.name != "sglang":
        return replica.kind.class_step
    status, page = await _get(replica, "/get_server_info")
    given = parse_json(page, _SchedulingOptions) if status == 200 else None
    if not given or not given.enable_priority_scheduling:
        return 0
    return 1 if given.schedule_low_priority_values_first else -1


def _read_models(page: bytes) -> dict[str, dict[str, Any]] | None:
    """What a list says of each model; None if it cannot be read."""
    found = parse_json(page, _ModelList)
    try:
        return {msgspec.convert(each, _ModelId).id: each for each in found.data[:MAX_MODELS]} if found else None
    except msgspec.ValidationError:
        return None


def _card(name: str, listed: dict[str, Any]) -> ServedModel:
    """Values that only pass through stay the bytes that they came as, which take less room."""
    rest = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in listed.items()}
    return replace(parse_model(name, listed), rest=rest)


async def _recognise(replica: Replica) -> ReplicaKind:
    for path in METRICS_PATHS:
        status, page = await _get(replica, path)
        if status == 200 and (kind := kind_by_metrics(page.decode("utf-8", "replace"))):
            return kind
    return KINDS["openai_compatible"]


async def _check(replica: Replica) -> str:
    """What is wrong; empty if nothing is. Takes down the load as well."""
    kind = replica.kind
    path = replica.config.health_path or kind.health_path
    if path:
        status, _ = await _get(replica, path)
        if status >= 400:
            return f"{path} answered {status}"
    if kind.drain_path:
        status, page = await _get(replica, kind.drain_path)
        if status == 503 and _SHUTTING_DOWN in page:
            return _DRAINING
    if kind.metrics_path and kind.running:
        status, page = await _get(replica, kind.metrics_path)
        load = read_load(kind, page.decode("utf-8", "replace")) if status == 200 else None
        replica.num_elsewhere = max(0, (load or 0) - replica.num_running)
    return ""


async def _get(replica: Replica, path: str) -> tuple[int, bytes]:
    request = UpstreamRequest("GET", path, replica.headers({}))
    status, _, page = await fetch(replica.probes, request, MAX_PAGE_BYTES)
    return status, page
