"""Requests linted as they go by, between any client and any API: bodies pass byte for byte.

Nothing that goes wrong here is the client's trouble: a body that cannot be read is passed on all the same. Headers are
passed on but for those of the connection itself, and for encodings that could not be read here. Whoever hangs up is
hung up on; an answer that breaks off upstream breaks off here.
"""

import asyncio
import logging
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hotloop.http.client import open_client
from hotloop.http.headers import end_to_end
from hotloop.http.listen import url_of
from hotloop.http.serving import ApiServer
from hotloop.http.url import check_url
from hotloop.lint.conversations import ConversationSorter
from hotloop.lint.engine import Costs, lint_run
from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.meter import Meter
from hotloop.lint.parts import LintedAnswer, mapping, parse_answer, parse_stream
from hotloop.lint.requests import API_PATHS, LintedRequest, find_api
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun, LintedStep
from hotloop.wire.hints import read_hints
from hotloop.wire.part import Api
from hotloop.wire.sse import is_ping

_WINDOW = 3
_MAX_RUNS = 256
log = logging.getLogger("hotloop.lint")
_MAX_KEPT = 32 << 20  # bytes of an answer, compressed or not; a longer one is passed on and not read
_READABLE = (b"gzip", b"deflate", b"identity")


@dataclass(slots=True)
class _Conversation:
    """The latest requests, and the findings that were reported of them."""

    steps: deque[LintedStep] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    keys: set[tuple[str, Severity, str]] = field(default_factory=set)


class LiveLint:
    """Tells of each finding once a conversation, and counts what all of them cost. May be fed from any thread."""

    def __init__(
        self, rules: Sequence[Rule], tell: Callable[[Finding], None], *, meter: Meter, costs: Costs | None = None
    ) -> None:
        self.num_requests = 0
        self.waste = Waste()
        self._rules = rules
        self._tell = tell
        self._costs = costs or Costs()
        self._sorter = ConversationSorter(meter)
        self._conversations: dict[str, _Conversation] = {}
        self._lock = threading.Lock()

    def see(self, exchange: LintedRequest) -> None:
        with self._lock:
            run_id, step = self._sorter.step(exchange)
            conversation = self._conversations.pop(run_id, None) or _Conversation()
            self._conversations[run_id] = conversation  # the latest used last
            conversation.steps.append(step)
            self.num_requests += 1
            run = LintedRun(run_id, tuple(conversation.steps))
            for finding in lint_run(run, self._rules, self._costs, begin=step.request.index):
                self._count(finding, conversation)
            if len(self._conversations) > _MAX_RUNS:
                del self._conversations[next(iter(self._conversations))]

    def _count(self, finding: Finding, conversation: _Conversation) -> None:
        self.waste += finding.waste
        key = (finding.rule, finding.severity, finding.place.path.partition("[")[0])
        if key not in conversation.keys:
            conversation.keys.add(key)
            self._tell(finding)


class LintProxy:
    """An ASGI app. `see` is given every exchange, on a thread of its own, in the order in which they ended."""

    def __init__(self, upstream: str, see: Callable[[LintedRequest], None]) -> None:
        """Raises ConfigError if `upstream` is no address."""
        self._upstream = check_url(upstream).removesuffix("/v1")
        self._url = httpx.URL(self._upstream)
        self._see = see
        self._http = open_client()
        for name in [*self._http.headers]:  # the client's own, and no others
            del self._http.headers[name]
        self._reader = ThreadPoolExecutor(1, "hotloop-lint")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = self._refuse(request) or await self._pass_on(request)
            await response(scope, receive, send)
        except ClientDisconnect:
            return
        except httpx.HTTPError as error:  # the answer is left without an end, and its connection is closed
            log.warning("%s broke off: %s", self._upstream, error or type(error).__name__)

    async def aclose(self) -> None:
        """All that went by has been seen when this returns."""
        await self._http.aclose()
        await asyncio.to_thread(self._reader.shutdown)

    def _refuse(self, request: Request) -> Response | None:
        """What is not passed on. Of targets only a path is: of any other the host would be for the client to say."""
        if "upgrade" in request.headers:
            message = "only plain HTTP is passed on and linted; leave the proxy out for websockets and the like"
            return _error(501, "unsupported", message)
        if not request.scope["raw_path"].startswith(b"/"):
            return _error(400, "invalid_request_error", "the target of a request must be a path")
        return None

    async def _pass_on(self, request: Request) -> Response:
        body = await request.body()
        query = request.scope["query_string"]
        path = self._url.raw_path.rstrip(b"/") + request.scope["raw_path"] + (b"?" + query if query else b"")
        url = self._url.copy_with(raw_path=path)
        passed = end_to_end(request.headers.raw, keeps_length=True)
        headers = [_readable(*header) for header in passed if header[0] != b"host"]
        upstream = self._http.build_request(request.method, url, headers=headers, content=body or None)
        began_at = time.monotonic()
        try:
            answer = await self._http.send(upstream, stream=True)
        except httpx.HTTPError as error:
            message = f"{self._upstream} cannot be reached: {error or type(error).__name__}"
            return _error(502, "upstream_error", message)
        passing = _Passing(request, body, answer, began_at, lambda over: self._reader.submit(self._read, over))
        streamed = StreamingResponse(passing.relay(), answer.status_code)
        streamed.raw_headers = end_to_end(answer.headers.raw, keeps_length=True)
        return streamed

    def _read(self, passing: "_Passing") -> None:
        try:
            if exchange := passing.exchange():
                self._see(exchange)
        except Exception:  # the top of a thread: what is said goes on, whatever a rule stumbled over
            log.exception("a request could not be linted")


@dataclass(slots=True)
class _Passing:
    request: Request
    body: bytes
    answer: httpx.Response
    began_at: float
    finish: Callable[["_Passing"], object]
    began_unix: float = field(default_factory=time.time)
    first_at: float | None = None
    kept: bytearray = field(default_factory=bytearray)
    is_whole: bool = True

    async def relay(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self.answer.aiter_raw():
                if self.first_at is None and not is_ping(chunk):
                    self.first_at = time.monotonic()
                self._keep(chunk)
                yield chunk
        finally:  # whoever hung up, the prompt has been read
            self.finish(self)
            await self.answer.aclose()

    def exchange(self) -> LintedRequest | None:
        """None for what is no chat, or was refused."""
        path = self.request.url.path
        if self.answer.status_code != 200 or not path.endswith(tuple(API_PATHS)):
            return None
        try:
            body = mapping(msgspec.json.decode(self.body))
        except msgspec.MsgspecError:
            return None
        api = find_api(body, path)
        if api is None:
            return None
        session = read_hints({"session_id": body.get("session_id")}, self.request.headers).session
        ttft_ms = (self.first_at - self.began_at) * 1000 if self.first_at and body.get("stream") else None
        return LintedRequest(
            body=body, api=api, answer=self._read_answer(api), session=session, at=self.began_unix, ttft_ms=ttft_ms
        )

    def _keep(self, chunk: bytes) -> None:
        if len(self.kept) + len(chunk) > _MAX_KEPT:
            self.is_whole = False
        if self.is_whole:
            self.kept += chunk

    def _read_answer(self, api: Api) -> LintedAnswer:
        data = _decode(bytes(self.kept), self.answer.headers.get("content-encoding", "")) if self.is_whole else b""
        if "text/event-stream" in self.answer.headers.get("content-type", ""):
            return parse_stream(data, api)
        try:
            return parse_answer(msgspec.json.decode(data), api)
        except msgspec.MsgspecError:
            return LintedAnswer()


class ProxyServer(ApiServer):
    """Calls `on_ready` with its address once it answers."""

    def __init__(self, proxy: LintProxy, on_ready: Callable[[str], None] = lambda url: None) -> None:
        self._proxy = proxy
        self._on_ready = on_ready
        super().__init__(proxy, grace_s=5, log_level="critical")
        self.config.date_header = False  # the API behind it has one

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        await super().startup(sockets)
        self._on_ready(url_of(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await self._proxy.aclose()


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": kind}}, status)


def _readable(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """An answer is upstream for in encodings that can be read here."""
    if name != b"accept-encoding":
        return name, value
    wanted = [each.strip() for each in value.split(b",")]
    return name, b", ".join(each for each in wanted if each.partition(b";")[0].strip() in _READABLE) or b"identity"


def _decode(data: bytes, encoding: str) -> bytes:
    """Empty for what only other libraries can decompress, and for what becomes too large."""
    if encoding in ("", "identity"):
        return data
    try:
        if encoding not in ("gzip", "deflate"):
            return b""
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
        read = inflater.decompress(data, _MAX_KEPT)
        return b"" if inflater.unconsumed_tail else read
    except zlib.error:
        return b""
