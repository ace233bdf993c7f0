"""Between any client and any API: bodies pass byte for byte, and what goes by is linted behind their back.

Nothing that goes wrong here is the client's trouble: a body that cannot be read is passed on all the same. Headers are
passed on but for those of the connection itself, and for encodings that could not be read here. Whoever hangs up is
hung up on; an answer that breaks off upstream breaks off here.
"""

import asyncio
import logging
import socket
import time
import zlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import httpx
import msgspec
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hotloop.border.client import open_client
from hotloop.border.headers import end_to_end
from hotloop.border.listen import url_of
from hotloop.border.url import check_url
from hotloop.core.session import name_session
from hotloop.lint.answer import Answer, parse_answer, parse_stream
from hotloop.lint.part import mapping
from hotloop.lint.requests import LintedRequest, find_api
from hotloop.wire.part import Api

log = logging.getLogger("hotloop.lint")

_MAX_KEPT = 32 << 20  # bytes of an answer; a longer one is passed on and not read
_READABLE = (b"gzip", b"deflate", b"identity")
_ENDINGS = ("/chat/completions", "/messages", "/responses")


class LintProxy:
    """An ASGI app. `see` is given every exchange, on a thread of its own, in the order in which they ended."""

    def __init__(self, upstream: str, see: Callable[[LintedRequest], None]) -> None:
        """Raises ConfigError where the address is none."""
        self._upstream = check_url(upstream).removesuffix("/v1")
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
            response = _refuse_upgrade() if "upgrade" in request.headers else await self._pass_on(request)
            await response(scope, receive, send)
        except ClientDisconnect:
            return
        except httpx.HTTPError as error:  # the answer is left without an end, and its connection is closed
            log.warning("%s broke off: %s", self._upstream, error or type(error).__name__)

    async def aclose(self) -> None:
        """All that went by has been seen when this returns."""
        await self._http.aclose()
        await asyncio.to_thread(self._reader.shutdown)

    async def _pass_on(self, request: Request) -> Response:
        body = await request.body()
        url = self._upstream + request.scope["raw_path"].decode("latin-1")
        url += f"?{request.url.query}" if request.url.query else ""
        passed = end_to_end(request.headers.raw, keeps_length=True)
        headers = [_readable(*header) for header in passed if header[0] != b"host"]
        asked = self._http.build_request(request.method, url, headers=headers, content=body or None)
        began_at = time.monotonic()
        try:
            answer = await self._http.send(asked, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"{self._upstream} cannot be reached: {error or type(error).__name__}"
            return JSONResponse({"error": {"message": message, "type": "upstream_error"}}, 502)
        passing = _Passing(request, body, answer, began_at, self._finish)
        streamed = StreamingResponse(passing.relay(), answer.status_code)
        streamed.raw_headers = end_to_end(answer.headers.raw, keeps_length=True)
        return streamed

    def _finish(self, passing: "_Passing") -> None:
        self._reader.submit(self._read, passing)

    def _read(self, passing: "_Passing") -> None:
        try:
            if exchange := passing.exchange():
                self._see(exchange)
        except Exception:  # the top of a thread: what is said goes on, whatever a rule stumbled over
            log.exception("an exchange could not be linted")


class _Passing:
    """One exchange on its way through."""

    def __init__(
        self,
        request: Request,
        body: bytes,
        answer: httpx.Response,
        began_at: float,
        finish: Callable[["_Passing"], None],
    ) -> None:
        self._request = request
        self._body = body
        self._answer = answer
        self._began_at = began_at
        self._began_unix = time.time()
        self._finish = finish
        self._first_at: float | None = None
        self._kept = bytearray()
        self._is_whole = True

    async def relay(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer.aiter_raw():
                self._first_at = self._first_at or time.monotonic()
                self._keep(chunk)
                yield chunk
        finally:  # whoever hung up, the prompt has been read
            self._finish(self)
            await self._answer.aclose()

    def exchange(self) -> LintedRequest | None:
        """None for what is no chat, or was refused."""
        path = self._request.url.path
        if self._answer.status_code != 200 or not path.endswith(_ENDINGS):
            return None
        try:
            body = mapping(msgspec.json.decode(self._body))
        except msgspec.MsgspecError:
            return None
        api = find_api(body, path)
        if api is None:
            return None
        session = name_session(body.get("session_id"), self._request.headers, None, None)
        ttft_ms = (self._first_at - self._began_at) * 1000 if self._first_at and body.get("stream") else None
        return LintedRequest(
            body=body, api=api, answer=self._read_answer(api), session=session, at=self._began_unix, ttft_ms=ttft_ms
        )

    def _keep(self, chunk: bytes) -> None:
        if len(self._kept) + len(chunk) > _MAX_KEPT:
            self._is_whole = False
        if self._is_whole:
            self._kept += chunk

    def _read_answer(self, api: Api) -> Answer:
        data = _decode(bytes(self._kept), self._answer.headers.get("content-encoding", "")) if self._is_whole else b""
        if "text/event-stream" in self._answer.headers.get("content-type", ""):
            return parse_stream(data, api)
        try:
            return parse_answer(msgspec.json.decode(data), api)
        except msgspec.MsgspecError:
            return Answer()


class ProxyServer(uvicorn.Server):
    """Uvicorn, with a proxy; says where it is once it answers."""

    def __init__(self, proxy: LintProxy, on_ready: Callable[[str], None] = lambda url: None) -> None:
        self._proxy = proxy
        self._on_ready = on_ready
        super().__init__(
            uvicorn.Config(
                proxy,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                timeout_keep_alive=75,  # as long as tools take, as with the servers
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=5,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        await super().startup(sockets)
        self._on_ready(url_of(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await self._proxy.aclose()


def _refuse_upgrade() -> Response:
    message = "only plain HTTP is passed on and linted; leave the proxy out for websockets and the like"
    return JSONResponse({"error": {"message": message, "type": "unsupported"}}, 501)


def _readable(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """An answer is asked for in encodings that can be read here."""
    if name != b"accept-encoding":
        return name, value
    wanted = [each.strip() for each in value.split(b",")]
    return name, b", ".join(each for each in wanted if each.partition(b";")[0].strip() in _READABLE) or b"identity"


def _decode(data: bytes, encoding: str) -> bytes:
    """What compresses otherwise than every Python can undo is not read."""
    if encoding in ("", "identity"):
        return data
    try:
        return zlib.decompress(data, zlib.MAX_WBITS | 32) if encoding in ("gzip", "deflate") else b""
    except zlib.error:
        return b""
