"""What replicas differ in, as one table: how each is asked for its health, load and models, and what it speaks.

A replica whose kind is not given is recognised by the names on its metrics page, and hosted APIs by their address. The
table says what current versions do; a replica's own line in the file may say otherwise (`apis`, `health_path`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from hotloop.wire.errors import read_failure
from hotloop.wire.late import LateWay

Api = Literal["chat", "completions", "responses", "messages", "compaction", "tokenize", "embeddings"]
Auth = Literal["bearer", "x-api-key", "api-key"]
Resumes = Literal["", "tokens", "message", "prefill"]

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
TRANSLATED: Mapping[str, Api] = {
    CHAT: "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/responses/compact": "compaction",
    MESSAGES: "messages",
}
"""What a replica may be asked in another API than the client's."""
QUESTIONS: Mapping[str, Api] = {
    "/v1/messages/count_tokens": "messages",
    "/v1/responses/input_tokens": "responses",
    "/tokenize": "tokenize",
    "/detokenize": "tokenize",
    "/v1/embeddings": "embeddings",
}
"""Where nothing is generated: no prefix is looked for or left behind."""
PATHS: Mapping[str, Api] = {**TRANSLATED, **QUESTIONS}
WITHOUT_STAND_IN: Mapping[Api, str] = {"tokenize": "a tokenizer endpoint", "embeddings": "embeddings"}
"""APIs that no other can stand in for: whether a replica has them is known once it was asked."""

_OPENAI: frozenset[Api] = frozenset({"chat", "completions"})
_OPENAI_CHAT: frozenset[Api] = frozenset({"chat"})
_OPENAI_ALL: frozenset[Api] = _OPENAI | {"embeddings"}
_ALL: frozenset[Api] = frozenset({"chat", "completions", "responses", "messages"})
_COMPACTING: frozenset[Api] = frozenset({"responses", "compaction"})
_SALTED = _ALL - {"messages"}  # neither vLLM nor SGLang looks for a salt there


@dataclass(frozen=True, slots=True)
class ReplicaKind:
    name: str
    apis: frozenset[Api] = _OPENAI
    metrics_path: str | None = None
    metrics_prefix: str = ""
    """What its metrics begin with, by which it is recognised."""
    running: str = ""
    waiting: str = ""
    """Metrics behind the prefix: requests being answered, and those in its queue."""
    tokenize_path: str | None = None
    """Where a chat is turned into token ids, for replicas that publish their KV state."""
    health_path: str | None = "/health"
    """None: a hosted API is not probed; its answers tell."""
    drain_path: str = ""
    """Where it says that it is shutting down, while it still answers."""
    models_path: str | None = "/v1/models"
    auth: Auth = "bearer"
    fixed_headers: tuple[tuple[bytes, bytes], ...] = ()
    is_strict: bool = False
    has_stream_usage: bool = True
    """Whether it knows `stream_options.include_usage`."""
    reads_threads: bool = False
    """Whether it knows Anthropic's `thread`, be it to refuse it; others answer as if what is sent were all."""
    priority: type[str | int] | None = None
    """What `priority` in a body is to it: a class by name, a number, or a field it may refuse."""
    class_step: int = 0
    """How much further behind each class is in its numbers, where that does not depend on how it was started."""
    tags_sessions: bool = False
    """Whether it keeps what a session has cached by a `session_id` in the body."""
    close_path: str = ""
    """Where it is told that a session is over."""
    takes_tenants: bool = False
    """Whether it is told whose a request is."""
    keeps_tenants: bool = False
    """Whether it then keeps tenants apart itself."""
    resumes: Resumes = ""
    """How it goes on with an answer that another replica had begun: from its tokens, from its text as the last message
    or as a prefill, or not at all."""
    base: str = "/v1"
    """What its paths have in the place of `/v1`, behind its address; `{model}` is what it calls the model."""
    verbs: tuple[str, str] = ("", "")
    """Behind the base, in the place of the path of messages: for whole answers, and for streams. Its paths then name
    the model, and its bodies do not."""
    body_version: str = ""
    """What it wants as `anthropic_version` in a body."""
    api_version: str = ""
    """For one that asks for `api-version`: the one that is named where the file names none."""
    pays_marks: bool = False
    """Whether `cache_control` is what makes it cache."""
    takes_cache_key: bool = False
    """Whether `prompt_cache_key` brings the requests of a session to where its prefix is cached."""
    late_tools: LateWay = ""
    """How tools that appear mid-session can be described to it without a change of its tool list."""
    salted: frozenset[Api] = frozenset()
    """The APIs in which a `cache_salt` keeps prefixes apart."""


_KINDS: tuple[ReplicaKind, ...] = (
    ReplicaKind(
        "hotloop",
        _ALL | _COMPACTING | {"tokenize"},
        "/metrics",
        "hotloop_",
        "requests_running",
        "requests_waiting",
        "/tokenize",
        reads_threads=True,
        priority=str,
        drain_path="/ready",
        close_path="/close_session",
        takes_tenants=True,
        keeps_tenants=True,
        resumes="tokens",
    ),
    ReplicaKind(
        "vllm",
        _ALL | {"tokenize", "embeddings"},
        "/metrics",
        "vllm:",
        "num_requests_running",
        "num_requests_waiting",
        "/tokenize",
        priority=int,
        class_step=1,
        resumes="message",
        late_tools="words",  # its parsers read a call of any name
        salted=_SALTED,
    ),
    ReplicaKind(
        "sglang",
        _ALL | {"tokenize", "embeddings"},
        "/metrics",
        "sglang:",
        "num_running_reqs",
        "num_queue_reqs",
        "/tokenize",
        priority=int,
        tags_sessions=True,
        close_path="/close_session",
        resumes="message",
        salted=_SALTED,
    ),
    ReplicaKind("tgi", _OPENAI, "/metrics", "tgi_", "batch_current_size", "queue_size"),
    ReplicaKind(
        "tensorrt_llm",
        _OPENAI | {"responses"},
        metrics_path="/prometheus/metrics",
        metrics_prefix="trtllm_",
        running="num_requests_running",
        waiting="num_requests_waiting",
    ),
    ReplicaKind(
        "llama_cpp", _OPENAI_ALL | {"messages"}, "/metrics", "llamacpp:", "requests_processing", "requests_deferred"
    ),
    ReplicaKind("ollama", _ALL | {"embeddings"}, health_path="/api/version"),
    ReplicaKind(
        "openai_compatible",
        _OPENAI_ALL,
        health_path="/v1/models",
        has_stream_usage=False,
        takes_tenants=True,  # it may be ours, its metrics out of reach
    ),
    ReplicaKind(
        "openai",
        _OPENAI_ALL | _COMPACTING,
        health_path=None,
        models_path=None,
        is_strict=True,
        takes_cache_key=True,
    ),
    ReplicaKind(
        "anthropic",
        frozenset({"messages"}),
        health_path=None,
        models_path=None,
        auth="x-api-key",
        reads_threads=True,
        fixed_headers=((b"anthropic-version", b"2023-06-01"),),
        resumes="prefill",
        pays_marks=True,
        late_tools="changes",
    ),
)
_HOSTED: dict[str, Any] = {"health_path": None, "models_path": None, "is_strict": True}
_CLAUDE: dict[str, Any] = {
    **_HOSTED,
    "apis": frozenset({"messages"}),
    "reads_threads": True,
    "resumes": "prefill",
    "pays_marks": True,
}
_KINDS += (
    ReplicaKind("gemini", _OPENAI_CHAT | {"embeddings"}, base="", **_HOSTED),
    ReplicaKind(
        "azure_openai",
        _OPENAI_ALL,
        base="/openai/deployments/{model}",
        api_version="2024-10-21",
        auth="api-key",
        **_HOSTED,
    ),
    ReplicaKind("vertex", _OPENAI_CHAT, base="", **_HOSTED),
    ReplicaKind("bedrock", _OPENAI_CHAT, base="/openai/v1", has_stream_usage=False, **_HOSTED),
    ReplicaKind(
        "vertex_anthropic",
        base="/publishers/anthropic/models/{model}",
        verbs=(":rawPredict", ":streamRawPredict"),
        body_version="vertex-2023-10-16",
        **_CLAUDE,
    ),
    ReplicaKind(
        "bedrock_anthropic", base="/anthropic/v1", fixed_headers=((b"anthropic-version", b"2023-06-01"),), **_CLAUDE
    ),
)
KINDS: Mapping[str, ReplicaKind] = {kind.name: kind for kind in _KINDS}


def kinds_that_speak(api: Api) -> list[str]:
    return [kind.name for kind in _KINDS if api in kind.apis]


_HOSTS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gemini",
}
_HOST_PATTERNS = (
    (re.compile(r"[\w-]+\.(openai\.azure\.com|cognitiveservices\.azure\.com)"), "azure_openai"),
    (re.compile(r"([\w-]+-)?aiplatform\.googleapis\.com"), "vertex"),
    (re.compile(r"bedrock-runtime\.[\w-]+\.amazonaws\.com"), "bedrock"),
)


# How engines and proxies word a 404 for a path they do not have. One for a model or a response names it.
_NO_SUCH_PATH = re.compile(r"((404:? )?(page |file )?not found\.?|<(!doctype|html).*)?", re.IGNORECASE | re.DOTALL)


def is_unknown_path(status: int, body: bytes) -> bool:
    """Whether a replica refused a request because it does not have the path, rather than what was asked for."""
    message = str(read_failure(status, body)) if body.strip() else ""
    return status == 405 or (status == 404 and _NO_SUCH_PATH.fullmatch(message.strip()) is not None)


def kind_by_url(url: str) -> ReplicaKind | None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    patterned = next((name for pattern, name in _HOST_PATTERNS if pattern.fullmatch(host)), "")
    return KINDS.get(_HOSTS.get(host, "ollama" if parts.port == 11434 else patterned))


def target_of(kind: ReplicaKind, path: str, model: str, api_version: str = "", *, is_stream: bool = False) -> str:
    """Where a kind has a path of ours; `model` is its own name for it."""
    if kind.verbs[0]:
        name = model if path == MESSAGES else "count-tokens"
        return kind.base.replace("{model}", quote(name, safe="@")) + kind.verbs[is_stream]
    target = kind.base.replace("{model}", quote(model, safe="")) + path.removeprefix("/v1")
    version = api_version or kind.api_version
    return f"{target}?api-version={quote(version, safe='')}" if version else target


MAX_LOAD, MAX_SERIES = 1_000_000, 1_000
METRICS_PATHS = tuple(dict.fromkeys(kind.metrics_path for kind in KINDS.values() if kind.metrics_path))


def kind_by_metrics(page: str) -> ReplicaKind | None:
    for kind in KINDS.values():
        if kind.metrics_prefix and f"\n{kind.metrics_prefix}" in f"\n{page}":
            return kind
    return None


def read_load(kind: ReplicaKind, page: str) -> int | None:
    """How many requests a replica has: all series of two metrics together. None if its page does not say, or says
    what cannot be."""
    names = "|".join(re.escape(kind.metrics_prefix + name) for name in (kind.running, kind.waiting) if name)
    series = re.finditer(rf"^(?:{names})(?:{{.*}})? +(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)", page, re.MULTILINE)
    found = [float(each[1]) for each in islice(series, MAX_SERIES)] if names else []
    return int(sum(found)) if found and sum(found) <= MAX_LOAD else None
