"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API over the same engine."""

import asyncio
import secrets
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from hotloop.core.errors import RequestError
from hotloop.server.anthropic.render import MessageStream
from hotloop.server.calling import parse_calling
from hotloop.server.errors import ThreadUnsupported
from hotloop.server.job import Job
from hotloop.server.jobs import make_conversation, make_job
from hotloop.server.options import Options, parse_options
from hotloop.server.service import Service
from hotloop.server.stream import EventStream, JsonResponse, submit
from hotloop.server.turns import parse_transcript
from hotloop.wire.field import Json
from hotloop.wire.messages.parse import parse_request
from hotloop.wire.policy import Notes
from hotloop.wire.request import Request


class Diagnostics(msgspec.Struct, kw_only=True):
    previous_message_id: str | None = None


class MessageOptions(Options, kw_only=True):
    diagnostics: Diagnostics | None = None
    thread: Any = None

    @property
    def compared_with(self) -> str | None:
        return self.diagnostics.previous_message_id if self.diagnostics else None


async def messages(http: HttpRequest) -> Response:
    service = Service.of(http)
    body = await service.read(http)
    request, job = await asyncio.to_thread(_make_job, body, http)
    answer = MessageStream(f"msg_{secrets.token_hex(12)}", service.model, request, job)
    outputs = submit(http, job, answer.id)
    if job.is_stream:
        return EventStream(outputs, answer, http.state.request_id)
    async with outputs.attended(http.receive):
        [(_, piece)] = await outputs.take_all()
    return JsonResponse(answer.render(piece))


async def count_tokens(http: HttpRequest) -> Response:
    body = await Service.of(http).read(http)
    num_tokens = await asyncio.to_thread(_count_tokens, body, http)
    return JsonResponse({"input_tokens": num_tokens})


def _make_job(body: Json, http: HttpRequest) -> tuple[Request, Job]:
    service = Service.of(http)
    request = parse_request(body, Notes())
    options = parse_options(request, MessageOptions)
    if options.thread is not None:
        reason = "thread: no conversation is kept here: send all of it, without thread"
        raise ThreadUnsupported(reason, param="thread")
    if request.turns[-1].role == "assistant":
        reason = "messages: the last turn is the assistant's, and cannot be continued here"
        raise RequestError(reason, param="messages")
    if options.num_choices != 1:
        raise RequestError("n must be 1: a message is one answer", param="n")
    caller = service.caller(http, request, options)
    return request, make_job(request, options, service, caller, is_silent=request.max_tokens == 0)


def _count_tokens(body: Json, http: HttpRequest) -> int:
    service = Service.of(http)
    request = parse_request({"max_tokens": 1, **body}, Notes())
    options = parse_options(request, MessageOptions)
    calling = parse_calling(request, is_strict=service.strict_tools)
    conversation = make_conversation(request, options, calling, parse_transcript(request))
    scope = service.scope(http.headers, options.cache_salt)
    return len(service.prompts.chat(conversation, scope=scope).token_ids)
