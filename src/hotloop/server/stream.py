"""Submits a job to the engine, and streams the engine's events, for all endpoints that generate."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotloop.core.errors import HotloopError, PromptTooLong, RequestError
from hotloop.core.request import Priority, Request, SamplingParams, Usage
from hotloop.core.stream import CallOpened
from hotloop.http.logs import Facts, first_token
from hotloop.server.delivery import OutputCollector, Piece
from hotloop.server.job import Job
from hotloop.server.kv import find_source
from hotloop.server.service import Service
from hotloop.wire.hints import TOKENS_HEADER
from hotloop.wire.sse import PING_S, write_tokens

_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def submit(http: HttpRequest, job: Job, answer_id: str) -> OutputCollector:
    """One request a choice, the choices of a prompt next to each other."""
    service, caller, prepared = Service.of(http), job.caller, job.prepared
    samplings = [_vary_seed(job.sampling, i) for i in range(job.num_choices)]
    choices = [(prompt.token_ids, sampling) for prompt in prepared.prompts for sampling in samplings]
    requests = [
        Request(
            f"{answer_id}-{i}",
            token_ids,
            sampling,
            caller.priority,
            caller.tenant.qualify(caller.session_id),
            prepared.grammar,
            caller.scope,
            prepared.reasoning,
        )
        for i, (token_ids, sampling) in enumerate(choices)
    ]
    source = find_source(http)
    for request in requests:
        request.resume_at = [pin.num_tokens for pin in prepared.pins]
        request.parent_id = caller.tenant.qualify(caller.parent_id)
        request.begun_ids = job.begun_ids
        request.kv_source = source
    trace = service.recorder.open(http, job, answer_id, requests)
    http.state.access = partial(_describe_access, service.recorder.model, http.state.began_at, job, requests)

    def finish(request: Request, calls: Sequence[CallOpened] | None) -> None:
        service.metrics.observe_finish(request, job.endpoint)
        service.chat.prompts.remember(request.prompt_ids, request.output_ids, scope=request.salt)
        is_only = job.num_choices == 1  # of several choices nobody can tell which will go on
        service.retention_hints.finish(request, calls if is_only else None, prepared.pins, has_results=job.has_results)
        job.inquiry.finish(request)
        if caller.is_final:
            service.engine.close_session(request.session_id)
        if trace:
            trace.finish(request)

    job.inquiry.begin(answer_id, requests)
    try:
        return await service.bridge.submit(requests, finish, job.make_parser, job.inquiry.start)
    except HotloopError as error:
        if trace:
            trace.refuse(error)
        if isinstance(error, RequestError) and (error.param is None or isinstance(error, PromptTooLong)):
            error.param = job.prompt_param
        raise


def _describe_access(model: str, began_at: float, job: Job, requests: Sequence[Request]) -> Facts:
    """What the access log says of a request once it is over."""
    prompts = [request.usage for request in requests[:: job.num_choices]]  # the choices of a prompt share it
    firsts = [request.first_token_at for request in requests if request.first_token_at]
    finish = requests[0].finish_reason
    return {
        "session": job.caller.session_id,
        "model": model,
        "class": Priority(requests[0].priority).name.lower(),
        **first_token(began_at, min(firsts, default=None)),
        "prompt_tokens": sum(usage.num_prompt for usage in prompts),
        "cached_tokens": sum(usage.num_cached for usage in prompts),
        "output_tokens": sum(request.usage.num_output for request in requests),
        "finish": finish.value if finish else "disconnected",
    }


def _vary_seed(sampling: SamplingParams, index: int) -> SamplingParams:
    """The choices of one prompt must differ, and still be the same ones next time."""
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + index)


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """What is bytes already is sent as it is."""
        return content if isinstance(content, bytes) else msgspec.json.encode(content)


class StreamWriter(Protocol):
    """Renders one answer as server-sent events: what a step gave, each piece with its choice, and the end."""

    def ping(self) -> bytes:
        """That the request is alive, which says nothing of its answer."""
        ...

    def send(self, pieces: Sequence[tuple[int, Piece]]) -> bytes: ...

    def close(self, usages: Sequence[Usage]) -> bytes: ...

    def break_off(self, error: HotloopError, request_id: str) -> bytes: ...


class EventStream(Response):
    """An answer as server-sent events: one write for everything a step gave. What is known before a request is admitted
    has a status of its own; from then on its client hears at once that it was, and a ping where nothing else came."""

    def __init__(
        self,
        outputs: OutputCollector,
        writer: StreamWriter,
        request_id: str,
        *,
        headers: Mapping[str, str] | None = None,
        ping_s: float = PING_S,
    ) -> None:
        """`headers` are the request's: whoever asks for it is told the tokens that events were made of."""
        super().__init__()
        self._outputs = outputs
        self._writer = writer
        self._request_id = request_id
        self._tells_tokens = TOKENS_HEADER in (headers or {}) and len(outputs.requests) == 1
        self._ping_s = ping_s
        self._is_silent = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outputs, writer = self._outputs, self._writer
        async with outputs.attended(receive):
            await send({"type": "http.response.start", "status": 200, "headers": list(_SSE_HEADERS)})
            data = writer.ping()
            self._look()
            try:
                while outputs.has_more:
                    if data:
                        self._is_silent = False
                        await send({"type": "http.response.body", "body": data, "more_body": True})
                    pieces = await outputs.take()
                    data = self._write(pieces) if pieces else writer.ping()
                last = data + writer.close(outputs.usages)
            except HotloopError as error:
                last = writer.break_off(error, self._request_id)
            finally:
                self._timer.cancel()
            await send({"type": "http.response.body", "body": last, "more_body": False})

    def _write(self, pieces: Sequence[tuple[int, Piece]]) -> bytes:
        data = self._writer.send(pieces)
        return write_tokens(pieces[0][1].token_ids) + data if self._tells_tokens else data

    def _look(self) -> None:
        """Twice in the time there is: a ping is due if nothing was sent since. So no token has to move a deadline."""
        if self._is_silent:
            self._outputs.nudge()
        self._is_silent = True
        self._timer = asyncio.get_running_loop().call_later(self._ping_s / 2, self._look)
