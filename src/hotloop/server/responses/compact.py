"""`/v1/responses/compact`: compacts a conversation with the served model. Nothing of it is stored."""

import asyncio
import secrets
from dataclasses import replace

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from hotloop.core.errors import HotloopError, RequestError
from hotloop.core.request import FinishReason
from hotloop.core.stream import TextDelta
from hotloop.server.explain.render import answer_usage
from hotloop.server.job import Job
from hotloop.server.responses.api import parse_body, recall
from hotloop.server.responses.store import parse_items
from hotloop.server.service import Service
from hotloop.server.stream import JsonResponse, submit
from hotloop.wire.field import Field, Json
from hotloop.wire.responses.compact import MAX_THOUGHT_TOKENS, ask_summary, render_compaction

_MIN_TOKENS = 4  # of a summary, or a model may end its turn before it has written anything


async def compact(http: HttpRequest) -> Response:
    service = Service.of(http)
    async with service.reading(http) as body:
        job, items = await asyncio.to_thread(_make_job, *recall(body, http), http)
    stem = secrets.token_hex(24)
    outputs = await submit(http, job, f"resp_{stem}")
    async with outputs.attended(http.receive):
        [(_, piece)] = await outputs.take_all()
    summary = "".join(part.text for part in piece.parts if isinstance(part, TextDelta)).strip()
    if not summary:
        raise HotloopError("the model wrote no summary: the conversation is as long as it was")
    if piece.finish_reason is FinishReason.LENGTH:
        job.inquiry.tell(f"the summary was cut off after {piece.usage.num_output} tokens")
    num_kept = service.engine.facts.max_context  # bytes, so a quarter of it in tokens
    return JsonResponse(render_compaction(stem, items, summary, answer_usage([piece.usage], job.inquiry), num_kept))


def _make_job(body: Json, previous: tuple[Json, ...], http: HttpRequest) -> tuple[Job, tuple[Json, ...]]:
    service, given = Service.of(http), Field(body).get("input")
    items = previous + (parse_items(given) if given else ())
    if not items:
        raise RequestError("input: there is nothing to compact", param="input")
    request, options, _ = parse_body({**ask_summary(body, items), "min_tokens": _MIN_TOKENS}, ())
    request = replace(request, thinking={"budget_tokens": MAX_THOUGHT_TOKENS})
    return service.jobs.make(request, options, service.caller(http, request, options)), items
