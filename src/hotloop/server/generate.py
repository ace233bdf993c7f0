"""The endpoints that generate. Both parse their body into a `Job`; from there on there is one way for whole answers
and one for streams. Nothing here knows a field of either body.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotloop.core.errors import HotloopError, PromptTooLong
from hotloop.core.request import Priority, Request, SamplingParams, Usage
from hotloop.server.decoding import decode
from hotloop.server.delivery import Call, Piece
from hotloop.server.job import Job
from hotloop.server.jobs import CompletionJob, chat_job, completion_job, reading_job
from hotloop.server.openai.chat import ChatBody
from hotloop.server.openai.completions import CompletionBody
from hotloop.server.openai.render import ChunkWriter, render_answer, render_usage
from hotloop.server.openai.wire import GenerateBody, parse_priority
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
    make_job = reading_job if body.is_reading else chat_job
    job = await asyncio.to_thread(make_job, body, service, service.asker(http, body))
    return await _generate(http, body, job)


async def completions(http: HttpRequest) -> Response:
    service = Service.of(http)
    body = decode(_completion_body, await service.read(http))
    service.check_model(body.model)
    job = await asyncio.to_thread(completion_job, body, service, service.asker(http, body))
    return await _generate(http, body, job)


async def _generate(http: HttpRequest, body: GenerateBody, job: CompletionJob) -> Response:
    service = Service.of(http)
    envelope = service.envelope(f"{job.id_prefix}-{secrets.token_hex(12)}")
    call = submit(http, job, envelope.id, parse_priority(body, http.headers))
    if body.stream:
        has_usage = body.has_usage_chunk
        writer = ChunkWriter(envelope, job.wording, job.inquiry, num_choices=job.num_choices, has_usage=has_usage)
        return EventStream(call, writer, http.state.request_id)
    async with call.attended(http.receive):
        events = await call.take_all()
    usages = [usage._replace(num_output=0) for usage in call.usages] if job.is_silent else call.usages
    answer = render_answer(envelope, job.wording, events, render_usage(usages, job.inquiry, job.num_choices))
    return Response(answer, media_type="application/json")


def submit(http: HttpRequest, job: Job, answer_id: str, priority: Priority) -> Call:
    """One request a choice, the choices of a prompt next to each other."""
    service = Service.of(http)
    samplings = [_vary_seed(job.sampling, i) for i in range(job.num_choices)]
    choices = [(prompt.token_ids, sampling) for prompt in job.prompts for sampling in samplings]
    requests = [
        Request(f"{answer_id}-{i}", token_ids, sampling, priority, job.asker.session_id, job.grammar, job.asker.scope)
        for i, (token_ids, sampling) in enumerate(choices)
    ]
    trace = service.recorder.open(http, job, answer_id, requests)

    def finish(request: Request) -> None:
        job.finish(request)
        if trace:
            trace.finish(request)

    try:
        call = service.mailroom.submit(requests, job.endpoint, finish, job.parser)
    except HotloopError as error:
        if trace:
            trace.refuse(error)
        if isinstance(error, PromptTooLong):
            error.param = job.prompt_param
        raise
    job.inquiry.begin(answer_id, requests)
    return call


def _vary_seed(sampling: SamplingParams, index: int) -> SamplingParams:
    """The choices of one prompt must differ, and still be the same ones next time."""
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + index)


class StreamWriter(Protocol):
    """Words one answer as server-sent events, in the shape of one API."""

    def write(self, pieces: Sequence[tuple[int, Piece]]) -> bytes:
        """What a step gave, each piece with its choice."""
        ...

    def close(self, usages: Sequence[Usage]) -> bytes:
        """The last words of a stream that went well."""
        ...

    def fail(self, error: HotloopError, request_id: str) -> bytes:
        """The last words of one that failed after it began."""
        ...


class EventStream(Response):
    """An answer as server-sent events: one write for everything a step gave.

    The status goes out with the first event, so what fails before that still has a status of its own.
    """

    def __init__(self, call: Call, writer: StreamWriter, request_id: str) -> None:
        super().__init__()
        self._call = call
        self._writer = writer
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
                last = self._writer.write(events) + self._writer.close(call.usages)
            except HotloopError as error:
                last = self._writer.fail(error, self._request_id)
            await send(_body(last, more=False))


def _body(data: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}
