"""`/v1/responses`: OpenAI's way of asking that can be continued, looked at and cancelled, over the same engine.

A body becomes a `ResponseJob` off the event loop, and that one request. However it is answered, whole, as a stream or
in the background, a `Composer` writes the response and the store hears of its end.
"""

import asyncio
import secrets
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hotloop.chat.prompt import Conversation
from hotloop.core.errors import HotloopError, RequestError
from hotloop.core.message import Message
from hotloop.server.decoding import convert, decode
from hotloop.server.errors import Cancelled
from hotloop.server.generate import EventStream, submit
from hotloop.server.job import Job
from hotloop.server.jobs import answer_grammar, answer_parser, shows_special, whole_prompt_pins
from hotloop.server.openai.render import Json
from hotloop.server.openai.wire import parse_priority
from hotloop.server.responses.items import Item, make_messages, render_items, settle_items
from hotloop.server.responses.render import Composer, ResponseWriter, render_head
from hotloop.server.responses.store import Ended, ResponseStore, Run
from hotloop.server.responses.tools import Toolbox, parse_toolbox
from hotloop.server.responses.wire import (
    ResponsesBody,
    check_body,
    parse_response_sampling,
    parse_shape,
)
from hotloop.server.service import Service
from hotloop.server.tenants import Asker, name_owner

_responses_body = msgspec.json.Decoder(ResponsesBody)


class PageQuery(msgspec.Struct, kw_only=True):
    """Which of a response's items to list."""

    order: Literal["asc", "desc"] = "desc"
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseJob(Job):
    """A job of OpenAI's responses: one prompt, one answer."""

    composer: Composer
    items: tuple[Item, ...]


async def create(http: HttpRequest) -> Response:
    service = Service.of(http)
    body = decode(_responses_body, await service.read(http))
    service.check_model(body.model)
    check_body(body)
    owner, store = name_owner(http.headers), service.responses
    previous = store.find_previous(body.previous_response_id, owner) if body.previous_response_id else ()
    job = await asyncio.to_thread(response_job, body, previous, service, service.asker(http, body))
    call = submit(http, job, job.composer.id, parse_priority(body, http.headers))
    run = Run(owner, job.items, call, job.composer, body.is_stored)
    store.start(run)
    if body.stream:
        return ResponseStream(run, store, http.state.request_id)
    if body.background:
        run.task = asyncio.create_task(_finish(run, store))
        return _json(run.encode())
    return await _answer(run, store, http.receive)


async def show(http: HttpRequest) -> Response:
    if http.query_params.get("stream") == "true":
        raise RequestError("stream: a response is streamed only while it is made", param="stream")
    return _json(_find(http).encode())


async def delete(http: HttpRequest) -> Response:
    store, response_id, owner = Service.of(http).responses, http.path_params["id"], name_owner(http.headers)
    run = store.find_running(response_id, owner)
    if run and run.is_stored:
        run.is_stored = False
        run.call.fail(Cancelled())
    else:
        store.delete(response_id, owner)
    return JSONResponse({"id": response_id, "object": "response.deleted", "deleted": True})


async def cancel(http: HttpRequest) -> Response:
    """End it within a step of the engine. One that has ended already is answered as it is."""
    run = Service.of(http).responses.find_running(http.path_params["id"], name_owner(http.headers))
    if not run:
        return _json(_find(http).encode())
    run.call.fail(Cancelled())
    is_cancelled = isinstance(run.call.failure, Cancelled)
    return JSONResponse({**run.composer.render(), **({"status": "cancelled"} if is_cancelled else {})})


async def input_items(http: HttpRequest) -> Response:
    page = convert(dict(http.query_params), PageQuery, strict=False)
    items = render_items(_find(http).items, http.path_params["id"])
    return JSONResponse(_render_page(items, page))


ROUTES = (
    Route("/v1/responses", create, methods=["POST"]),
    Route("/v1/responses/{id}", show, methods=["GET"]),
    Route("/v1/responses/{id}", delete, methods=["DELETE"]),
    Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
    Route("/v1/responses/{id}/input_items", input_items, methods=["GET"]),
)


class ResponseStream(EventStream):
    """A response as server-sent events. What fails before the first of them never was a response."""

    def __init__(self, run: Run, store: ResponseStore, request_id: str) -> None:
        super().__init__(run.call, ResponseWriter(run.composer, lambda: store.settle(run)), request_id)
        self._forget = partial(store.forget, run)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._forget()


def response_job(body: ResponsesBody, previous: tuple[Item, ...], service: Service, asker: Asker) -> ResponseJob:
    tokenizer = service.engine.tokenizer
    toolbox = _parse_tools(body, service)
    keep_special = shows_special(toolbox.calling, service)
    sampling = parse_response_sampling(body, tokenizer.vocab_size, keep_special=keep_special)
    grammar = answer_grammar(parse_shape(body), toolbox.calling, service)
    items = previous + settle_items(body.input)
    conversation = _make_conversation(body, items, toolbox)
    prompt = service.prompts.chat(conversation, scope=asker.scope)
    can_call = toolbox.calling.is_possible
    turn = service.keeper.begin(conversation.messages, whole_prompt_pins(body, prompt), can_call=can_call)
    inquiry = service.explainer.inquire([prompt], asker, body.compared_with)
    head = render_head(body, toolbox, f"resp_{secrets.token_hex(24)}", service.model)
    return ResponseJob(
        endpoint="responses",
        prompt_param="input",
        prompts=[prompt],
        sampling=sampling,
        grammar=grammar,
        composer=Composer(head, toolbox, tokenizer, inquiry),
        parser=answer_parser(toolbox.calling, service, turn),
        items=items,
        turn=turn,
        inquiry=inquiry,
        asker=asker,
    )


def _parse_tools(body: ResponsesBody, service: Service) -> Toolbox:
    is_parallel = body.parallel_tool_calls is not False
    return parse_toolbox(body.tools or (), body.tool_choice, is_strict=service.strict_tools, is_parallel=is_parallel)


def _make_conversation(body: ResponsesBody, items: tuple[Item, ...], toolbox: Toolbox) -> Conversation:
    """The instructions are of this response alone: they are not among the items that a later one continues."""
    instructions = [Message("system", body.instructions)] if body.instructions else []
    messages = (*instructions, *make_messages(items))
    if not messages:
        raise RequestError("input is empty", param="input")
    return Conversation(messages=messages, tools=toolbox.calling.tools, extra=body.chat_template_kwargs or {})


async def _answer(run: Run, store: ResponseStore, receive: Receive) -> Response:
    """The whole response. One that is cancelled has still been answered; whoever leaves has not."""
    try:
        async with run.call.attended(receive):
            await _compose(run)
    except Cancelled as error:
        run.composer.break_off(error)
    finally:
        store.forget(run)
    return _json(store.settle(run))


async def _finish(run: Run, store: ResponseStore) -> None:
    """Write a response that nobody waits for."""
    try:
        await _compose(run)
    except HotloopError as error:
        run.composer.break_off(error)
    finally:
        store.settle(run)


async def _compose(run: Run) -> None:
    while run.call.has_more:
        for _, piece in await run.call.take():
            run.composer.add(piece)
    run.composer.finish(run.call.usages[0])


def _find(http: HttpRequest) -> Run | Ended:
    return Service.of(http).responses.find(http.path_params["id"], name_owner(http.headers))


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


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
