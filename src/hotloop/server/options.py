"""The fields of a request that only this server reads, beside those of every API in `ApiRequest`.

A field of the wrong type is refused by name; an unknown one is ignored, since clients send many. `null` always means
"not given". Ranges that the core checks are not repeated here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from hotloop.core.errors import RequestError
from hotloop.core.request import SamplingParams
from hotloop.core.structs import compiled
from hotloop.wire.field import Json
from hotloop.wire.hints import PRIORITY_HEADER, Hints, parse_class, read_hints
from hotloop.wire.request import ApiRequest

MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_N = 128
MAX_TEMPERATURE = 2
"""As at OpenAI; the engine itself takes more."""
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 10_000
MAX_LOGPROBS = 100_000
"""Log probabilities in one answer. Each takes half a kilobyte until it is sent, and some microseconds to render."""

# Kept in memory, so no longer than an hour, whatever is asked for.
MAX_RETENTION_S = 3600
_RETENTIONS_S = {"in_memory": 300, "in-memory": 300, "30m": 1800, "12h": 3600, "24h": 3600}

_body = msgspec.json.Decoder(Json)
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`")

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
NonEmpty = Annotated[str, Meta(min_length=1)]
AnswerId = Annotated[str, Meta(max_length=256)]
Schema = dict[str, Any] | str
Choices = Annotated[list[NonEmpty], Meta(min_length=1, max_length=MAX_CHOICES)]


class CacheOptions(msgspec.Struct, kw_only=True):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    comparison_response_id: AnswerId | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """As vLLM has it; unknown fields are refused. The last four are about how vLLM does it: nothing changes here."""

    json: Schema | None = None
    json_object: bool | None = None
    regex: NonEmpty | None = None
    choice: Choices | None = None
    grammar: NonEmpty | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None
    whitespace_pattern: str | None = None


class AgentCache(msgspec.Struct, kw_only=True):
    ttl: Annotated[float, Meta(ge=0, le=MAX_RETENTION_S)] | None = None


class AgentHint(msgspec.Struct, kw_only=True):
    """What vLLM's clients hint at: `wire.hints` reads the rest of it."""

    cache_control: AgentCache | None = None


class Resume(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An answer that another server had begun. What a grammar does not allow of it is left out, with all behind it."""

    token_ids: list[TokenId]
    call_ids: list[AnswerId] = []
    """What its calls were called, in their order."""
    response_id: Annotated[str, Meta(pattern="^resp_[0-9a-f]{48}$")] | None = None


@compiled
class Options(msgspec.Struct, kw_only=True):
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    logit_bias: dict[TokenId, float] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    shortcuts: bool | None = None

    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: NonEmpty | None = None
    guided_choice: Choices | None = None
    guided_grammar: NonEmpty | None = None
    regex: NonEmpty | None = None
    choice: Choices | None = None
    grammar: NonEmpty | None = None

    priority: Literal["interactive", "workflow", "background"] | int | None = None
    session_id: str | None = None
    agent_hint: AgentHint | None = None
    cache_salt: NonEmpty | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    resume: Resume | None = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def compared_with(self) -> str | None:
        return self.prompt_cache_options.comparison_response_id if self.prompt_cache_options else None

    @property
    def retention_s(self) -> int | None:
        """For how long the prompt is to be kept, if the request says so. The newer field wins."""
        options = self.prompt_cache_options or CacheOptions()
        named = None if options.mode == "explicit" else options.ttl or self.prompt_cache_retention
        if not named and self.agent_hint and self.agent_hint.cache_control:
            return int(self.agent_hint.cache_control.ttl or 0) or None
        return _RETENTIONS_S[named] if named else None


Body = TypeVar("Body", bound=msgspec.Struct)
OptionsKind = TypeVar("OptionsKind", bound=Options)

# What would change the answer, and cannot be done here.
_REFUSED = {
    "audio": "is not supported: answers are text",
    "ebnf": "is not supported: give a grammar in Lark as grammar, a regex, or a JSON schema",
    "mcp_servers": "is not supported: no MCP server is called from here; offer its tools as tools",
    "web_search_options": "is not supported: nothing here searches the web; offer a tool that does",
}

# Sampling parameters that have the same name on the wire and in the engine.
_SAMPLING = (
    *("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "min_tokens"),
    *("ignore_eos", "shortcuts"),
)


def parse_options(request: ApiRequest, kind: type[OptionsKind]) -> OptionsKind:
    given = {**request.own, **request.fields}
    refuse_if(
        ("modalities", given.get("modalities") not in (None, [], ["text"]), "can be text only"),
        *((name, given.get(name) not in (None, []), reason) for name, reason in _REFUSED.items()),
    )
    cache = {"prompt_cache_options": request.cache.options, "prompt_cache_retention": request.cache.retention}
    return convert({**given, **cache}, kind)


def parse_sampling(
    request: ApiRequest, options: Options, vocab_size: int, *, max_tokens: int | None, logprobs: int | None = None
) -> SamplingParams:
    """What APIs spell differently is handed in."""
    _check_stop(request)
    refuse_if(("temperature", (request.temperature or 0) > MAX_TEMPERATURE, f"must be at most {MAX_TEMPERATURE}"))
    _check_tokens("logit_bias", options.logit_bias or (), vocab_size)
    _check_tokens("stop_token_ids", options.stop_token_ids or (), vocab_size)
    given = {name: getattr(options, name) for name in _SAMPLING}
    given |= {"temperature": request.temperature, "top_p": request.top_p}
    return SamplingParams(
        **{name: value for name, value in given.items() if value is not None},
        top_k=request.top_k or 0,
        max_tokens=max_tokens,
        stop=request.stop,
        stop_token_ids=frozenset(options.stop_token_ids or ()),
        include_stop=bool(options.include_stop_str_in_output),
        logprobs=logprobs,
    )


def parse_begun(options: Options, vocab_size: int, max_tokens: int) -> Sequence[int]:
    """The tokens an answer begins with, as far as there is room for them. Raises RequestError."""
    if options.resume is None:
        return ()
    refuse_if(("resume", options.num_choices > 1, "needs n to be 1"))
    _check_tokens("resume.token_ids", options.resume.token_ids, vocab_size)
    return options.resume.token_ids[:max_tokens]


def max_tokens_with(logprobs: int, num_choices: int) -> int:
    """Most tokens a choice may have for an answer to hold all of its log probabilities."""
    return max(1, MAX_LOGPROBS // (num_choices * (1 + logprobs)))


def check_logprobs(logprobs: int | None, num_choices: int, max_tokens: int | None, param: str = "top_logprobs") -> None:
    if logprobs is None or (max_tokens or 0) <= max_tokens_with(logprobs, num_choices):
        return
    product = f"{num_choices} choices × {max_tokens} tokens × {1 + logprobs} are more than the {MAX_LOGPROBS:,}"
    raise RequestError(f"{param}: {product} log probabilities that are returned at most", param=param)


def refuse_if(*refusals: tuple[str, object, str]) -> None:
    """Refuse what would otherwise be lost without a word: the field, whether it is wrong, and what is."""
    for param, is_wrong, reason in refusals:
        if is_wrong:
            raise RequestError(f"{param} {reason}", param=param)


def parse_hints(request: ApiRequest, options: Options, headers: Mapping[str, str]) -> Hints:
    """Which session it is of, and how urgent it is. A class that there is not is refused."""
    name = headers.get(PRIORITY_HEADER)
    if options.priority is None and name and parse_class(name) is None:
        raise RequestError(f"{PRIORITY_HEADER}: there is no priority {name!r:.100}", param="priority")
    named = {"prompt_cache_key": request.cache.key, "user": request.user, "service_tier": request.service_tier}
    return read_hints({**request.own, **request.fields, **named}, headers)


def _check_stop(request: ApiRequest) -> None:
    param = "stop_sequences" if request.api == "messages" else "stop"
    if len(request.stop) > MAX_STOPS:
        raise RequestError(f"{param}: at most {MAX_STOPS} are taken", param=param)
    for i, text in enumerate(request.stop):
        if not 1 <= len(text) <= MAX_STOP_CHARS:
            place = param if len(request.stop) == 1 and param == "stop" else f"{param}[{i}]"
            raise RequestError(f"{place}: expected a text of 1 to {MAX_STOP_CHARS} characters", param=place)


def _check_tokens(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise RequestError(f"{param}: the model has no token {token_id}", param=param)


def decode(data: bytes) -> Json:
    try:
        return _body.decode(data)
    except msgspec.ValidationError as error:
        raise RequestError(_explain(str(error))[0]) from None
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise RequestError("the body is not UTF-8") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None


def convert(value: Json, kind: type[Body], place: str = "", *, strict: bool = True) -> Body:
    """A body, or the part of one at `place`. Raises RequestError that names the field at fault. Not `strict`: numbers
    may be written as texts, as a query has them."""
    try:
        return msgspec.convert(value, kind, strict=strict, str_keys=True)
    except msgspec.ValidationError as error:
        message, param = _explain(str(error), within=place)
        raise RequestError(message, param=param) from None


def _explain(complaint: str, within: str = "") -> tuple[str, str | None]:
    """Msgspec's complaint as a sentence about a field, and the field.

    Expected `int`, got `str` - at `$.stop[0]`  ->  stop[0]: expected int, got str
    """
    complaint = " ".join(complaint.split())  # it quotes names as they came
    place = _PLACE.search(complaint)
    path = ".".join(filter(None, (within, place["path"] if place else "")))
    what = complaint[: place.start()] if place else complaint
    if missing := _MISSING.search(what):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return f"{path} is missing", path
    what = what.replace("`", "")
    return (f"{path}: {what[0].lower()}{what[1:]}", path) if path else (what, None)
