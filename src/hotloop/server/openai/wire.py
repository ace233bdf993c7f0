"""The bodies OpenAI clients send, as they are spelt on the wire, and how their shared fields become core values.

A known field of the wrong type is refused by name; an unknown one is ignored, since clients send many. `null` always
means "not given". Ranges that the core checks are not repeated here.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from hotloop.core.errors import RequestError
from hotloop.core.request import Priority, SamplingParams
from hotloop.core.session import PRIORITY_HEADER, name_session
from hotloop.server.openai.structure import StructureBody

MAX_STOPS = 16
MAX_N = 128
MAX_TOP_LOGPROBS = 20

# Kept in memory, so no longer than an hour, whatever is asked for.
_RETENTIONS_S = {"in_memory": 300, "in-memory": 300, "30m": 1800, "12h": 3600, "24h": 3600}

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]
CacheSalt = Annotated[str, Meta(min_length=1)]
PriorityName = Literal["interactive", "workflow", "background"]


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class CacheOptionsBody(msgspec.Struct, kw_only=True):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    comparison_response_id: str | None = None


class GenerateBody(StructureBody, kw_only=True):
    """What chat and plain completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Int64 | None = None
    logit_bias: dict[TokenId, float] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    shortcuts: bool | None = None

    priority: PriorityName | None = None
    service_tier: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptionsBody | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    cache_salt: CacheSalt | None = None
    user: str | None = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def compared_with(self) -> str | None:
        """The earlier answer the prompt is to be compared with."""
        return self.prompt_cache_options.comparison_response_id if self.prompt_cache_options else None

    @property
    def has_usage_chunk(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def parse_sampling(
    body: GenerateBody, *, max_tokens: int | None, logprobs: int | None, vocab_size: int, keep_special: bool = False
) -> SamplingParams:
    """The sampling parameters both endpoints share; what they spell differently is handed in."""
    if body.stream_options and not body.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    _check_tokens("logit_bias", body.logit_bias or (), vocab_size)
    _check_tokens("stop_token_ids", body.stop_token_ids or (), vocab_size)
    given: dict[str, Any] = {name: getattr(body, name) for name in _SPELT_ALIKE if getattr(body, name) is not None}
    return SamplingParams(
        **given,
        top_k=max(body.top_k or 0, 0),
        max_tokens=max_tokens,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        include_stop=bool(body.include_stop_str_in_output),
        logprobs=logprobs,
        keep_special=keep_special,
    )


_SPELT_ALIKE = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "ignore_eos",
    "shortcuts",
)


def parse_retention(body: GenerateBody) -> int | None:
    """For how many seconds the prompt is to be kept, if the body says so. The newer field wins."""
    options = body.prompt_cache_options or CacheOptionsBody()
    if options.mode == "explicit":  # nothing but breakpoints, which are not read here
        return None
    asked = options.ttl or body.prompt_cache_retention
    return _RETENTIONS_S[asked] if asked else None


def _check_tokens(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise RequestError(f"{param}: the model has no token {token_id}", param=param)


class Asking(Protocol):
    """What a body of any API says about whose it is and how urgent."""

    @property
    def priority(self) -> str | None: ...
    @property
    def service_tier(self) -> str | None: ...
    @property
    def session_id(self) -> str | None: ...
    @property
    def prompt_cache_key(self) -> str | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def cache_salt(self) -> str | None: ...


def parse_priority(body: Asking, headers: Mapping[str, str]) -> Priority:
    """The body's own word first, then the header, then OpenAI's flex tier, which asks for cheap and slow."""
    name = body.priority or headers.get(PRIORITY_HEADER)
    if name:
        try:
            return Priority[name.upper()]
        except KeyError:
            raise RequestError(f"{PRIORITY_HEADER}: there is no priority {name!r}", param="priority") from None
    return Priority.BACKGROUND if body.service_tier == "flex" else Priority.INTERACTIVE


def parse_session_id(body: Asking, headers: Mapping[str, str]) -> str:
    """Which conversation this belongs to, as far as the client lets on; empty if it does not."""
    return name_session(body.session_id, headers, body.prompt_cache_key, body.user)
