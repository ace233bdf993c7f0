"""A server over HTTP: pooled connections, another try where that does no harm, and one kind of error.

A request is tried again only as long as no event of its answer has come. A key that a server was given is never shown,
not even if the server repeats it. Nothing here knows what is asked.
"""

import asyncio
import contextlib
import email.utils
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from math import isfinite
from typing import Any

import httpx
import msgspec

from hotloop.core.errors import ConfigError, RemoteError
from hotloop.http.client import open_client
from hotloop.http.url import check_url
from hotloop.wire.errors import read_failure
from hotloop.wire.field import Json
from hotloop.wire.sse import EventReader, ServerEvent

_DRAIN_S = 1.0  # for the last bytes behind an answer, without which its connection cannot be used again
_MAX_WORDS = 600  # of a server's own in an error
_MAX_REFUSAL = 1 << 16  # bytes that are read of an answer that is none
_MAX_ANSWER = 64 << 20  # bytes of one that is not streamed
_PASSING = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often to ask, and how long to wait in between where the server does not say."""

    max_tries: int = 3
    first_pause_s: float = 0.5
    max_pause_s: float = 30.0
    """Longest wait, also where the server asks for more: then it is the caller's turn."""

    async def wait(self, num_tries: int, error: RemoteError) -> None:
        """Wait before the next try; raises the error if there is none."""
        pause_s = error.retry_after_s
        if pause_s is None:  # those that were refused together should not come back together
            pause_s = min(self.first_pause_s * 2.0 ** (num_tries - 1), self.max_pause_s) * random.uniform(0.75, 1.25)
        elif pause_s > self.max_pause_s:
            raise error
        if num_tries >= self.max_tries or not error.can_retry:
            raise error
        await asyncio.sleep(pause_s)


class RemoteServer:
    """A server, and the connections to it: some for each event loop it is used on, as they cannot outlive theirs."""

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        secret: str | None = None,
        timeout: httpx.Timeout | None = None,
        retries: Retries | None = None,
    ) -> None:
        self.url = check_url(base_url)
        self._headers = _check_headers(headers or {})
        self._secret = secret
        self._timeout = timeout
        self._retries = retries or Retries()
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    async def events(
        self, path: str, body: Json, headers: Mapping[str, str], is_over: Callable[[], bool]
    ) -> AsyncGenerator[ServerEvent, None]:
        """Ask, and give the events of the answer, until whoever reads them says that it is over."""
        num_tries, has_begun = 0, False
        while True:
            num_tries += 1
            try:
                async with aclosing(self._listen(path, body, headers, is_over)) as events:
                    async for event in events:
                        has_begun = True
                        yield event
                return
            except RemoteError as error:
                if has_begun:
                    raise
                await self._retries.wait(num_tries, error)

    async def ask(self, path: str, body: Json | None = None, headers: Mapping[str, str] | None = None) -> Any:
        """Ask, and have the answer at once: POST with a body, GET without."""
        num_tries = 0
        while True:
            num_tries += 1
            try:
                async with self._respond(path, body, headers or {}) as response:
                    data = await _read(response, _MAX_ANSWER + 1)
                    break
            except RemoteError as error:
                await self._retries.wait(num_tries, error)
        if len(data) > _MAX_ANSWER:
            raise self.fail(f"answered with more than {_MAX_ANSWER >> 20} MiB")
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self.fail(f"returned invalid JSON: {data[:_MAX_REFUSAL].decode(errors='replace')}") from None

    async def close(self) -> None:
        """Close the connections of the running event loop; new ones are made when they are needed."""
        if client := self._clients.pop(asyncio.get_running_loop(), None):
            await client.aclose()

    def fail(self, words: str, **facts: Any) -> RemoteError:
        """An error of this server. Cut last: a key that was cut is one that is not found."""
        shown = words.replace(self._secret, "***") if self._secret else words
        shown = shown if len(shown) <= _MAX_WORDS else shown[:_MAX_WORDS] + "…"
        return RemoteError(" ".join(f"{self.url} {shown}".split()), **facts)

    async def _listen(
        self, path: str, body: Json, headers: Mapping[str, str], is_over: Callable[[], bool]
    ) -> AsyncGenerator[ServerEvent, None]:
        async with self._respond(path, body, headers) as response:
            if "text/event-stream" not in response.headers.get("content-type", ""):
                failure = read_failure(200, await _read(response, _MAX_REFUSAL))
                raise self.fail(f"did not return an event stream: {failure}", status=200)
            reader = EventReader()
            pieces = response.aiter_bytes()
            async for data in pieces:
                for event in reader.push(data):
                    yield event
                    if is_over():
                        await _drain(pieces)
                        return
            for event in reader.finish():
                yield event

    @contextlib.asynccontextmanager
    async def _respond(self, path: str, body: Json | None, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """The response, if it is a good one. Whatever goes wrong meanwhile is a RemoteError."""
        method, sent = "GET" if body is None else "POST", _check_headers(headers)
        try:
            content = None if body is None else msgspec.json.encode(body)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise ConfigError(f"the request cannot be encoded as JSON: {error}") from None
        try:
            async with self._client().stream(method, self.url + path, content=content, headers=sent) as response:
                if response.status_code != 200:
                    raise self._refusal(response, await _read(response, _MAX_REFUSAL))
                yield response
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            can_retry = isinstance(error, _PASSING)
            raise self.fail(f"cannot be reached or broke off: {reason}", can_retry=can_retry) from None

    def _refusal(self, response: httpx.Response, data: bytes) -> RemoteError:
        status = response.status_code
        advice = response.headers.get("x-should-retry", "")
        return self.fail(
            f"answered {status}: {read_failure(status, data)}",
            status=status,
            retry_after_s=_retry_after_s(response.headers),
            can_retry=advice == "true" or (advice != "false" and (status in (408, 409, 429) or status >= 500)),
        )

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients = {each: client for each, client in self._clients.items() if not each.is_closed()}
            self._clients[loop] = client = open_client(self._headers)
            client.timeout = self._timeout or client.timeout
        return self._clients[loop]


async def _read(response: httpx.Response, max_bytes: int) -> bytes:
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


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not (name + value).isascii() or not value.isprintable():
            raise ConfigError(f"the header {name!r} has invalid characters")
    return {"content-type": "application/json", **headers}


def _retry_after_s(headers: httpx.Headers) -> float | None:
    """Seconds, milliseconds in a header of their own, or a date."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(KeyError, ValueError):
            if isfinite(after_s := float(headers[name]) * unit_s):
                return max(after_s, 0.0)
    with contextlib.suppress(KeyError, ValueError, TypeError, OverflowError):
        return max(email.utils.parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time(), 0.0)
    return None
