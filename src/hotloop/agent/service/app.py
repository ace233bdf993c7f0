"""An agent as an ASGI application.

    POST /v1/chat/completions   POST /v1/responses   POST /mcp   GET /v1/models   GET /health   GET /ready
    GET /metrics

The conversation is the client's, the tools are the agent's. Every answer names its run in `X-Hotloop-Run`; a request
with that header goes on with a run that was cut off, paused or waits, whatever its body says.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation, Prompt
from hotloop.agent.events import RunEnded, RunStarted
from hotloop.agent.run_stream import RunStream
from hotloop.agent.service import mcp
from hotloop.agent.service.answers import AnswerStream, Writer, describe, line, render_output, whole_answer
from hotloop.agent.service.metrics import CONTENT_TYPE, AgentMetrics
from hotloop.agent.service.reading import read_request
from hotloop.agent.service.running import Events, RunningAgents, as_failure
from hotloop.core.config import AgentServerConfig, parse_bytes
from hotloop.core.errors import HotloopError, RemoteError, RequestError
from hotloop.core.version import __version__
from hotloop.http.bodies import JsonBody
from hotloop.http.keys import METRICS_PATH, AccessDenied, ApiKeys, Tenant
from hotloop.http.requests import HELLO_PATHS, OPEN_PATHS, REQUEST_ID_HEADER, parse_request_id
from hotloop.trace.default import default_tracer
from hotloop.wire.chat.parse import parse_request as parse_chat
from hotloop.wire.chat.writer import ChatWriter
from hotloop.wire.errors import render_chat_failure
from hotloop.wire.field import Json
from hotloop.wire.hints import read_hints
from hotloop.wire.models import ServedModel, render_model, render_models
from hotloop.wire.request import ApiRequest
from hotloop.wire.responses.parse import parse_request as parse_responses
from hotloop.wire.responses.writer import ResponsesWriter, render_head
from hotloop.wire.sse import COMMENT, PING_S, write_data

log = logging.getLogger("hotloop.agent")

RUN_HEADER = "x-hotloop-run"


class AgentApp:
    """`context` is what the agent's tools are given, in every run."""

    def __init__(
        self, agent: Agent[Any], config: AgentServerConfig, *, context: Sequence[Any] = (), keys: ApiKeys | None = None
    ) -> None:
        self.name = agent.settings.name or "agent"
        self._tracer = agent.settings.tracer or default_tracer()
        self.metrics = AgentMetrics(self._tracer)
        self.running = RunningAgents(config.max_runs, self.metrics)
        self.is_draining = False
        self._agent = agent
        self._context = context
        self._keys = keys or ApiKeys()
        self._max_body = parse_bytes(config.max_body)
        self._inner = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/responses", self._responses, methods=["POST"]),
                Route("/mcp", self._mcp, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{model:path}", self._models),
                Route("/ready", self._ready),
                Route(METRICS_PATH, lambda request: Response(self.metrics.render(), media_type=CONTENT_TYPE)),
                Route("/version", lambda request: _json({"version": __version__})),
                *(Route(path, lambda request: _json({"status": "ok"})) for path in ("/health", *HELLO_PATHS)),
            ],
            exception_handlers={HotloopError: _on_error, Exception: _on_bug},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        request_id = parse_request_id(headers.get(REQUEST_ID_HEADER.encode(), b"").decode("latin-1"))
        state = scope.setdefault("state", {})
        state["request_id"] = request_id

        async def send_with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= 400:
                    self.metrics.count_http_error(message["status"])
                message["headers"] = [*message["headers"], (REQUEST_ID_HEADER.encode(), request_id.encode("latin-1"))]
            await send(message)

        try:
            if scope["path"] not in OPEN_PATHS:
                state["tenant"] = self._keys.current.admit(headers, scope["path"])
        except AccessDenied as error:
            await _refuse(RemoteError(str(error), status=error.status))(scope, receive, send_with_id)
            return
        await self._inner(scope, receive, send_with_id)

    async def _chat(self, http: Request) -> Response:
        body = await self._read(http)
        request = parse_chat(body)
        writer = ChatWriter(self.name, has_usage=request.has_usage or not request.is_stream)
        return await self._answer(http, body, request, writer)

    async def _responses(self, http: Request) -> Response:
        body = await self._read(http)
        head = {**render_head(body | {"model": self.name}), "id": f"resp_{secrets.token_hex(24)}"}
        return await self._answer(http, body, parse_responses(body), ResponsesWriter(head))

    async def _answer(self, http: Request, body: Json, request: ApiRequest, writer: Writer) -> Response:
        make = await self._run_for(http, body, request)
        stack = AsyncExitStack()
        async with stack:
            events = await stack.enter_async_context(self.running.begin(make))
            begun = await anext(events)
            assert isinstance(begun, RunStarted)
            headers = {RUN_HEADER: begun.run_id}
            if request.is_stream:
                answer = AnswerStream(writer, self.name, is_text=self._agent.output is str)
                held = stack.pop_all()  # the response closes it
                return StreamingResponse(_stream(answer, begun, events, held), 200, headers, "text/event-stream")
            ended = await _until_end(http, events)
            if ended.error:
                return _refuse(as_failure(ended.error), headers)
            return _json(whole_answer(writer, self.name, begun.run_id, ended), headers)

    async def _run_for(self, http: Request, body: Json, request: ApiRequest) -> "Any":
        """What makes the run that a request is for."""
        tenant: Tenant = http.state.tenant
        if run_id := http.headers.get(RUN_HEADER):
            await self._check_run(run_id, tenant)
            return lambda: self._agent.stream_resume(run_id, context=self._context)
        prompt, said = read_request(request)
        session = tenant.qualify(read_hints(body, http.headers).session or f"session-{secrets.token_hex(8)}")
        conversation = await self._agent.converse(said, session_id=session, context=self._context)
        return lambda: self._begin(prompt, conversation)

    def _begin(self, prompt: Prompt, conversation: Conversation) -> RunStream[Any]:
        return self._agent.stream(prompt, conversation=conversation, context=self._context)

    async def _check_run(self, run_id: str, tenant: Tenant) -> None:
        """Raises RemoteError if this client has no run of that id. Runs of other clients are not found."""
        if journal := self._tracer.journal:
            with suppress(HotloopError):
                row, _ = await asyncio.wrap_future(journal.read(run_id, "ended"))
                is_own = row.run_id == run_id and row.session.startswith(tenant.qualify(" ")[:-1])
                if is_own and row.state != "done":
                    return
        raise RemoteError(f"there is no run {run_id!r:.80} to go on with", status=404)

    async def _mcp(self, http: Request) -> Response:
        body = await self._read(http)
        if mcp.is_notification(body):
            return Response(status_code=202)
        if body.get("method") != "tools/call":
            return _json(mcp.answer(body, self.name))
        prompt, token = mcp.read_call(body), mcp.progress_token(body)
        if prompt is None:
            return _json(mcp.refuse_call(body))
        conversation = Conversation(session_id=http.state.tenant.qualify(f"session-{secrets.token_hex(8)}"))
        stack = AsyncExitStack()
        async with stack:
            events = await stack.enter_async_context(self.running.begin(lambda: self._begin(prompt, conversation)))
            if token is not None and "text/event-stream" in http.headers.get("accept", ""):
                held = stack.pop_all()
                return StreamingResponse(_mcp_stream(body, token, events, held), 200, {}, "text/event-stream")
            return _json(_mcp_result(body, await _until_end(http, events)))

    async def _models(self, http: Request) -> Response:
        model, name = ServedModel(self.name), http.path_params.get("model")
        if name is None:
            return _json(render_models([model], for_anthropic=False))
        if name != self.name:
            raise RemoteError(f"there is no model {name!r:.200}: the agent is {self.name!r}", status=404)
        return _json(render_model(model, for_anthropic=False))

    async def _ready(self, http: Request) -> Response:
        if self.is_draining:
            return _refuse(RemoteError("the agent is shutting down", status=503))
        return _json({"status": "ready"})

    async def _read(self, http: Request) -> Json:
        if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RemoteError("send `Content-Type: application/json`", status=415)
        body = JsonBody()
        async for piece in http.stream():
            body.add(piece)
            if body.num_bytes > self._max_body:
                raise RemoteError(f"the body is larger than {self._max_body} bytes (--max-body)", status=413)
        try:
            value = msgspec.json.decode(body.take())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise RequestError("the body must be a JSON object")
        value.setdefault("model", self.name)
        return value


async def _until_end(http: Request, events: Events) -> RunEnded:
    """The end of a run, unless its client leaves first."""

    async def read() -> RunEnded:
        async for event in events:
            if isinstance(event, RunEnded):
                return event
        raise AssertionError("a run has an end")

    async def leave() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    reading, leaving = asyncio.create_task(read()), asyncio.create_task(leave())
    try:
        await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise RemoteError("the client closed the connection", status=499)
        return reading.result()
    finally:
        reading.cancel()
        leaving.cancel()
        await asyncio.gather(reading, leaving, return_exceptions=True)


async def _stream(
    answer: AnswerStream, begun: RunStarted, events: Events, held: AsyncExitStack
) -> AsyncIterator[bytes]:
    """The answer, and a comment where nothing else came for long."""
    async with held:
        for data in answer.write(begun):
            yield data
        try:
            async for event in _pinged(events):
                for data in [COMMENT] if event is None else answer.write(event):
                    yield data
        except HotloopError as error:
            yield answer.fail(error)


async def _pinged(events: Events) -> AsyncIterator[Any]:
    waiting: asyncio.Task[Any] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(events, _OVER))
            done, _ = await asyncio.wait({waiting}, timeout=PING_S)
            if not done:
                yield None
                continue
            event, waiting = waiting.result(), None
            if event is _OVER:
                return
            yield event
    finally:
        if waiting:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


_OVER = object()


async def _mcp_stream(body: Json, token: Any, events: Events, held: AsyncExitStack) -> AsyncIterator[bytes]:
    async with held:
        num_told = 0
        async for event in _pinged(events):
            if event is None:
                yield COMMENT
            elif isinstance(event, RunEnded):
                yield write_data(_mcp_result(body, event))
            elif note := describe(event):
                num_told += 1
                yield write_data(mcp.progress(token, num_told, line(note)))


def _mcp_result(body: Json, ended: RunEnded) -> Json:
    return mcp.result(
        body, str(ended.error) if ended.error else render_output(ended.output), is_error=bool(ended.error)
    )


def _json(value: Json, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), 200, headers, "application/json")


def _refuse(error: RemoteError, headers: dict[str, str] | None = None) -> Response:
    status, body = render_chat_failure(error)
    retry = {} if error.retry_after_s is None else {"retry-after": str(int(error.retry_after_s))}
    asked = {"www-authenticate": "Bearer"} if status == 401 else {}
    return Response(msgspec.json.encode(body), status, {**(headers or {}), **retry, **asked}, "application/json")


async def _on_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HotloopError)
    return _refuse(as_failure(error))


async def _on_bug(http: Request, error: Exception) -> Response:
    return _refuse(RemoteError("internal error; see the log of the agent's server", status=500))


@asynccontextmanager
async def entered(app: AgentApp, agent: Agent[Any]) -> AsyncIterator[None]:
    """The agent with what it needs open, until its runs have ended."""
    async with agent:
        try:
            yield
        finally:
            await app.running.close()
