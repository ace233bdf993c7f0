"""The endpoints that generate. Both parse their body into a `Job`; from there on there is one way for whole answers
and one for streams. Nothing here knows a field of either body.
"""

import asyncio
import secrets
from dataclasses import replace

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotloop.core.errors import HotloopError, PromptTooLong
from hotloop.core.request import Request, SamplingParams
from hotloop.server.delivery import Call
from hotloop.server.errors import render_error
from hotloop.server.jobs import Job, chat_job, completion_job
from hotloop.server.openai_chat import ChatBody
from hotloop.server.openai_completions import CompletionBody
from hotloop.server.openai_render import ChunkWriter, render_answer, render_usage, write_error
from hotloop.server.openai_wire import GenerateBody, decode, parse_priority, parse_session_id
from hotloop.server.service import Service

_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_chat_body = msgspec.json.Decoder(ChatBody)
_completion_body = msgspec.json.Decoder(CompletionBody)


async def chat_completions(http: HttpRequest) -> Response:
    service = Service.of(http)
    body = decode(_chat_body, await service.read(http))
    service.check_model(body.model)
    # A long history takes a while to cut into tokens, a schema to compile: the other streams should not wait for it.
    return await _generate(http, body, await asyncio.to_thread(chat_job, body, service))


async def completions(http: HttpRequest) -> Response:
    service = Service.of(http)
    body = decode(_completion_body, await service.read(http))
    service.check_model(body.model)
    return await _generate(http, body, await asyncio.to_thread(completion_job, body, service))


async def _generate(http: HttpRequest, body: GenerateBody, job: Job) -> Response:
    service = Service.of(http)
    envelope = service.envelope(f"{job.id_prefix}-{secrets.token_hex(12)}")
    call = _submit(http, body, job, envelope.id)
    if body.stream:
        writer = ChunkWriter(envelope, job.wording, has_usage=body.has_usage_chunk)
        return EventStream(call, writer, body.num_choices, http.state.request_id)
    async with call.attended(http.receive):
        events = await call.take_all()
    answer = render_answer(envelope, job.wording, events, render_usage(call.usages, body.num_choices))
    return Response(answer, media_type="application/json")


def _submit(http: HttpRequest, body: GenerateBody, job: Job, answer_id: str) -> Call:
    """One request a choice, the choices of a prompt next to each other."""
    priority = parse_priority(body, http.headers)
    session_id = parse_session_id(body, http.headers)
    samplings = [_vary_seed(job.sampling, i) for i in range(body.num_choices)]
    choices = [(prompt.token_ids, sampling) for prompt in job.prompts for sampling in samplings]
    requests = [
        Request(f"{answer_id}-{i}", token_ids, sampling, priority, session_id, job.grammar)
        for i, (token_ids, sampling) in enumerate(choices)
    ]
    try:
        return Service.of(http).mailroom.submit(requests, job.endpoint)
    except PromptTooLong as error:
        error.param = job.prompt_param
        raise


def _vary_seed(sampling: SamplingParams, index: int) -> SamplingParams:
    """The choices of one prompt must differ, and still be the same ones next time."""
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + index)


class EventStream(Response):
    """An answer as server-sent events: one write for everything a step gave.

    The status goes out with the first event, so what fails before that still has a status of its own.
    """

    def __init__(self, call: Call, writer: ChunkWriter, num_choices: int, request_id: str) -> None:
        super().__init__()
        self._call = call
        self._writer = writer
        self._num_choices = num_choices
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call
        async with call.attended(receive):
            events = await call.take()
            await send({"type": "http.response.start", "status": 200, "headers": list(_SSE_HEADERS)})
            try:
                while call.has_more:
                    if data := self._writer.write(events):
                        await send(_body(data, more=True))
                    events = await call.take()
                last = self._writer.write(events) + self._writer.close(render_usage(call.usages, self._num_choices))
            except HotloopError as error:
                last = write_error(render_error(error, self._request_id))
            await send(_body(last, more=False))


def _body(data: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}
