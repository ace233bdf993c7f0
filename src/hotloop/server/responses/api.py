"""`/v1/responses`: OpenAI's API whose answers can be continued, retrieved and cancelled.

However a response is answered, whole, as a stream or in the background, a `Composer` writes it, and the store is told
when it has ended.
"""

import asyncio
import logging
import secrets
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hotloop.core.errors import HotloopError, RequestError
from hotloop.core.structs import compiled
from hotloop.server.errors import Cancelled
from hotloop.server.job import Job
from hotloop.server.options import Options, TopLogprobs, convert, parse_options, refuse_if
from hotloop.server.responses.log import EventLog
from hotloop.server.responses.render import Composer, render_head
from hotloop.server.responses.store import EndedResponse, ResponseStore, RunningResponse, parse_items, render_items
from hotloop.server.service import Service
from hotloop.server.stream import EventStream, JsonResponse, submit
from hotloop.wire.field import Field, Json, read_text
from hotloop.wire.request import ApiRequest
from hotloop.wire.responses.parse import parse_request
from hotloop.wire.responses.writer import NO_SUMMARY, ThoughtShape

log = logging.getLogger(__name__)

_LOGPROBS = "message.output_text.logprobs"
_MAX_METADATA = 16
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@compiled
class ResponseOptions(Options, kw_only=True):
    include: list[str] | None = None
    top_logprobs: TopLogprobs | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=_MAX_METADATA)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    safety_identifier: MetadataValue | None = None
    conversation: Any = None
    prompt: Any = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False


@compiled
class ShowQuery(msgspec.Struct, kw_only=True):
    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0)] | None = None


@compiled
class PageQuery(msgspec.Struct, kw_only=True):
    order: Literal["asc", "desc"] = "desc"
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    after: str | None = None


async def create(http: HttpRequest) -> Response:
    service, store, tenant = Service.of(http), _store(http), http.state.tenant
    async with service.reading(http) as body:
        body, previous = recall(body, http)
        job, options, composer, items = await asyncio.to_thread(_make_job, body, previous, _name(body, store), http)
    outputs, is_background = await submit(http, job, composer.id), bool(options.background)
    run = RunningResponse(tenant.id, items, outputs, composer, options.is_stored, is_background)
    store.start(run)
    if is_background:
        return _start(run, store, is_stream=job.is_stream)
    if job.is_stream:
        return ResponseStream(run, store, http)
    return await _answer(run, store, http.receive)


def _name(body: Json, store: ResponseStore) -> str:
    """An id for a response: the one it has been told by, where an answer is resumed and nobody's is called so."""
    given = body.get("resume")
    told = given.get("response_id") if isinstance(given, dict) else None
    return told if isinstance(told, str) and not store.knows(told) else f"resp_{secrets.token_hex(24)}"


def _make_job(
    body: Json, previous: tuple[Json, ...], response_id: str, http: HttpRequest
) -> tuple[Job, ResponseOptions, Composer, tuple[Json, ...]]:
    service = Service.of(http)
    request, options, items = parse_body(body, previous)
    refuse_if(
        ("n", options.num_choices != 1, "must be 1: a response is one answer"),
        ("background", options.background and not options.is_stored, "needs store: true"),
    )
    has_logprobs = _LOGPROBS in (options.include or ()) or options.top_logprobs is not None
    logprobs = options.top_logprobs or 0 if has_logprobs else None
    caller = service.caller(http, request, options)
    job = service.jobs.make(request, options, caller, logprobs=logprobs)
    head = render_head(body, request, response_id, is_strict=service.strict_tools)
    reasoning = ThoughtShape.asked_for(request)
    if reasoning.has_summary and service.chat.reasoning:
        job.inquiry.tell(NO_SUMMARY)
    composer = Composer(head, service.engine.tokenizer, job.inquiry, request.tools, reasoning)
    return job, options, composer, items


def recall(body: Json, http: HttpRequest) -> tuple[Json, tuple[Json, ...]]:
    """The body with what it only names, and the items that it continues."""
    store, tenant = _store(http), http.state.tenant
    previous_id = read_text(Field(body), "previous_response_id")
    return store.items.resolve(body, tenant.may_see), store.find_previous(previous_id, tenant) if previous_id else ()


def parse_body(body: Json, previous: tuple[Json, ...]) -> tuple[ApiRequest, ResponseOptions, tuple[Json, ...]]:
    """The instructions are of this response alone: they are not among the items that a later one continues."""
    items = previous + parse_items(Field(body).need("input"))
    request = parse_request({**body, "input": [*items]})
    options = parse_options(request, ResponseOptions)
    refuse_if(
        ("conversation", options.conversation is not None, "is not supported: use previous_response_id"),
        ("prompt", options.prompt is not None, "is not supported: send the instructions themselves"),
    )
    return request, options, items


async def input_tokens(http: HttpRequest) -> Response:
    async with Service.of(http).reading(http) as body:
        num_tokens = await asyncio.to_thread(_count_tokens, *recall(body, http), http)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": num_tokens})


def _count_tokens(body: Json, previous: tuple[Json, ...], http: HttpRequest) -> int:
    service = Service.of(http)
    request, options, _ = parse_body(body, previous)
    scope = service.scope(http, options.cache_salt)
    return len(service.jobs.make_prompt(request, options, scope).token_ids)


async def show(http: HttpRequest) -> Response:
    found, query = _find(http), convert(dict(http.query_params), ShowQuery, strict=False)
    if not query.stream:
        return JsonResponse(found.encode())
    if not found.log:
        reason = "stream: only a response that was made with background and stream can be streamed again"
        raise RequestError(reason, param="stream")
    begin = 0 if query.starting_after is None else query.starting_after + 1
    return StreamingResponse(found.log.follow(begin), headers=SSE_HEADERS)


async def delete(http: HttpRequest) -> Response:
    store, response_id, tenant = _store(http), http.path_params["id"], http.state.tenant
    run = store.find_running(response_id, tenant)
    if run and run.is_stored:
        run.is_stored = False
        run.outputs.fail(Cancelled())
    else:
        store.delete(response_id, tenant)
    return JsonResponse({"id": response_id, "object": "response.deleted", "deleted": True})


async def cancel(http: HttpRequest) -> Response:
    """End it within a step of the engine. One that has ended is answered as it is, if it could have been cancelled."""
    store, response_id, tenant = _store(http), http.path_params["id"], http.state.tenant
    run = store.find_running(response_id, tenant)
    if not run:
        ended = store.find_ended(response_id, tenant)
        if not ended.is_background and ended.status != "cancelled":
            raise RequestError("Cannot cancel a synchronous response.", param="response_id")
        return JsonResponse(ended.encode())
    run.outputs.fail(Cancelled())
    if run.task:  # it may have ended by itself, with its end not yet recorded
        await asyncio.wait([run.task])
        return JsonResponse(store.find_ended(response_id, tenant).encode())
    is_cancelled = isinstance(run.outputs.failure, Cancelled)
    return JsonResponse({**run.composer.render(), **({"status": "cancelled"} if is_cancelled else {})})


async def input_items(http: HttpRequest) -> Response:
    page = convert(dict(http.query_params), PageQuery, strict=False)
    items = render_items(_find(http).items, http.path_params["id"])
    return JsonResponse(_render_page(items, page))


ROUTES = (
    Route("/v1/responses", create, methods=["POST"]),
    Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
    Route("/v1/responses/{id}", show, methods=["GET"]),
    Route("/v1/responses/{id}", delete, methods=["DELETE"]),
    Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
    Route("/v1/responses/{id}/input_items", input_items, methods=["GET"]),
)


class ResponseStream(EventStream):
    """A response as server-sent events. What fails before the first of them never was a response."""

    def __init__(self, run: RunningResponse, store: ResponseStore, http: HttpRequest) -> None:
        run.composer.on_end = partial(store.settle, run)
        super().__init__(run.outputs, run.composer, http.state.request_id, headers=http.headers)
        self._forget = partial(store.forget, run)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._forget()


async def _answer(run: RunningResponse, store: ResponseStore, receive: Receive) -> Response:
    """The whole response. One that is cancelled has still been answered; whoever leaves has not."""
    try:
        async with run.outputs.attended(receive):
            await _compose(run)
    except Cancelled as error:
        run.composer.stop(error)
    finally:
        store.forget(run)
    return JsonResponse(store.settle(run))


def _start(run: RunningResponse, store: ResponseStore, *, is_stream: bool) -> Response:
    """Write it in the background, whether or not somebody listens."""
    queued = run.composer.queue()
    if is_stream:
        run.log = EventLog()
        run.log.add(run.composer.number(queued))
    run.task = asyncio.create_task(_finish(run, store))
    return StreamingResponse(run.log.follow(), headers=SSE_HEADERS) if run.log else JsonResponse(run.encode())


async def _finish(run: RunningResponse, store: ResponseStore) -> None:
    last: list[Json] = []
    try:
        last = await _compose(run)
    except HotloopError as error:
        last = run.composer.stop(error)
    except Exception:  # nobody else hears of it
        log.exception("a response could not be written")
        mistake = HotloopError("internal server error; see the server log")
        run.outputs.fail(mistake)
        last = run.composer.stop(mistake)
    finally:
        events = [*run.composer.number(last)] if run.log else []
        store.settle(run, events)  # who hears of the end may ask for the response at once
        if run.log:
            run.log.add(events)
            run.log.end()


async def _compose(run: RunningResponse) -> list[Json]:
    while run.outputs.has_more:
        events = run.composer.add(await run.outputs.take())
        if run.log:
            run.log.add(run.composer.number(events))
    return run.composer.finish(run.outputs.usages[0])


def _store(http: HttpRequest) -> ResponseStore:
    store = http.app.state.responses
    assert isinstance(store, ResponseStore)
    return store


def _find(http: HttpRequest) -> RunningResponse | EndedResponse:
    return _store(http).find(http.path_params["id"], http.state.tenant)


def _render_page(items: list[Json], page: PageQuery) -> Json:
    ordered = items if page.order == "asc" else items[::-1]
    if page.after:
        ids = [item["id"] for item in ordered]
        if page.after not in ids:
            raise RequestError(f"after: there is no item {page.after!r:.100}", param="after")
        ordered = ordered[ids.index(page.after) + 1 :]
    shown = ordered[: page.limit]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": "", "last_id": ""}
    return {"object": "list", "data": shown, **ends, "has_more": len(ordered) > len(shown)}
