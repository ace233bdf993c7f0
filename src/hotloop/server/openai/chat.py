"""`/v1/chat/completions`: the fields of its own, and how its answers are rendered."""

import asyncio
from collections.abc import Iterable, Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from hotloop.core.request import FinishReason, TokenLogprob
from hotloop.core.structs import compiled
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.delivery import Piece
from hotloop.server.job import Job
from hotloop.server.openai.render import generate, render_logprobs
from hotloop.server.options import Options, TopLogprobs, parse_options, refuse_if
from hotloop.server.service import Service
from hotloop.wire.chat.parse import parse_request
from hotloop.wire.chat.writer import Deltas, render_message
from hotloop.wire.event import gather
from hotloop.wire.field import Json
from hotloop.wire.request import ApiRequest


@compiled
class ChatOptions(Options, kw_only=True):
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    generate: bool | None = None
    """False: the prompt is only prefilled, so that it is cached when it comes again and goes on."""


async def chat_completions(http: HttpRequest) -> Response:
    async with Service.of(http).reading(http) as body:
        # A long history takes a while to tokenize, a schema to compile: the other streams should not wait for it.
        job, renderer = await asyncio.to_thread(_make_job, body, http)
    return await generate(http, job, renderer)


def _make_job(body: Json, http: HttpRequest) -> "tuple[Job, ChatRenderer]":
    service = Service.of(http)
    request = parse_request(body)
    options = parse_options(request, ChatOptions)
    is_prefill_only = options.generate is False
    refuse_if(
        ("top_logprobs", options.top_logprobs and not options.logprobs, "needs logprobs: true"),
        ("stream", is_prefill_only and request.is_stream, "cannot be combined with generate: false"),
        ("n", is_prefill_only and options.num_choices > 1, "must be 1 with generate: false"),
    )
    logprobs = options.top_logprobs or 0 if options.logprobs else None
    caller = service.caller(http, request, options)
    job = service.jobs.make(request, options, caller, logprobs=logprobs, is_prefill_only=is_prefill_only)
    return job, ChatRenderer(service.engine.tokenizer, job, request)


class ChatRenderer:
    id_prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, job: Job, request: ApiRequest) -> None:
        self._tokenizer = tokenizer
        self._has_logprobs = job.sampling.logprobs is not None
        self._can_call = job.prepared.can_call
        self._is_named = request.choice.name is not None
        self._is_legacy = request.is_legacy
        self._custom = request.custom_names
        self._deltas: dict[int, Deltas] = {}  # by the choice

    def whole(self, index: int, piece: Piece) -> Json:
        return {
            "index": index,
            "message": render_message(gather(piece.parts), is_legacy=self._is_legacy, custom=self._custom),
            "logprobs": self._render_logprobs(piece.logprobs),
            "finish_reason": self._finish_reason(piece),
            "stop_reason": piece.stop_match,
        }

    def opening(self, index: int) -> Json:
        content = None if self._can_call else ""
        return _chunk(index, {"role": "assistant", "content": content, "refusal": None})

    def deltas(self, index: int, piece: Piece) -> Iterable[Json]:
        """The log probabilities of all that is new go with the first piece, be it empty."""
        choice = self._deltas.setdefault(index, Deltas(is_legacy=self._is_legacy, custom=self._custom))
        deltas = [delta for part in piece.parts if (delta := choice.render(part))]
        if piece.logprobs and not deltas:
            deltas.append({})
        logprobs = self._render_logprobs(piece.logprobs)
        for delta in deltas:
            yield _chunk(index, delta, logprobs)
            logprobs = None

    def closing(self, index: int, piece: Piece) -> Json:
        reason = self._finish_reason(piece)
        return {**_chunk(index, {}), "finish_reason": reason, "stop_reason": piece.stop_match}

    def _finish_reason(self, piece: Piece) -> str | None:
        """Calls are a reason of their own only where the model ended its turn by itself, and chose what to call."""
        has_ended = piece.finish_reason is FinishReason.STOP and piece.stop_match is None
        has_called = has_ended and piece.num_calls > 0
        if not has_called or self._is_named:
            return piece.finish_reason
        return "function_call" if self._is_legacy else "tool_calls"

    def _render_logprobs(self, logprobs: Sequence[TokenLogprob]) -> Json | None:
        if not self._has_logprobs:
            return None
        return {"content": render_logprobs(logprobs, self._tokenizer), "refusal": None}


def _chunk(index: int, delta: Json, logprobs: Json | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
