"""A server over HTTP: pooled connections, another try where that does no harm, and one kind of error.

Asking is tried again only as long as nothing was heard: from the first event on an answer is what it is. A key that a
server was given is never shown, not even if the server repeats it. Nothing here knows what is asked.
"""

import asyncio
import contextlib
import email.utils
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import msgspec

from hotloop.core.errors import ConfigError, RemoteError
from hotloop.wire.sse import EventReader, ServerEvent

TIMEOUT = httpx.Timeout(connect=10, read=600, write=60, pool=None)
"""A model may think for long before its first word; a server that is there takes a connection at once."""

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=60)
_DRAIN_S = 1.0  # for the last bytes behind an answer, without which its connection cannot be used again
_MAX_WORDS = 600  # of a server's own in an error
_MAX_REFUSAL = 1 << 16  # bytes that are read of an answer that is none
_MAX_ANSWER = 64 << 20  # bytes of one that is not streamed
_PASSING = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often to ask, and how long to wait in between where the server does not say."""

    max_tries: int = 3
    first_pause_s: float = 0.5
    max_pause_s: float = 30.0
    """Longest wait, also where the server asks for more: then it is the caller's turn."""

    def pause_s(self, num_tries: int, error: RemoteError) -> float | None:
        """How long to wait before the next try; None if there is none."""
        if num_tries >= self.max_tries or not error.can_retry:
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self.max_pause_s else None
        # Those that were refused together should not come back together.
        return min(self.first_pause_s * 2.0 ** (num_tries - 1), self.max_pause_s) * random.uniform(0.75, 1.25)


class RemoteServer:
    """A server, and the connections to it: some for each event loop it is used on, as they cannot outlive theirs."""

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        secret: str | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        retries: Retries | None = None,
    ) -> None:
        self.url = check_url(base_url)
        self._headers = _check_headers(headers or {})
        self._secret = secret
        self._timeout = timeout
        self._retries = retries or Retries()
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    def __repr__(self) -> str:
        return f"RemoteServer({self.url!r})"

    async def events(
        self, path: str, body: Json, headers: Mapping[str, str], is_last: Callable[[ServerEvent], bool]
    ) -> AsyncGenerator[ServerEvent, None]:
        """Ask, and hear the events of the answer, up to and with the one that is the last."""
        num_tries = 0
        while True:
            num_tries += 1
            has_begun = False
            try:
                async with aclosing(self._listen(path, body, headers, is_last)) as events:
                    async for event in events:
                        has_begun = True
                        yield event
                return
            except RemoteError as error:
                pause_s = None if has_begun else self._retries.pause_s(num_tries, error)
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    async def post(self, path: str, body: Json, headers: Mapping[str, str]) -> Any:
        """Ask, and have the answer at once."""
        return await self._persist(lambda: self._ask("POST", path, body, headers))

    async def get(self, path: str) -> Any:
        return await self._persist(lambda: self._ask("GET", path, None, {}))

    async def close(self) -> None:
        """Close the connections of the running event loop; new ones are made when they are needed."""
        self._forget_closed_loops()
        if client := self._clients.pop(asyncio.get_running_loop(), None):
            await client.aclose()

    async def _persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        num_tries = 0
        while True:
            num_tries += 1
            try:
                return await ask()
            except RemoteError as error:
                pause_s = self._retries.pause_s(num_tries, error)
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    async def _ask(self, method: str, path: str, body: Json | None, headers: Mapping[str, str]) -> Any:
        async with self._respond(method, path, body, headers) as response:
            data = await _read(response, _MAX_ANSWER + 1)
            if len(data) > _MAX_ANSWER:
                raise self._error(f"answered with more than {_MAX_ANSWER >> 20} MiB")
            try:
                return msgspec.json.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise self._error(f"answered what is not JSON: {_as_text(data)}") from None

    async def _listen(
        self, path: str, body: Json, headers: Mapping[str, str], is_last: Callable[[ServerEvent], bool]
    ) -> AsyncGenerator[ServerEvent, None]:
        async with self._respond("POST", path, body, headers) as response:
            if "text/event-stream" not in response.headers.get("content-type", ""):
                data = await _read(response, _MAX_REFUSAL)
                raise self._error(f"did not answer with a stream of events: {_message(data)}", status=200)
            reader = EventReader()
            pieces = response.aiter_bytes()
            async for data in pieces:
                for event in reader.push(data):
                    yield event
                    if is_last(event):
                        await _drain(pieces)
                        return
            for event in reader.finish():
                yield event

    @contextlib.asynccontextmanager
    async def _respond(
        self, method: str, path: str, body: Json | None, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """The response, if it is a good one. Whatever goes wrong meanwhile is a RemoteError."""
        content = None if body is None else _encode(body)
        try:
            request = self._client().build_request(
                method, self.url + path, content=content, headers=_check_headers(headers)
            )
            response = await self._client().send(request, stream=True)
            try:
                if response.status_code != 200:
                    raise self._refusal(response, await _read(response, _MAX_REFUSAL))
                yield response
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            can_retry = isinstance(error, _PASSING)
            raise self._error(f"cannot be reached or broke off: {reason}", can_retry=can_retry) from None

    def _refusal(self, response: httpx.Response, data: bytes) -> RemoteError:
        status = response.status_code
        advice = response.headers.get("x-should-retry", "")
        can_retry = advice == "true" or (advice != "false" and (status in (408, 409, 429) or status >= 500))
        return self._error(
            f"answered {status}: {_message(data) or response.reason_phrase}",
            status=status,
            retry_after_s=_retry_after_s(response.headers),
            can_retry=can_retry,
        )

    def _error(self, words: str, **facts: Any) -> RemoteError:
        """Cut last: a key that was cut is one that is not found."""
        shown = words.replace(self._secret, "***") if self._secret else words
        shown = shown if len(shown) <= _MAX_WORDS else shown[:_MAX_WORDS] + "…"
        return RemoteError(" ".join(f"{self.url} {shown}".split()), **facts)

    def fail(self, error: Any) -> RemoteError:
        """What a server says went wrong in the middle of an answer."""
        return self._error(f"broke off: {_words(error)}")

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._forget_closed_loops()
            self._clients[loop] = httpx.AsyncClient(headers=self._headers, timeout=self._timeout, limits=_LIMITS)
        return self._clients[loop]

    def _forget_closed_loops(self) -> None:
        for loop in [loop for loop in list(self._clients) if loop.is_closed()]:
            self._clients.pop(loop, None)


async def _read(response: httpx.Response, max_bytes: int) -> bytes:
    """The body, or as much of it as may be kept: a server that never ends is not heard out."""
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece[: max_bytes - len(data)]
        if len(data) == max_bytes:
            break
    return bytes(data)


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass


def check_url(base_url: str) -> str:
    """The address as it may be shown: what is secret belongs into a header."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"not the address of a server: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"not the address of a server: {base_url!r}; it begins with http:// or https://")
    if url.userinfo:
        raise ConfigError("the address of a server has a password in it, which would be shown; give it as the API key")
    return base_url.rstrip("/")


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not (name + value).isascii() or not value.isprintable():
            raise ConfigError(f"the header {name!r} has characters that cannot be sent")
    return {"content-type": "application/json", **headers}


def _encode(body: Json) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"what is asked cannot be written as JSON: {error}") from None


def _message(data: bytes) -> str:
    """What a server's error says, in whatever shape."""
    try:
        return _words(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _as_text(data)


def _words(error: Any) -> str:
    """The words in {"error": {"message": ...}} and its kin; failing that, all of it."""
    if isinstance(error, Mapping):
        for name in ("error", "message", "detail"):
            if error.get(name):
                return _words(error[name])
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _retry_after_s(headers: httpx.Headers) -> float | None:
    """Seconds, milliseconds in a header of their own, or a date."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(KeyError, ValueError):
            return max(float(headers[name]) * unit_s, 0.0)
    with contextlib.suppress(KeyError, ValueError, TypeError, OverflowError):
        return max(email.utils.parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time(), 0.0)
    return None
