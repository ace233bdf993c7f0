"""Every setting there is. Flags, environment, `hotloop.toml` and the documentation are generated from these classes:
a field's name is its flag, the string below it is its help.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, get_args

from hotloop.core.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"

WeightFormat = Literal["auto", "stored", "int8", "int4", "fp8", "bf16", "f32"]
Precision = Literal["fast", "exact"]
Device = Literal["auto", "cpu", "cuda"]
LoadFormat = Literal["auto", "dummy"]
ToolFormatName = Literal[
    "auto",
    "generic",
    "hermes",
    "llama3",
    "mistral",
    "qwen3_coder",
    "glm",
    "minimax",
    "deepseek",
    "deepseek_v32",
    "kimi",
    "granite",
    "gemma",
    "harmony",
]
ThinkingFormatName = Literal["auto", "off", "think", "harmony", "mistral", "gemma", "minimax"]
KvPrecision = Literal["auto", "bf16", "f16", "f32", "int8", "fp8"]
CacheIsolation = Literal["auto", "none", "key"]
Explanations = Literal["words", "causes", "off"]
PolicyName = Literal["prefix", "session", "least_load", "round_robin", "random"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
Feature = Literal[
    "prefix_cache",
    "shared_attention",
    "retention",
    "admission",
    "forced_tokens",
    "drafts",
    "strict_tools",
    "exact_turns",
    "canonical_tools",
    "move_volatile_lines",
    "late_system_as_user",
    "late_tools",
    "resume_streams",
    "move_kv",
]
FEATURES: tuple[Feature, ...] = get_args(Feature)
"""What is on unless it is disabled. Each is a field of its name in a class below; outside, `disable` lists them."""

CLASS_SETTINGS = (
    *("interactive_wait_s", "workflow_wait_s", "background_wait_s"),
    *("interactive_share", "workflow_share", "background_share", "promotion_s"),
)
"""Fields of `EngineConfig` that may stand in the table [classes] of a file."""
RELOADABLE = frozenset(
    {
        *("api_key", "api_key_file", "log_level", "log_format"),
        *("replica", "max_connections", "policy", "queue_timeout_s", "max_retries", "hedge_after_s", "stabilise"),
        *("tell_late_tools", "pool_share", "pool_tokens"),
        *CLASS_SETTINGS,
    }
)
"""Settings that SIGHUP applies. Any other that has changed is reported, and waits for a restart."""


MAX_CLASS_WAIT_S = 3600.0
MAX_DRAFTED_FORCED = 24
"""Most tokens of one draft that a grammar forces, beside those that are drafted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how its weights are held."""

    model: str = DEFAULT_MODEL
    """A name `hotloop models` lists, a hub id such as Qwen/Qwen3-4B, a GGUF file, or a Hugging Face folder."""
    weights: WeightFormat = "auto"
    """Weight format. CPU: `stored` (as in a quantised GGUF file), int8, int4, bf16 or f32; `auto` is int8 with AMX,
    else `stored`, and int8 where a file is not quantised. GPU: bf16 (default), f32 or fp8; 4-bit and FP8
    checkpoints keep their format. See docs/cpu.md and docs/gpu.md."""
    precision: Precision = "fast"
    """`fast` computes in int8 or bf16, as suits the weights; `exact` computes in float32, so that
    batching and caching change no token (docs/architecture.md)."""
    device: Device = "auto"
    """Device the model runs on; `auto` takes a GPU that PyTorch can use, else the CPU."""
    load_format: LoadFormat = "auto"
    """`auto` reads the weights; `dummy` makes random ones for a folder's config.json, to measure speed."""


@dataclass(frozen=True, slots=True)
class ClassLimits:
    """What one class of requests is held to while more urgent requests run."""

    max_wait_s: float
    """It waits for them no longer, as long as there is room."""
    max_share: float = 1.0
    """Of the time, for prefilling its prompts."""
    min_share: float = 0.0
    """Of the time, on a CPU, beside all less urgent ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How requests share the hardware."""

    kv_memory: str = "2GiB"
    """Memory for the KV cache on a CPU, such as 512MiB or 4GiB; on a GPU it is what `gpu_memory` leaves."""
    gpu_memory: float = 0.9
    """Share of a GPU's memory for weights, working memory and KV, which gets the rest."""
    gpus: int = 1
    """Number of GPUs to split every layer over (tensor parallel). A draft model runs on the first only."""
    host_kv: str = "auto"
    """Host memory for KV that does not fit on a GPU, such as 64GiB. `auto` takes half of what is free, at most as much
    as the GPU has for KV; `off` takes none. Only supported with a single GPU."""
    kv_precision: KvPrecision = "auto"
    """Precision of the KV cache; `auto` follows `precision`. int8 is for a CPU with precision `fast`, fp8 (e4m3) for a
    GPU; both hold about twice the tokens."""
    max_context: int | None = None
    """Maximum tokens of one request, prompt and answer together; the model's own limit if not given."""
    max_running: int | None = None
    """Maximum requests in one batch; further requests wait. If not given, 64 on a CPU and 256 on a GPU."""
    max_running_per_root: int | None = None
    """Maximum requests in one batch of one session and all sessions that work for it (see docs/api.md); no limit if not
    given."""
    max_waiting: int = 512
    """Maximum queued requests; further requests get 429."""
    max_step_tokens: int | None = None
    """Maximum tokens computed per step; longer prompts are prefilled in chunks, smaller ones while other requests
    decode. If not given, 512 on a CPU and more on a GPU."""
    interactive_wait_s: float = 0.01
    """Seconds that interactive requests should wait for their turn at most. They are never held back: a longer wait is
    for the current step or for each other, and shows in `hotloop_class_wait_ratio`."""
    workflow_wait_s: float = 0.05
    """Maximum seconds for which workflow requests are held back for interactive ones, if there is room for them."""
    background_wait_s: float = 0.5
    """The same for background requests, which are held back for both."""
    interactive_share: float = 0.9
    """Smallest share of the time for interactive requests while they run on a CPU, where each row makes a step longer;
    all others, their prompts and their answers, have the rest together."""
    workflow_share: float = 0.5
    """Largest share of the time for prefilling workflow prompts while interactive requests run."""
    background_share: float = 0.1
    """The same for background prompts, while any other requests run."""
    promotion_s: float = 30.0
    """Seconds of waiting after which a request moves up one class, and again after as many."""
    prefix_cache: bool = True
    """Prompts share KV that was already computed."""
    shared_attention: bool = True
    """On a GPU, KV that many requests of a step share is read once for all of them; a CPU always does this."""
    kv_dir: str | None = None
    """Directory for a persistent KV cache, which survives restarts. Treat it as confidential: prompts can be recovered
    from it."""
    kv_dir_size: str = "8GiB"
    """Maximum size of that directory; the least recently used prefix is deleted first."""
    kv_events: str | None = None
    """ZeroMQ address to publish KV-cache events on (vLLM's format), such as tcp://127.0.0.1:5557; the next port serves
    replays. Unauthenticated: subscribers can read prompts. Isolated prefixes are not published."""
    kv_peers: tuple[str, ...] = ()
    """Servers to exchange KV with, such as http://10.0.0.*:8700; a router names the one that has a
    prompt's KV (see docs/routing.md)."""
    retention: bool = True
    """Prompts are kept longer where a client asks for it, runs a tool or is expected back, and finished runs are
    evicted first; else the least recently used prefix is."""
    admission: bool = True
    """New sessions wait while the KV cache is filled by active ones, so that active sessions keep their prefixes."""
    pinned_fraction: float = 0.5
    """Largest share of the KV cache that `cache_control` may pin. Pinned prefixes are evicted last, but can be
    evicted."""
    forced_tokens: bool = True
    """Tokens that a grammar leaves no choice about are appended without sampling them one by one."""
    drafts: bool = True
    """Likely continuations are drafted from earlier prompts and answers, and verified in one step."""
    draft_model: str | None = None
    """Draft model, smaller and with the same vocabulary: a name `hotloop models` lists, a hub id, a path."""
    max_draft_tokens: int = 8
    """Maximum tokens drafted for one request per step; fewer while drafts are rejected or the batch is full."""
    draft_history_tokens: int = 1_000_000
    """Number of tokens of past prompts and answers to draft from."""
    grammar_memory: str = "64MiB"
    """Maximum memory for compiled grammars, which are reused by requests with the same schemas."""
    debug_checks: bool = False
    """Check every invariant whenever the engine is idle."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type in (int, int | None) and value is not None and value < 1:
                raise ConfigError(f"{each.name} must be at least 1, not {value}")
        for name in CLASS_SETTINGS:
            self._check_class(name)
        if not 0 <= self.pinned_fraction <= 1:
            raise ConfigError(f"pinned_fraction must be between 0 and 1, not {self.pinned_fraction}")
        if not 0 < self.gpu_memory <= 1:
            raise ConfigError(f"gpu_memory must be above 0 and at most 1, not {self.gpu_memory}")
        for name in ("kv_dir", "kv_peers", "kv_events"):
            if getattr(self, name) and not self.prefix_cache:
                raise ConfigError(f"{name} needs prefix_cache, which is disabled")
        check_peers(self.kv_peers)
        if self.kv_events:
            check_endpoint("kv_events", self.kv_events)
        parse_bytes(self.kv_memory)
        parse_bytes(self.grammar_memory)
        parse_bytes(self.kv_dir_size)
        if self.host_kv not in ("auto", "off"):
            parse_bytes(self.host_kv)
            if self.gpus > 1:
                raise ConfigError("host_kv is only supported with a single GPU")

    @property
    def class_limits(self) -> tuple[ClassLimits, ...]:
        """One for each `Priority`."""
        return (
            ClassLimits(self.interactive_wait_s, min_share=self.interactive_share),
            ClassLimits(self.workflow_wait_s, self.workflow_share),
            ClassLimits(self.background_wait_s, self.background_share),
        )

    def _check_class(self, name: str) -> None:
        value, is_share = getattr(self, name), name.endswith("_share")
        if not 0 < value <= (1 if is_share else MAX_CLASS_WAIT_S):
            most = "1" if is_share else f"{MAX_CLASS_WAIT_S:g}"
            raise ConfigError(f"{name} must be above 0 and at most {most}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """How HTTP is listened to, by the server and by the router."""

    host: str = "127.0.0.1"
    """Address to listen on; loopback by default."""
    port: int = 0
    """Port to listen on; 0 takes a free one."""
    api_key: str | None = field(default=None, repr=False)
    """Bearer token that every request must carry, except health checks."""
    api_key_file: str | None = None
    """File with more API keys, one per line, each optionally followed by its role, `admin` or `metrics` (see
    docs/api.md)."""
    allowed_hosts: tuple[str, ...] = ()
    """Extra Host names to accept when no API key is set, besides IP addresses, localhost and private names (see
    docs/api.md)."""
    write_timeout_s: float = 60.0
    """Seconds for which a client may read nothing of its answer before the request is aborted."""
    drain_delay_s: float = 0.0
    """Seconds for which a shutdown still accepts requests while /ready returns 503, for slow load balancers."""
    drain_timeout_s: float = 30.0
    """Seconds for which a shutdown, or the removal of a router's replica, waits for running requests."""
    log_level: LogLevel = "info"
    """Minimum severity of log messages; `info` has a line for each request."""
    log_format: LogFormat = "text"
    """Log lines for people (`text`), or one JSON object per line (`json`)."""
    tls_cert: str | None = None
    """File with the certificate, and those that signed it, to serve HTTPS (PEM); reloaded on SIGHUP."""
    tls_key: str | None = None
    """File with the certificate's private key (PEM)."""
    max_body: str = "16MiB"
    """Maximum size of a request body."""
    body_memory: str = "32MiB"
    """Maximum memory for request bodies while they arrive and wait to be parsed; beyond it the body that has been
    arriving for longest gets 503, and one that would have to wait gets 429."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float) and not value >= 0:  # which is true of NaN, too
                raise ConfigError(f"{each.name} must be at least 0, not {value}")
        for name in ("drain_delay_s", "drain_timeout_s"):
            if getattr(self, name) == math.inf:
                raise ConfigError(f"{name} must be finite")
        if self.log_level not in get_args(LogLevel):
            raise ConfigError(f"there is no log_level {self.log_level!r}; there are {', '.join(get_args(LogLevel))}")
        if self.log_format not in get_args(LogFormat):
            raise ConfigError(f"there is no log_format {self.log_format!r}; there are {', '.join(get_args(LogFormat))}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("tls_cert and tls_key are needed together")
        if not self.write_timeout_s > 0:
            raise ConfigError(f"write_timeout_s must be above zero, not {self.write_timeout_s}")
        parse_bytes(self.max_body)
        parse_bytes(self.body_memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(ListenerConfig):
    """How the server listens, and what it does with prompts."""

    port: int = 8700
    served_name: str | None = None
    """Model name that clients use; the model's own name if not given."""
    fronts: str = "auto"
    """Processes for HTTP, prompts and answers apart from the engine's; 0 has all in one process. `auto` is 0 without a
    GPU or with fewer than four CPU cores, else one for each 256 of max_running, at most one for every four cores."""
    cors_origins: tuple[str, ...] = ()
    """Origins a browser may call from; none by default."""
    tool_format: ToolFormatName = "auto"
    """How the model writes tool calls; `auto` detects it from the chat template."""
    strict_tools: bool = True
    """Tool calls must follow their schema, unless the request says otherwise."""
    thinking_format: ThinkingFormatName = "auto"
    """How the model marks its reasoning; `auto` detects it from chat template and vocabulary, `off` leaves it in the
    text."""
    max_thinking: int | None = None
    """Maximum reasoning tokens per answer, whatever the request asks for."""
    exact_turns: bool = True
    """The exact tokens of a generated answer are reused when it comes back in the history."""
    prompt_memory_tokens: int = 4_000_000
    """Number of tokens of past prompts and answers to remember, so that they need not be tokenized again; in each of
    `fronts`."""
    canonical_tools: bool = True
    """Tools are sorted by name, and the keywords of their schemas put into one order."""
    move_volatile_lines: bool = True
    """Timestamps and similar per-request values that known clients put at the top of the prompt are moved to its end
    (see docs/caching.md)."""
    late_system_as_user: bool = True
    """Late system messages become user text if the chat template would reject or move them."""
    late_tools: bool = True
    """Tools added during a conversation are shown where they were added, so that the head of the prompt stays the
    same."""
    cache_isolation: CacheIsolation = "auto"
    """Who shares cached prefixes: everybody (`none`), requests of one tenant (`key`), or the latter as soon as there
    are several API keys, here or at a router that names its tenants (`auto`)."""
    batch_dir: str | None = None
    """Directory for files and batches (`/v1/files`, `/v1/batches`), which survive restarts and are kept until they are
    deleted. Treat it as confidential. Not served if not given."""
    explanations: Explanations = "words"
    """Explain why tokens were recomputed: by cause and in words of the prompt (`words`), by cause alone (`causes`), or
    not (`off`)."""
    explain_memory_tokens: int = 2_000_000
    """Number of tokens of past prompts and answers to remember for explanations; in each of `fronts`."""

    def __post_init__(self) -> None:
        ListenerConfig.__post_init__(self)
        if self.fronts != "auto" and not (self.fronts.isascii() and self.fronts.isdigit() and int(self.fronts) <= 64):
            raise ConfigError(f"fronts must be auto or a number up to 64, not {self.fronts!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentServerConfig(ListenerConfig):
    """How an agent is served to others."""

    port: int = 8760
    max_runs: int = 64
    """Maximum number of runs of the agent at a time; one more gets 429."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig(ListenerConfig):
    """How the router listens, chooses a replica, and retries."""

    port: int = 8780
    replica: tuple[str, ...] = ()
    """Address of a replica; repeat it for each. A file can say more about one (see docs/routing.md)."""
    cache_isolation: CacheIsolation = "auto"
    """Whose cached prefixes are kept apart at replicas other than hotloop: nobody's (`none`), every tenant's (`key`),
    or every tenant's as soon as there are several API keys (`auto`)."""
    policy: PolicyName = "prefix"
    """How a replica is chosen: by cached prefix and load, by session, by load alone, round robin, or at random."""
    max_body: str = "16MiB"
    """Maximum size of a request body, and of an answer that is buffered for a retry."""
    body_memory: str = "64MiB"
    """Maximum memory for request bodies that are arriving; beyond it the body that has been arriving
    for longest gets 503."""
    max_connections: int = 128
    """Maximum requests at one replica; others wait at the router, the most urgent class first."""
    max_waiting: int = 1024
    """Maximum requests waiting at the router; further requests get 429."""
    queue_timeout_s: float = 30.0
    """Seconds for which a request waits for a free replica, or for any to be healthy, before it gets 503."""
    connect_timeout_s: float = 2.0
    """Seconds to connect to a replica."""
    first_byte_timeout_s: float = 600.0
    """Seconds until a replica must begin its answer."""
    idle_timeout_s: float = 300.0
    """Seconds without data after which a stream counts as broken."""
    max_retries: int = 3
    """Number of other replicas tried if one fails before the first byte of its answer."""
    retry_share: float = 0.2
    """Retry budget as a share of requests, to avoid retry storms."""
    pool_share: float = 0.5
    """Share of a prompt that must be cached at some replica for it to go to the pool `prefix-heavy`, where replicas
    have pools (see docs/routing.md)."""
    pool_tokens: int = 1024
    """Tokens of a prompt that must be cached at some replica for it to go to the pool `prefix-heavy`."""
    spend_file: str | None = None
    """File in which it is kept what each key, model and session tree has spent, so that limits by the month hold across
    restarts and `hotloop spend` can show it."""
    stabilise: bool = False
    """Put prompts in a stable form before they are placed and sent, so that any replica finds again what it has cached
    (see docs/routing.md)."""
    tell_late_tools: bool = False
    """With `stabilise`, at vLLM and Anthropic: describe tools that appear mid-session after the conversation so far,
    and leave the tool list as it was, so that the cached prefix stays valid (see docs/routing.md)."""
    resume_streams: bool = True
    """Whether a stream whose replica is lost goes on at another one, where that can be done (see docs/routing.md)."""
    move_kv: bool = True
    """Whether a hotloop that is given a prompt is told which other has most of its KV (see docs/routing.md)."""
    hedge_after_s: float | None = None
    """Ask a second replica if the first has not begun to answer after this many seconds, and use whichever begins
    first."""
    health_interval_s: float = 1.0
    """Seconds between health checks of a replica."""

    def __post_init__(self) -> None:
        ListenerConfig.__post_init__(self)
        if self.policy not in get_args(PolicyName):
            raise ConfigError(f"there is no policy {self.policy!r}; there are {', '.join(get_args(PolicyName))}")
        for name in ("max_connections", "max_waiting"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("connect_timeout_s", "first_byte_timeout_s", "idle_timeout_s", "health_interval_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above zero, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """What is recorded about runs, and where."""

    trace: str = "auto"
    """Where spans are recorded: a file, `auto` for one in `HOTLOOP_HOME`, or `off`."""
    trace_content: bool = False
    """Record prompts, arguments and results as well, not only how much and how long."""
    trace_redact: tuple[str, ...] = ()
    """Regular expressions (RE2); what they match in recorded content is redacted."""
    trace_max_size: str = "256MiB"
    """Maximum size of the file; the oldest runs are deleted first."""
    trace_max_age_days: float = 30.0
    """Days for which a run is kept."""
    trace_tags: tuple[str, ...] = ()
    """Tags that runs recorded from here are given, such as `nightly` or `prompt-v2`, to find and compare them by."""
    trace_otlp: str | None = None
    """Address of an OpenTelemetry collector to send spans to, such as http://127.0.0.1:4318 (extra `otel`)."""

    def __post_init__(self) -> None:
        parse_bytes(self.trace_max_size)
        if not self.trace_max_age_days > 0:
            raise ConfigError(f"trace_max_age_days must be above zero, not {self.trace_max_age_days}")
        for tag in self.trace_tags:
            if not re.fullmatch(r"[\w.:/=+-]{1,64}", tag):
                raise ConfigError(f"a tag has at most 64 letters, digits and ._:/=+-; {tag!r:.100} is none")
        if self.trace_otlp and not self.trace_otlp.startswith(("http://", "https://")):
            raise ConfigError(f"trace_otlp must begin with http:// or https://, not {self.trace_otlp!r}")


CONFIG_CLASSES: tuple[type, ...] = (
    ModelConfig,
    EngineConfig,
    ServerConfig,
    RouterConfig,
    AgentServerConfig,
    TraceConfig,
)
Config = TypeVar("Config", EngineConfig, ServerConfig, RouterConfig)


def without(config: Config, disabled: Iterable[str]) -> Config:
    """With these features off, as far as this class has them. Raises ConfigError."""
    off = {*disabled}
    for name in sorted(off.difference(FEATURES)):
        raise ConfigError(f"there is no feature {name!r} to disable; there are {', '.join(FEATURES)}")
    values: dict[str, Any] = dict.fromkeys(off & {each.name for each in fields(config)}, False)
    return replace(config, **values)


_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "k": 1024, "m": 1024**2, "g": 1024**3}
_UNITS |= {"kib": 1024, "mib": 1024**2, "gib": 1024**3}


def check_endpoint(setting: str, endpoint: str) -> None:
    """Refuse what is no address of ZeroMQ's over TCP."""
    match = re.fullmatch(r"tcp://(\*|[\w.-]+|\[[\da-fA-F:.]+\]):(\d{1,5})", endpoint)
    if not match or int(match[2]) > 65534:
        raise ConfigError(f"{setting} must be like tcp://127.0.0.1:5557, not {endpoint!r}")


def check_peers(addresses: Iterable[str]) -> None:
    for address in addresses:
        if not re.fullmatch(r"https?://(?:[\w.*-]+|\[[\da-fA-F:.]+\])(?::(?:\d{1,5}|\*))?/?", address):
            raise ConfigError(f"kv_peers must be like http://10.0.0.7:8700 or http://10.0.0.*:8700, not {address!r}")


def parse_bytes(text: str) -> int:
    """`512MiB` -> 536870912. One letter means the binary unit, as in `2G`."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _UNITS:
        raise ConfigError(f"not a size: {text!r} (write 512MiB or 4GiB)")
    size = int(float(match[1]) * _UNITS[match[2]])
    if size <= 0:
        raise ConfigError(f"a size must be above zero, not {text!r}")
    return size
