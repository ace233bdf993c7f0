"""The messages between a front and the engine, as MessagePack: decoding them runs no code.

    front   Submit ──> Admitted | Refused                   engine
            Abort                  Stepped, one a step
            HoldPrefix, Release <─ after a request's end
            Ask ─────> Reply       Reply <── Ask
            SharedChange ──> to the other fronts as it is
                       Failed, Told

Invariant: of each request that was admitted exactly one event has a finish reason, unless the link breaks.
"""

from typing import Any

import msgspec

from hotloop.core import errors
from hotloop.core.errors import HotloopError, Overloaded, PromptTooLong, RequestError
from hotloop.core.grammar import Grammar
from hotloop.core.reasoning import Reasoning
from hotloop.core.request import FinishReason, KvSource, Priority, SamplingParams, TokenLogprob, Usage
from hotloop.core.retention import Eviction, Hold

_ERRORS: dict[str, type[HotloopError]] = {
    each.__name__: each
    for each in (
        *(RequestError, PromptTooLong, Overloaded, errors.Unavailable),
        *(errors.EngineClosed, errors.BackendError, errors.DeviceLost, HotloopError),
    )
}


class ErrorData(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    message: str
    details: dict[str, str | int | float | None]
    """What the error has beside its message."""

    @classmethod
    def of(cls, error: BaseException) -> "ErrorData":
        kind = next((each for each in type(error).__mro__ if each in _ERRORS.values()), HotloopError)
        return cls(kind.__name__, str(error), {name: getattr(error, name) for name in _details(kind, error)})

    def to_error(self) -> HotloopError:
        error = _ERRORS.get(self.kind, HotloopError).__new__(_ERRORS.get(self.kind, HotloopError))
        Exception.__init__(error, self.message)
        for name, value in self.details.items():
            setattr(error, name, value)
        return error


def _details(kind: type[HotloopError], error: BaseException) -> tuple[str, ...]:
    if issubclass(kind, PromptTooLong):
        return ("param", "num_prompt")
    if issubclass(kind, RequestError):
        return ("param",)
    return ("retry_after_s",) if issubclass(kind, Overloaded) else ()


class NewRequest(msgspec.Struct, frozen=True, array_like=True):
    """`number` is the front's for it; `prompt` has four bytes a token."""

    number: int
    id: str
    prompt: bytes
    sampling: SamplingParams
    priority: Priority
    session_id: str
    grammar: Grammar | None
    salt: str
    reasoning: Reasoning | None
    resume_at: list[int]
    parent_id: str
    begun_ids: list[int]
    kv_source: KvSource | None
    arrived_at: float


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int
    requests: list[NewRequest]


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    request_ids: list[str]


class HoldPrefix(msgspec.Struct, frozen=True, array_like=True, tag=True):
    request_id: str
    num_tokens: int
    hold: Hold


class Release(msgspec.Struct, frozen=True, array_like=True, tag=True):
    request_id: str


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Either end may ask."""

    number: int
    what: str
    value: Any = None


class Reply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int
    value: Any = None
    error: ErrorData | None = None


class SharedChange(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Of what all fronts know (`core.sharing`). The engine's process passes it on without looking into it."""

    topic: str
    value: msgspec.Raw


REQUEST_FIELDS = tuple(name for name in NewRequest.__struct_fields__ if name not in ("number", "prompt"))
"""Called the same in a `Request`."""
FrontMessage = Submit | Abort | HoldPrefix | Release | Ask | Reply | SharedChange
from_front = msgspec.msgpack.Decoder(FrontMessage)


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What the engine knows of a request beside its usage: told with its first token and at its end."""

    session: str
    first_scheduled_at: float | None
    first_token_at: float | None
    last_token_at: float | None
    turn_wait_s: float | None
    num_preemptions: int
    num_computed_at_end: int
    eviction: Eviction | None
    cache_refill_s: float


REQUEST_FACTS = tuple(name for name in Facts.__struct_fields__ if name != "cache_refill_s")
"""Called the same in a `Request`."""


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A `TokenEvent`. Its text is the front's to make unless the request has stop strings."""

    number: int
    token_ids: list[int]
    text: str
    usage: Usage
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None
    stop_match: str | int | None
    error: ErrorData | None
    facts: Facts | None


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int
    error: ErrorData


class Stepped(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a step gave this front's requests. `tokens` are those that got one more token and nothing else happened to:
    the request's number and the token's, eight bytes each."""

    tokens: bytes
    events: list[Event]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine will never run again."""

    error: ErrorData


class Told(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What the engine's process has to say beside its engine."""

    what: str
    value: Any = None


EngineMessage = Admitted | Refused | Stepped | Ask | Reply | SharedChange | Failed | Told
from_engine = msgspec.msgpack.Decoder(EngineMessage)
