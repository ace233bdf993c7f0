"""One replica: what it is, how it is, and what it is sent.

    new ──first good probe──> up <──probe──> down          leaving: takes nothing new, and is closed when it is idle
                               └─ draining, as it says itself: takes nothing new, and is gone soon

A replica that sends bytes is alive, whatever its probes say: busy replicas miss them.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from hotloop.core.config import RouterConfig
from hotloop.core.structs import compiled
from hotloop.http.keys import TENANT_HEADER, Tenant
from hotloop.router.config import ReplicaConfig
from hotloop.router.kinds import KINDS, Api, ReplicaKind, target_of
from hotloop.router.replicas.breaker import Breaker
from hotloop.router.request import NOBODY, RoutedRequest
from hotloop.router.upstream.open_upstream import open_upstream
from hotloop.router.upstream.wire import Timeouts, Upstream, UpstreamFailed, UpstreamRequest, fetch, parse_json
from hotloop.wire.hints import HINT_HEADERS
from hotloop.wire.models import ServedModel

State = Literal["new", "up", "draining", "down", "leaving"]

MIN_PROBE_S, MAX_PROBE_S = 0.5, 2.0
"""How long a probe may take: two of its intervals, within reason."""

TOKENS_HEAD_BYTES, TOKEN_BYTES = 64 << 10, 12
"""Of an answer with the tokens of a prompt: no more tokens than the prompt has bytes, but for those of the template."""

FORWARDED = frozenset(
    b"""
    accept content-type user-agent x-request-id traceparent tracestate
    anthropic-beta anthropic-version openai-beta
    """.split()
) | {name.encode() for name in HINT_HEADERS}
"""Request headers that replicas see. Everything else stays here, whatever key or cookie it may be."""


@dataclass(slots=True, eq=False)
class Replica:
    config: ReplicaConfig
    upstream: Upstream
    probes: Upstream
    kind: ReplicaKind
    state: State = "new"
    why: str = "not probed yet"
    models: Mapping[str, str] = field(default_factory=dict)
    """Names clients use, and its own; empty if it takes any."""
    cards: Mapping[str, ServedModel] = field(default_factory=dict)
    """What it says of its models, by the names clients use."""
    breaker: Breaker = field(default_factory=Breaker)
    num_running: int = 0
    num_elsewhere: int = 0
    """Requests it has from others, by its own account."""
    missing_apis: frozenset[Api] = frozenset()
    """What its kind speaks and it does not, as its answers have shown since it came up."""
    class_step: int = 0
    """How much further behind each class is in its numbers for priorities; 0: it schedules by none."""
    last_byte_at: float = 0.0
    num_missed: int = 0
    is_silent: bool = False
    """Whether its last probe timed out, and no byte of any answer came meanwhile."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def apis(self) -> frozenset[Api]:
        return (self.config.apis or self.kind.apis) - self.missing_apis

    @property
    def has_room(self) -> bool:
        return self.num_running < self.config.max_connections

    def serves(self, model: str) -> bool:
        return not model or not self.models or model in self.models

    def speaks(self, request: RoutedRequest) -> frozenset[Api]:
        """The APIs in which a request may be put: where prefixes are kept apart by a salt, only those that take one."""
        is_salted = request.scope and self.kind.salted and not request.is_question
        return self.apis & self.kind.salted if is_salted else self.apis

    def headers(self, given: Mapping[bytes, bytes], tenant: Tenant = NOBODY) -> list[tuple[bytes, bytes]]:
        """Those that may be forwarded, this replica's own key, and whose request it is, if there are several tenants
        and the replica knows what to make of that."""
        headers = {**dict(self.kind.fixed_headers), **{name: given[name] for name in given if name in FORWARDED}}
        if self.config.api_key and self.kind.auth == "x-api-key":
            headers[b"x-api-key"] = self.config.api_key.encode()
        elif self.config.api_key and self.kind.auth == "api-key":
            headers[b"api-key"] = self.config.api_key.encode()
        elif self.config.api_key:
            headers[b"authorization"] = b"Bearer " + self.config.api_key.encode()
        if tenant.is_apart and self.kind.takes_tenants:
            headers[TENANT_HEADER] = tenant.vouch((self.config.api_key or "").encode())
        return list(headers.items())

    def target(self, path: str, model: str, *, is_stream: bool = False) -> str:
        """Where it has a path of ours, for a model as it calls it. What is not below `/v1` is the same everywhere."""
        if not path.startswith("/v1/"):
            return path
        return target_of(self.kind, path, model, self.config.api_version, is_stream=is_stream)

    async def aclose(self) -> None:
        await self.upstream.aclose()
        await self.probes.aclose()


def open_replica(config: ReplicaConfig, router: RouterConfig) -> Replica:
    kind = KINDS.get(config.kind) or KINDS["openai_compatible"]  # until it is recognised
    probe_s = max(MIN_PROBE_S, min(2 * router.health_interval_s, MAX_PROBE_S))
    timeouts = Timeouts(connect_s=router.connect_timeout_s, head_s=probe_s, idle_s=probe_s)
    probes = open_upstream(config.url, max_connections=1, timeouts=timeouts)
    return Replica(config, open_requests(config, router), probes, kind)


def open_requests(config: ReplicaConfig, router: RouterConfig) -> Upstream:
    timeouts = Timeouts(router.connect_timeout_s, router.first_byte_timeout_s, router.idle_timeout_s)
    return open_upstream(config.url, max_connections=config.max_connections, timeouts=timeouts)


@compiled
class _Tokens(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]


async def count_tokens(replicas: Iterable[Replica], model: str, text: str) -> int:
    """How many tokens a text is; 0 if no replica can tell."""
    return len(await tokenize(replicas, {"model": model, "prompt": text, "add_special_tokens": False}) or ())


async def tokenize(replicas: Iterable[Replica], question: Mapping[str, Any]) -> list[int] | None:
    """A prompt in tokens, by the first of these replicas that can tell: all that have a model tokenize alike. None if
    none can."""
    model = question.get("model")
    model = model if isinstance(model, str) else ""
    for replica in replicas:
        path = replica.kind.tokenize_path
        if path and replica.state == "up" and replica.serves(model):
            body = msgspec.json.encode({**question, "model": replica.models.get(model, model)})
            headers = replica.headers({b"content-type": b"application/json"})
            try:
                request = UpstreamRequest("POST", path, headers, body)
                status, _, page = await fetch(replica.upstream, request, TOKENS_HEAD_BYTES + TOKEN_BYTES * len(body))
            except UpstreamFailed:
                continue
            if status == 200 and (told := parse_json(page, _Tokens)):
                return told.tokens
    return None
