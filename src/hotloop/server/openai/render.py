"""What OpenAI's chat and plain completions have in common on the way out: the envelope, the usage and the chunks.

`Wording` is what the two differ in. Nothing here waits or knows a socket; what must be remembered between the chunks of
a stream is in `ChunkWriter` and the wording it was given.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from hotloop.core.errors import HotloopError
from hotloop.core.request import TokenLogprob, Usage, Wait
from hotloop.server.delivery import Piece
from hotloop.server.errors import render_error
from hotloop.server.explain.inquiry import Diagnosis, Inquiry
from hotloop.server.explain.render import render_reading

Json = dict[str, Any]

DONE = b"data: [DONE]\n\n"
MIN_LOGPROB = -9999.0
"""JSON has no infinity: a token that cannot come is this unlikely."""

_encode = msgspec.json.Encoder().encode


class Wording(Protocol):
    """How one endpoint words its choices."""

    object: str
    chunk_object: str

    def whole(self, index: int, piece: Piece) -> Json:
        """The choice of an answer given at once; the piece holds all of it."""
        ...

    def opening(self, index: int) -> Json | None:
        """What a choice's stream begins with, before any text."""
        ...

    def deltas(self, index: int, piece: Piece) -> Iterable[Json]:
        """What a choice has gained, in as many pieces as that takes."""
        ...

    def closing(self, index: int, piece: Piece) -> Json:
        """The choice's last words: why it ended."""
        ...


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk of an answer repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def render(self, object_name: str) -> Json:
        return {
            "id": self.id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


def render_usage(usages: Sequence[Usage], inquiry: Inquiry, num_choices: int) -> Json:
    """The choices of one prompt lie next to each other; its tokens are counted once, as the first of them found it.

    OpenAI has no place in these answers for a comparison that was asked for, so it is told with what is our own.
    """
    prompts = usages[::num_choices]
    num_prompt = sum(usage.num_prompt for usage in prompts)
    num_output = sum(usage.num_output for usage in usages)
    diagnosis = inquiry.diagnose()
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(usage.num_cached for usage in prompts)},
        "hotloop": {
            **render_work(usages, inquiry),
            **({"prompt_cache_diagnostics": render_diagnosis(diagnosis)} if diagnosis else {}),
        },
    }


def render_diagnosis(diagnosis: Diagnosis) -> Json:
    """In OpenAI's words, as its responses have them; where it has none, because nothing was changed, unavailable."""
    match diagnosis.outcome:
        case "changed":
            return {
                "type": "cache_miss",
                "reason": "tools_changed" if diagnosis.kind == "tool" else "input_changed",
                "cache_missed_tokens": diagnosis.num_missed,
                "comparison_reusable_tokens": diagnosis.num_common,
            }
        case "same":
            return {"type": "cache_hit"}
        case "unknown":
            return {"type": "comparison_response_not_found"}
        case "unavailable":
            return {"type": "unavailable"}


def render_work(usages: Sequence[Usage], inquiry: Inquiry) -> Json:
    """How the tokens of all choices came about, and those of their prompts, which no other API tells."""
    return {
        "sampled_tokens": sum(usage.num_sampled for usage in usages),
        "forced_tokens": sum(usage.num_forced for usage in usages),
        "drafted_tokens": sum(usage.num_drafted for usage in usages),
        "accepted_tokens": sum(usage.num_accepted for usage in usages),
        "steps": sum(usage.num_steps for usage in usages),
        "restored_tokens": sum(usage.num_restored for usage in usages),
        "host_tokens": sum(usage.num_from_host for usage in usages),
        "waits_ms": render_waits(usages),
        **render_reading(inquiry),
    }


def render_waits(usages: Sequence[Usage]) -> Json:
    """What was waited for before anything was read, and how long; of several choices by the one that waited longest."""
    waits = {wait: max(usage.waits_s.get(wait, 0.0) for usage in usages) for wait in Wait}
    return {wait.value: round(1000 * wait_s) for wait, wait_s in waits.items() if wait_s >= 0.0005}


def render_answer(envelope: Envelope, wording: Wording, pieces: Iterable[tuple[int, Piece]], usage: Json) -> bytes:
    choices = [wording.whole(index, piece) for index, piece in sorted(pieces, key=lambda pair: pair[0])]
    return _encode({**envelope.render(wording.object), "choices": choices, "usage": usage})


class ChunkWriter:
    """Turns events into server-sent chunks. The constant part of a chunk is encoded once.

    data: {"id":...,"model":...,"choices": [ the only new part ] ,"usage":null}
    | head                                 | encoded each time  | tail        |
    """

    def __init__(
        self, envelope: Envelope, wording: Wording, inquiry: Inquiry, *, num_choices: int = 1, has_usage: bool
    ) -> None:
        constant = _encode(envelope.render(wording.chunk_object))
        self._head = b"data: " + constant.removesuffix(b"}") + b',"choices":'
        self._tail = b',"usage":null}\n\n' if has_usage else b"}\n\n"
        self._num_choices = num_choices
        self._has_usage = has_usage
        self._wording = wording
        self._inquiry = inquiry
        self._opened: set[int] = set()

    def write(self, pieces: Iterable[tuple[int, Piece]]) -> bytes:
        return b"".join(self._chunk([choice]) for index, piece in pieces for choice in self._choices(index, piece))

    def close(self, usages: Sequence[Usage]) -> bytes:
        """The usage, if it was asked for, and the end of the stream."""
        if not self._has_usage:
            return DONE
        usage = render_usage(usages, self._inquiry, self._num_choices)
        return self._head + b'[],"usage":' + _encode(usage) + b"}\n\n" + DONE

    def fail(self, error: HotloopError, request_id: str) -> bytes:
        """A failure after the stream began; nothing follows it."""
        return b"data: " + _encode(render_error(error, request_id)) + b"\n\n"

    def _chunk(self, choices: list[Json]) -> bytes:
        return self._head + _encode(choices) + self._tail

    def _choices(self, index: int, piece: Piece) -> Iterable[Json]:
        if index not in self._opened:
            self._opened.add(index)
            if opening := self._wording.opening(index):
                yield opening
        yield from self._wording.deltas(index, piece)
        if piece.finish_reason:
            yield self._wording.closing(index, piece)


def clamp(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)


def all_tops(logprob: TokenLogprob) -> Iterable[tuple[int, float]]:
    """The likeliest tokens and, if it was not among them, the one that was sampled."""
    yield from logprob.top
    if all(token_id != logprob.token_id for token_id, _ in logprob.top):
        yield logprob.token_id, logprob.logprob
