"""What OpenAI's chat and plain completions have in common on the way out: the envelope, the chunks, the log
probabilities.

`ChoiceRenderer` is what the two differ in. Nothing here waits or knows a socket.
"""

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from hotloop.core.errors import HotloopError
from hotloop.core.request import TokenLogprob, Usage
from hotloop.core.stream import TextDelta
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.delivery import Piece
from hotloop.server.errors import render_error
from hotloop.server.explain.render import answer_usage, render_diagnosis
from hotloop.server.job import Job
from hotloop.server.service import Service
from hotloop.server.stream import EventStream, JsonResponse, submit
from hotloop.wire.field import Json
from hotloop.wire.sse import COMMENT, DONE, escape_line_ends

MIN_LOGPROB = -9999.0
"""JSON has no infinity: a token that cannot come is this unlikely."""

_encode = msgspec.json.Encoder().encode
_MARK = "\0the text\0"


class ChoiceRenderer(Protocol):
    """How one endpoint renders a choice: at once, or what its stream begins with, gains, and ends with."""

    id_prefix: str
    object: str
    chunk_object: str

    def whole(self, index: int, piece: Piece) -> Json: ...

    def opening(self, index: int) -> Json | None: ...

    def deltas(self, index: int, piece: Piece) -> Iterable[Json]: ...

    def closing(self, index: int, piece: Piece) -> Json: ...


async def generate(http: HttpRequest, job: Job, renderer: ChoiceRenderer) -> Response:
    service = Service.of(http)
    answer_id = f"{renderer.id_prefix}-{secrets.token_hex(12)}"
    envelope: Json = {
        "id": answer_id,
        "object": renderer.chunk_object if job.is_stream else renderer.object,
        "created": int(time.time()),
        "model": service.model,
        "system_fingerprint": service.fingerprint,
    }
    outputs = await submit(http, job, answer_id)
    if job.is_stream:
        return EventStream(outputs, ChunkWriter(envelope, renderer, job), http.state.request_id, headers=http.headers)
    async with outputs.attended(http.receive):
        pieces = sorted(await outputs.take_all(), key=lambda pair: pair[0])
    usage = render_usage(outputs.usages, job)
    if job.sampling.logprobs is None:
        return JsonResponse(_render_whole(envelope, renderer, pieces, usage))
    return JsonResponse(await asyncio.to_thread(_render_whole, envelope, renderer, pieces, usage))


def _render_whole(envelope: Json, renderer: ChoiceRenderer, pieces: Iterable[tuple[int, Piece]], usage: Json) -> bytes:
    """One choice after the other: log probabilities of all of them would be many objects at once."""
    choices = [msgspec.Raw(_encode(renderer.whole(index, piece))) for index, piece in pieces]
    return _encode({**envelope, "choices": choices, "usage": usage})


def render_usage(usages: Sequence[Usage], job: Job) -> Json:
    """OpenAI has no place in these answers for a comparison that was asked for, so it is told with what is our own."""
    usage = answer_usage(usages, job.inquiry, num_choices=job.num_choices, is_prefill_only=job.is_prefill_only)
    if diagnosis := job.inquiry.diagnose():
        usage.hotloop["prompt_cache_diagnostics"] = render_diagnosis(diagnosis)
    return usage.render_chat()


class ChunkWriter:
    """Turns pieces into server-sent chunks. What the chunks of plain text have in common is encoded once.

    data: {"id":...,"choices":[{"index":0,"delta":{"content": "the text" },"logprobs":null,"finish_reason":null}]}
    | head                                                  | each time | tail                                   |
    """

    def __init__(self, envelope: Json, renderer: ChoiceRenderer, job: Job) -> None:
        self._head = b"data: " + _encode(envelope).removesuffix(b"}") + b',"choices":'
        self._tail = b',"usage":null}\n\n' if job.has_usage else b"}\n\n"
        self._renderer = renderer
        self._job = job
        self._frames: dict[int, list[bytes]] = {}  # head and tail of a chunk of text, by its choice

    def ping(self) -> bytes:
        return COMMENT

    def send(self, pieces: Sequence[tuple[int, Piece]]) -> bytes:
        return self._write(*pieces[0]) if len(pieces) == 1 else b"".join(self._write(*each) for each in pieces)

    def close(self, usages: Sequence[Usage]) -> bytes:
        if not self._job.has_usage:
            return DONE
        return self._head + b'[],"usage":' + _encode(render_usage(usages, self._job)) + b"}\n\n" + DONE

    def break_off(self, error: HotloopError, request_id: str) -> bytes:
        return b"data: " + _encode(render_error(error, request_id)) + b"\n\n"

    def _write(self, index: int, piece: Piece) -> bytes:
        parts = piece.parts
        if index in self._frames and len(parts) == 1 and not (piece.logprobs or piece.finish_reason):
            [part] = parts
            if type(part) is TextDelta:
                head, tail = self._frames[index]
                return head + escape_line_ends(_encode(part.text)) + tail
        return b"".join(map(self._chunk, self._choices(index, piece)))

    def _choices(self, index: int, piece: Piece) -> Iterable[Json]:
        if index not in self._frames:
            [mark] = self._renderer.deltas(index, Piece(_MARK, (TextDelta(_MARK),), 0, piece.usage))
            self._frames[index] = self._chunk(mark).split(_encode(_MARK))
            if opening := self._renderer.opening(index):
                yield opening
        yield from self._renderer.deltas(index, piece)
        if piece.finish_reason:
            yield self._renderer.closing(index, piece)

    def _chunk(self, choice: Json) -> bytes:
        return self._head + escape_line_ends(_encode([choice])) + self._tail


def render_logprobs(logprobs: Iterable[TokenLogprob], tokenizer: Tokenizer) -> list[Json]:
    return [
        {
            **_render_token(logprob.token_id, logprob.logprob, tokenizer),
            "top_logprobs": [_render_token(*top, tokenizer) for top in logprob.top],
        }
        for logprob in logprobs
    ]


def clamp(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)


def _render_token(token_id: int, logprob: float, tokenizer: Tokenizer) -> Json:
    token_bytes = [*tokenizer.token_bytes(token_id)]
    return {"token": tokenizer.token_text(token_id), "logprob": clamp(logprob), "bytes": token_bytes}
