"""What replicas differ in, as one table: how each is asked for its health, load and models, and what it speaks.

A replica whose kind is not given is recognised by the names on its metrics page, and hosted APIs by their address. The
table says what current versions do; a replica's own line in the file may say otherwise (`apis`, `health_path`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

Api = Literal["chat", "completions", "responses", "messages"]
"""The APIs that are routed: OpenAI's three, and Anthropic's."""
Auth = Literal["bearer", "x-api-key"]

PATHS: Mapping[str, Api] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}

_OPENAI: frozenset[Api] = frozenset({"chat", "completions"})
_ALL: frozenset[Api] = frozenset({"chat", "completions", "responses", "messages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One sort of replica."""

    name: str
    apis: frozenset[Api] = _OPENAI
    health_path: str | None = "/health"
    """None: a hosted API is not asked how it is; its answers tell."""
    models_path: str | None = "/v1/models"
    metrics_path: str | None = None
    metrics_prefix: str = ""
    """What its metrics begin with, by which it is recognised."""
    running: str = ""
    """Metric: requests being answered."""
    waiting: str = ""
    """Metric: requests in its queue."""
    auth: Auth = "bearer"
    fixed_headers: tuple[tuple[bytes, bytes], ...] = ()
    tokenize_path: str | None = None
    """Where a chat is turned into token ids, for replicas that publish their KV state."""
    is_strict: bool = False
    """Whether it refuses fields that it does not know."""


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="hotloop",
            apis=_ALL,
            metrics_path="/metrics",
            metrics_prefix="hotloop_",
            running="hotloop_requests_running",
            waiting="hotloop_requests_waiting",
            tokenize_path="/tokenize",
        ),
        Kind(
            name="vllm",
            apis=_ALL,
            metrics_path="/metrics",
            metrics_prefix="vllm:",
            running="vllm:num_requests_running",
            waiting="vllm:num_requests_waiting",
            tokenize_path="/tokenize",
        ),
        Kind(
            name="sglang",
            apis=_OPENAI | {"responses", "messages"},
            metrics_path="/metrics",
            metrics_prefix="sglang:",
            running="sglang:num_running_reqs",
            waiting="sglang:num_queue_reqs",
            tokenize_path="/tokenize",
        ),
        Kind(
            name="tgi",
            metrics_path="/metrics",
            metrics_prefix="tgi_",
            running="tgi_batch_current_size",
            waiting="tgi_queue_size",
        ),
        Kind(
            name="tensorrt_llm",
            apis=_OPENAI | {"responses"},
            metrics_path="/prometheus/metrics",
            metrics_prefix="trtllm_",
        ),
        Kind(
            name="llama_cpp",
            apis=_OPENAI | {"messages"},
            metrics_path="/metrics",
            metrics_prefix="llamacpp:",
            running="llamacpp:requests_processing",
            waiting="llamacpp:requests_deferred",
        ),
        Kind(name="ollama", apis=_ALL, health_path="/api/version"),
        Kind(name="openai_compatible", health_path="/v1/models"),
        Kind(name="openai", apis=_OPENAI | {"responses"}, health_path=None, models_path=None, is_strict=True),
        Kind(
            name="anthropic",
            apis=frozenset({"messages"}),
            health_path=None,
            models_path=None,
            auth="x-api-key",
            fixed_headers=((b"anthropic-version", b"2023-06-01"),),
        ),
    )
}

_HOSTS = {"api.openai.com": "openai", "api.anthropic.com": "anthropic"}


def kind_by_url(url: str) -> Kind | None:
    """Hosted APIs are known by their address, Ollama by its port."""
    parts = urlsplit(url)
    name = _HOSTS.get(parts.hostname or "", "ollama" if parts.port == 11434 else "")
    return KINDS.get(name)


METRICS_PATHS = tuple(dict.fromkeys(kind.metrics_path for kind in KINDS.values() if kind.metrics_path))
"""Where a replica of unknown kind is looked for metrics to know it by."""


def kind_by_metrics(page: str) -> Kind | None:
    """Whoever's names are on a metrics page."""
    for kind in KINDS.values():
        if kind.metrics_prefix and f"\n{kind.metrics_prefix}" in f"\n{page}":
            return kind
    return None


def read_load(kind: Kind, page: str) -> int | None:
    """How many requests a replica has, by its metrics page; None if the page does not say."""
    found = [_sum_metric(page, name) for name in (kind.running, kind.waiting) if name]
    known = [value for value in found if value is not None]
    return int(sum(known)) if known else None


def _sum_metric(page: str, name: str) -> float | None:
    """All series of one metric together."""
    total = None
    for line in page.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " "):
            try:
                total = (total or 0.0) + float(line.rsplit(None, 1)[-1])
            except ValueError:
                continue
    return total
