"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API over the same engine."""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from hotloop.core.errors import HotloopError
from hotloop.core.request import FinishReason, Usage
from hotloop.core.stream import CallOpened, ThoughtClosed
from hotloop.core.structs import compiled
from hotloop.server.delivery import Piece
from hotloop.server.errors import render_message_error
from hotloop.server.explain.inquiry import Diagnosis
from hotloop.server.explain.render import answer_usage
from hotloop.server.job import Job
from hotloop.server.options import AnswerId, Options, parse_options, refuse_if
from hotloop.server.service import Service
from hotloop.server.stream import EventStream, JsonResponse, submit
from hotloop.server.turns import sign
from hotloop.wire.errors import ThreadUnsupported
from hotloop.wire.event import Begun, Ended, Event
from hotloop.wire.field import Json
from hotloop.wire.messages.parse import parse_request
from hotloop.wire.messages.writer import MessagesWriter
from hotloop.wire.request import ApiRequest
from hotloop.wire.sse import write_event
from hotloop.wire.usage import ApiUsage


@compiled
class Diagnostics(msgspec.Struct, kw_only=True):
    previous_message_id: AnswerId | None = None


@compiled
class MessageOptions(Options, kw_only=True):
    diagnostics: Diagnostics | None = None
    thread: Any = None

    @property
    def compared_with(self) -> str | None:
        return self.diagnostics.previous_message_id if self.diagnostics else None


async def messages(http: HttpRequest) -> Response:
    service = Service.of(http)
    async with service.reading(http) as body:
        request, job = await asyncio.to_thread(_make_job, body, http)
    answer = MessageStream(f"msg_{secrets.token_hex(12)}", service.model, request, job)
    outputs = await submit(http, job, answer.id)
    if job.is_stream:
        return EventStream(outputs, answer, http.state.request_id, headers=http.headers)
    async with outputs.attended(http.receive):
        [(_, piece)] = await outputs.take_all()
    return JsonResponse(answer.render(piece))


async def count_tokens(http: HttpRequest) -> Response:
    async with Service.of(http).reading(http) as body:
        num_tokens = await asyncio.to_thread(_count_tokens, body, http)
    return JsonResponse({"input_tokens": num_tokens})


def _make_job(body: Json, http: HttpRequest) -> tuple[ApiRequest, Job]:
    service = Service.of(http)
    request = parse_request(body)
    options = parse_options(request, MessageOptions)
    if options.thread is not None:
        raise ThreadUnsupported
    refuse_if(("n", options.num_choices != 1, "must be 1: a message is one answer"))
    caller = service.caller(http, request, options)
    return request, service.jobs.make(request, options, caller, is_prefill_only=request.max_tokens == 0)


def _count_tokens(body: Json, http: HttpRequest) -> int:
    service = Service.of(http)
    request = parse_request({"max_tokens": 1, **body})
    options = parse_options(request, MessageOptions)
    scope = service.scope(http, options.cache_salt)
    return len(service.jobs.make_prompt(request, options, scope).token_ids)


class MessageStream(MessagesWriter):
    """One message, whole or as a stream. Nothing here waits or knows a socket."""

    def __init__(self, answer_id: str, model: str, request: ApiRequest, job: Job) -> None:
        super().__init__(model, omits_thoughts=request.omits_thoughts)
        self.id = answer_id
        self._request = request
        self._job = job
        self._last: Piece | None = None

    def render(self, piece: Piece) -> Json:
        return self.whole([*self._events(piece), self._end(piece, piece.usage)])

    def ping(self) -> bytes:
        return write_event("ping")

    def send(self, pieces: Sequence[tuple[int, Piece]]) -> bytes:
        return b"".join(data for _, piece in pieces for event in self._events(piece) for data in self.write(event))

    def close(self, usages: Sequence[Usage]) -> bytes:
        assert self._last
        return b"".join(self.write(self._end(self._last, usages[0])))

    def break_off(self, error: HotloopError, request_id: str) -> bytes:
        failure = render_message_error(error, request_id)
        return write_event("error", error=failure["error"], request_id=request_id)

    def render_frame(self, begun: Begun) -> Json:
        rendered, pins = super().render_frame(begun), self._job.prepared.pins
        created = {f"ephemeral_{ttl}_input_tokens": 0 for ttl in ("5m", "1h")}
        if pins:
            created[f"ephemeral_{'5m' if pins[-1].ttl_s == 300 else '1h'}_input_tokens"] = begun.usage.num_written
        usage = {**rendered["usage"], "cache_creation": created, "service_tier": "standard"}
        return {**rendered, "usage": usage, "diagnostics": render_diagnostics(self._job.inquiry.diagnose())}

    def _events(self, piece: Piece) -> Iterator[Event]:
        if self._last is None:
            yield Begun(self.id, self._model, self._usage(piece.usage))
        self._last = piece
        for part in piece.parts:
            if isinstance(part, CallOpened):
                part = replace(part, id=f"toolu_{part.id.removeprefix('call_')}")
            elif isinstance(part, ThoughtClosed):
                part = ThoughtClosed(sign(part.thought))
            yield part

    def _end(self, piece: Piece, usage: Usage) -> Ended:
        """A stop string ends an answer whatever it was about to say; calls count only where the model was done."""
        counts, job = self._usage(usage), self._job
        if piece.finish_reason is FinishReason.LENGTH or job.is_prefill_only:
            is_window = (self._request.max_tokens or 0) > (job.sampling.max_tokens or 0)
            return Ended("window" if is_window else "length", None, counts)
        if piece.stop_match is not None:
            return Ended("stop", str(piece.stop_match), counts)
        return Ended("calls" if piece.num_calls else "stop", None, counts)

    def _usage(self, usage: Usage) -> ApiUsage:
        """Each token of the prompt is counted once: cached, put there because asked, or neither."""
        num_kept = max((pin.num_tokens for pin in self._job.prepared.pins), default=0)
        return answer_usage([usage], self._job.inquiry, num_kept=num_kept, is_prefill_only=self._job.is_prefill_only)


def render_diagnostics(diagnosis: Diagnosis | None) -> Json | None:
    """Null where no comparison was asked for, or nothing differed. What Anthropic has no word for is unavailable; a
    system message that is not the first one is among the messages."""
    if diagnosis is None or diagnosis.outcome == "same":
        return None
    if diagnosis.outcome == "unknown":
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    if diagnosis.outcome == "unavailable" or diagnosis.kind == "template":
        return {"cache_miss_reason": {"type": "unavailable"}}
    is_first_system = diagnosis.kind == "system" and diagnosis.index == 0
    part = "tools" if diagnosis.kind == "tool" else "system" if is_first_system else "messages"
    return {"cache_miss_reason": {"type": f"{part}_changed", "cache_missed_input_tokens": diagnosis.num_missed}}
