"""Every setting there is. Flags, environment, `hotloop.toml` and the documentation are generated from these classes:
a field's name is its flag, the string below it is its help.
"""

import math
import re
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from hotloop.core.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"

CpuDecoder = Literal["auto", "native", "openvino"]
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

RELOADABLE = frozenset(
    {
        *("api_key", "api_key_file", "log_level"),
        *("replica", "max_connections", "policy", "queue_timeout_s", "max_retries", "hedge_after_s"),
    }
)
"""Settings that SIGHUP applies. Any other that has changed is reported, and waits for a restart."""


MAX_DRAFTED_FORCED = 24
"""Most tokens of one draft that a grammar forces, beside those that are guessed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how its weights are held."""

    model: str = DEFAULT_MODEL
    """A name `hotloop models` lists, a hub id such as Qwen/Qwen3-4B, a GGUF file, or a Hugging Face folder."""
    weights: WeightFormat = "auto"
    """How weights are held on a CPU: `stored` is as a quantised GGUF file has them, by the native decoder; `auto` is
    that on CPUs without AMX where it can be had, else int8, which with AMX decodes quicker, is a little less exact, and
    takes half as much memory again as a file of 4 bits. On ARM int8 and int4 save memory with precision `fast` only,
    bf16 never. On a GPU they are held in bf16, or in f32 or fp8 if that is asked for; fp8 (e4m3, a scale for each
    output; the head in int8) is for a GPU only. There AWQ and GPTQ checkpoints stay in four bits, unless fp8 is asked
    for, and FP8 checkpoints in e4m3, unless f32 is; those with scales for blocks get one for each output."""
    precision: Precision = "fast"
    """`fast` computes in bf16 where that is quick, and in int8 with AMX and weights in int8, with weights as a file has
    them and on ARM; `exact` in float32, so batching and caching change no token (docs/architecture.md)."""
    device: Device = "auto"
    """Where the model runs; `auto` takes the GPU where there is one that PyTorch can use, else the CPU."""
    load_format: LoadFormat = "auto"
    """`auto` reads the weights; `dummy` makes random ones for a folder's config.json, to measure speed without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How requests share the hardware."""

    kv_memory: str = "2GiB"
    """Memory for the KV cache on a CPU, such as 512MiB or 4GiB; the pool of blocks is sized from it. A GPU's is what
    `gpu_memory` leaves."""
    cpu_backend: CpuDecoder = "auto"
    """Who computes on a CPU: `native` is our decoder, for AMX, and for quantised GGUF files on any CPU since AVX2 or
    ARM's dot products; `openvino` is for any CPU and model; `auto` is the native one where it can be had, as it was
    measured to be the quicker."""
    gpu_memory: float = 0.9
    """Share of a GPU's memory that may be used in all: for weights, working memory, and KV, which gets the rest."""
    gpus: int = 1
    """How many GPUs the model is split over; each has a part of every layer. A draft model is on the first alone."""
    host_kv: str = "auto"
    """Host memory for KV that a GPU has no room for, such as 64GiB: it comes back quicker than it is computed again.
    `auto` takes half of what is free, at most as much as the GPU has for KV; `off` takes none. A CPU needs none,
    and several GPUs have none."""
    kv_precision: KvPrecision = "auto"
    """Precision of the KV cache; `auto` follows the precision of the computation. On a CPU with precision `fast`, int8
    (a scale for each token and head) holds nearly twice the tokens of f16 and bf16. A GPU knows no other than its own
    but fp8 (e4m3, a scale for each layer and head), which is for a GPU only and holds twice the tokens."""
    max_context: int | None = None
    """Most tokens, prompt and answer together, that one request may have; the model's own limit if not given."""
    max_running: int = 64
    """Most requests in one batch."""
    max_waiting: int = 512
    """Most requests waiting for a place; one more is answered 429."""
    max_step_tokens: int | None = None
    """Most tokens computed in one step (at least a block); longer prompts are prefilled in chunks while others
    decode, in smaller ones while others are served and, once it is known what steps take, always on a CPU. If not
    given, 512 on a CPU and more on a GPU."""
    prefix_cache: bool = True
    """Whether prompts share KV that was already computed."""
    shared_attention: bool = True
    """Whether a GPU attends to KV that many requests of a step share once for all of them; a CPU always does."""
    kv_dir: str | None = None
    """A folder where KV is kept as well, to survive a restart; as worthy of protection as the prompts."""
    kv_dir_size: str = "8GiB"
    """Most that folder may hold; the longest unused goes first."""
    kv_events: str | None = None
    """Where it is published what the KV cache holds, such as tcp://127.0.0.1:5557, in vLLM's format, for routers; the
    port after it replays. Anyone who can connect can read the prompts; those with a salt are left out."""
    retention: bool = True
    """Whether prompts are kept longer where a client asks for it, runs a tool or is expected back, and finished runs
    are let go first; if not, the longest unused goes first, whatever it is."""
    admission: bool = True
    """Whether new sessions wait while those under way, and what they will grow by, fill the KV cache, so that each of
    them finds its prefix when it comes back; if not, all are served at a time, however much is recomputed."""
    pinned_fraction: float = 0.5
    """How much of the KV cache may be kept for those who ask for it (`cache_control`); given up last, never a lock."""
    forced_tokens: bool = True
    """Whether tokens that a grammar leaves no choice about are appended without sampling them one by one."""
    drafts: bool = True
    """Whether likely continuations are guessed from earlier prompts and answers, and verified in one step."""
    draft_model: str | None = None
    """A smaller model of the same vocabulary that guesses as well: a name `hotloop models` lists, a hub id, a path."""
    max_draft_tokens: int = 8
    """Most tokens guessed for one request in one step; fewer while guesses fail or the batch is full."""
    draft_history_tokens: int = 1_000_000
    """How many tokens of past prompts and answers are remembered to guess from."""
    grammar_memory: str = "64MiB"
    """Most that compiled grammars may take, roughly, which are kept for the next request of the same shape."""
    debug_checks: bool = False
    """Check every invariant whenever the engine is idle."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type in (int, int | None) and value is not None and value < 1:
                raise ConfigError(f"{each.name} must be at least 1, not {value}")
        if not 0 <= self.pinned_fraction <= 1:
            raise ConfigError(f"pinned_fraction must be between 0 and 1, not {self.pinned_fraction}")
        if not 0 < self.gpu_memory <= 1:
            raise ConfigError(f"gpu_memory must be above 0 and at most 1, not {self.gpu_memory}")
        for name in ("kv_dir", "kv_events"):
            if getattr(self, name) and not self.prefix_cache:
                raise ConfigError(f"{name} needs prefix_cache: without it nothing is kept")
        if self.kv_events:
            check_endpoint("kv_events", self.kv_events)
        parse_bytes(self.kv_memory)
        parse_bytes(self.grammar_memory)
        parse_bytes(self.kv_dir_size)
        if self.host_kv not in ("auto", "off"):
            parse_bytes(self.host_kv)
            if self.gpus > 1:
                raise ConfigError(f"host_kv {self.host_kv} cannot be had with {self.gpus} gpus: it serves one alone")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the server listens, and what it does with prompts."""

    host: str = "127.0.0.1"
    """Address to listen on; loopback unless told otherwise."""
    port: int = 8700
    """Port to listen on; 0 takes a free one."""
    api_key: str | None = field(default=None, repr=False)
    """If given, every request but those that only ask for health must carry it as a bearer token."""
    api_key_file: str | None = None
    """File with more such keys, one a line; behind a key may stand its role, `admin` or `metrics` (see docs/api.md)."""
    allowed_hosts: tuple[str, ...] = ()
    """Names this may be called by without a key, beside addresses, localhost and private names (see docs/api.md)."""
    served_name: str | None = None
    """The model name clients use; the model's own name if not given."""
    cors_origins: tuple[str, ...] = ()
    """Origins a browser may call from; none by default."""
    drain_delay_s: float = 0.0
    """How long a shutdown still takes new requests while /ready answers 503, for load balancers that notice late."""
    drain_timeout_s: float = 30.0
    """How long a shutdown waits for running requests."""
    log_level: LogLevel = "info"
    """Least severe messages that are logged."""
    tool_format: ToolFormatName = "auto"
    """How the model writes tool calls; `auto` tells from its chat template."""
    strict_tools: bool = True
    """Whether tool calls must follow their schema where the request does not say; if not, they are only looked for."""
    thinking_format: ThinkingFormatName = "auto"
    """How the model marks its thoughts; `auto` tells from its chat template and vocabulary, `off` leaves them text."""
    max_thinking: int | None = None
    """Most tokens an answer may think, whatever is asked for; the thought is then closed and the answer goes on."""
    exact_turns: bool = True
    """Whether an answer that comes back in a prompt keeps the very tokens, and calls the words, it was generated in."""
    prompt_memory_tokens: int = 4_000_000
    """How many tokens of past prompts and answers are remembered, so that they need not be tokenized again."""
    canonical_tools: bool = True
    """Whether tools are sorted by name, and the keywords of their schemas put in one order, for the model to read."""
    move_volatile_lines: bool = True
    """Whether what known clients write anew at the top of every request (see docs/caching.md) leaves the top."""
    late_system_as_user: bool = True
    """Whether later system messages become words of the user's where the chat template would refuse or move them."""
    late_tools: bool = True
    """Whether tools that come while a conversation goes on are shown where they came, and the head of the prompt
    stays as it was."""
    cache_isolation: CacheIsolation = "auto"
    """Who shares cached prefixes: everybody (`none`), only requests of one tenant (`key`), or the latter as soon as
    there are several API keys, here or at a router that names its tenants (`auto`)."""
    explanations: Explanations = "words"
    """Whether to explain why tokens were recomputed: by causes and in words of the prompt, by causes alone, or not."""
    explain_memory_tokens: int = 2_000_000
    """How many tokens of past prompts and answers are remembered to compare new ones with."""
    max_body: str = "16MiB"
    """Largest request body that is read."""
    body_memory: str = "32MiB"
    """Most that bodies may take together while they arrive and wait to be parsed; past it the body that has been
    arriving longest is answered 503, and one that would have to wait behind so much 429."""
    write_timeout_s: float = 60.0
    """How long a client may take nothing of its answer before the connection is closed and the request aborted."""

    def __post_init__(self) -> None:
        _check_listener(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """How the router listens, chooses a replica, and retries."""

    host: str = "127.0.0.1"
    """Address to listen on; loopback unless told otherwise."""
    port: int = 8780
    """Port to listen on; 0 takes a free one."""
    api_key: str | None = field(default=None, repr=False)
    """If given, every request but those that only ask for health must carry it; it is never sent on to a replica."""
    api_key_file: str | None = None
    """File with more such keys, one a line; behind a key may stand its role, `admin` or `metrics` (see docs/api.md)."""
    allowed_hosts: tuple[str, ...] = ()
    """Names this may be called by without a key, beside addresses, localhost and private names (see docs/api.md)."""
    replica: tuple[str, ...] = ()
    """Address of a replica, once for each; more can be said about one in a file (see docs/fleet.md)."""
    cache_isolation: CacheIsolation = "auto"
    """Whose cached prefixes are kept apart at replicas that are not hotloop: nobody's (`none`), every tenant's (`key`),
    or every tenant's as soon as there are several API keys (`auto`)."""
    policy: PolicyName = "prefix"
    """How a replica is chosen: by what it has cached and to do, by session, by load alone, in turn, or by chance."""
    max_body: str = "16MiB"
    """Largest request body that is read, and largest whole answer that is held to be sent again if a replica fails."""
    body_memory: str = "64MiB"
    """Most that bodies may take together while they arrive; past it the one that has been arriving longest is answered
    503."""
    write_timeout_s: float = 60.0
    """How long a client may take nothing of its answer before the connection is closed and the request aborted."""
    max_connections: int = 128
    """Most requests at one replica at a time; others wait here, the most urgent class first."""
    max_waiting: int = 1024
    """Most requests waiting here for a place; one more is answered 429."""
    queue_timeout_s: float = 30.0
    """How long a request waits here for a place, or for any replica to be up, before it is answered 503."""
    connect_timeout_s: float = 2.0
    """How long connecting to a replica may take."""
    first_byte_timeout_s: float = 600.0
    """How long a replica may take to begin its answer."""
    idle_timeout_s: float = 300.0
    """How long a stream may be silent before it counts as broken."""
    max_retries: int = 3
    """How many other replicas are tried where one fails before the first byte of its answer."""
    retry_share: float = 0.2
    """How many retries there may be as a share of requests, so that a failing fleet is not asked even more."""
    hedge_after_s: float | None = None
    """Ask a second replica when the first has not begun to answer after this time, and take whichever begins first."""
    health_interval_s: float = 1.0
    """How often a replica's health is checked."""
    drain_delay_s: float = 0.0
    """How long a shutdown still takes new requests while /ready answers 503, for load balancers that notice late."""
    drain_timeout_s: float = 30.0
    """How long a shutdown, or a replica that is taken out, waits for running requests."""
    log_level: LogLevel = "info"
    """Least severe messages that are logged."""

    def __post_init__(self) -> None:
        _check_listener(self)
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
    """Whether what was said (prompts, arguments, results) is recorded as well, not only how much and how long."""
    trace_redact: tuple[str, ...] = ()
    """Regular expressions (RE2's); what they match in recorded content is redacted."""
    trace_max_size: str = "256MiB"
    """Most the file may hold; the oldest runs go first."""
    trace_max_age_days: float = 30.0
    """How long a run is kept."""
    trace_otlp: str | None = None
    """Address of an OpenTelemetry collector, such as http://127.0.0.1:4318, that gets spans as well (extra `otel`)."""

    def __post_init__(self) -> None:
        parse_bytes(self.trace_max_size)
        if not self.trace_max_age_days > 0:
            raise ConfigError(f"trace_max_age_days must be above zero, not {self.trace_max_age_days}")
        if self.trace_otlp and not self.trace_otlp.startswith(("http://", "https://")):
            raise ConfigError(f"trace_otlp must begin with http:// or https://, not {self.trace_otlp!r}")


_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "k": 1024, "m": 1024**2, "g": 1024**3}
_UNITS |= {"kib": 1024, "mib": 1024**2, "gib": 1024**3}


def _check_listener(config: ServerConfig | RouterConfig) -> None:
    for each in fields(config):
        value = getattr(config, each.name)
        if isinstance(value, int | float) and not value >= 0:  # which is true of NaN, too
            raise ConfigError(f"{each.name} must be at least 0, not {value}")
    for name in ("drain_delay_s", "drain_timeout_s"):
        if getattr(config, name) == math.inf:
            raise ConfigError(f"{name} must be finite")
    if config.log_level not in get_args(LogLevel):
        raise ConfigError(f"there is no log_level {config.log_level!r}; there are {', '.join(get_args(LogLevel))}")
    if not config.write_timeout_s > 0:
        raise ConfigError(f"write_timeout_s must be above zero, not {config.write_timeout_s}")
    parse_bytes(config.max_body)
    parse_bytes(config.body_memory)


def check_endpoint(setting: str, endpoint: str) -> None:
    """Refuse what is no address of ZeroMQ's over TCP."""
    match = re.fullmatch(r"tcp://(\*|[\w.-]+|\[[\da-fA-F:.]+\]):(\d{1,5})", endpoint)
    if not match or int(match[2]) > 65534:
        raise ConfigError(f"{setting} must be like tcp://127.0.0.1:5557, not {endpoint!r}")


def parse_bytes(text: str) -> int:
    """`512MiB` -> 536870912. One letter means the binary unit, as in `2G`."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _UNITS:
        raise ConfigError(f"not a size: {text!r} (write 512MiB or 4GiB)")
    size = int(float(match[1]) * _UNITS[match[2]])
    if size <= 0:
        raise ConfigError(f"a size must be above zero, not {text!r}")
    return size
