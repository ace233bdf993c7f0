"""A deployment as its clients meet it: requests out, answers timed read by read. The one place here that knows HTTP.

Speaks OpenAI's chat completions, which every kind of deployment has, and sends no field that only some of them take.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self, TypeVar

import httpx
import msgspec

from hotloop.bench.client import ChatClient, ServerFailed
from hotloop.bench.doctor.facts import Heard
from hotloop.bench.doctor.hearing import Hearing

Json = dict[str, Any]
ChatMessages = Sequence[Mapping[str, Any]]

_TIMEOUT = httpx.Timeout(180, connect=10)
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
"""The client never closes a connection by itself: if one is closed, it was the deployment."""

Page = TypeVar("Page")


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class Deployment:
    """An address, and a model there. An async context manager; connections are pooled."""

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._api_key = api_key
        self._limit = "max_tokens"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(headers=headers, timeout=_TIMEOUT, limits=_LIMITS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def newcomer(self, *, has_key: bool = True) -> "Deployment":
        """The same for a client with connections of its own, and with or without the key."""
        other = Deployment(self.url, model=self._model, api_key=self._api_key if has_key else None)
        other._limit = self._limit
        return other

    async def find_model(self) -> str:
        """The model asked for, or the first that is listed."""
        if self._model is None:
            async with ChatClient(self.url, api_key=self._api_key) as client:
                self._model = await client.find_model()
        return self._model

    async def find_context(self) -> int | None:
        """How many tokens a request may have, where the list of models says so."""
        listed = _parse(await self._request("GET", "/v1/models"), _Models)
        models = listed.data if listed else []
        return next((each.max_model_len for each in models if each.id == self._model), None)

    async def ask(self, messages: ChatMessages, *, max_tokens: int, is_streamed: bool = True, **options: Any) -> Heard:
        """One answer to its end."""
        hearing = Hearing(time.perf_counter(), is_streamed=is_streamed)
        async with self.open(messages, max_tokens=max_tokens, is_streamed=is_streamed, **options) as response:
            hearing.client, hearing.server = _ends(response)
            async with aclosing(_reads(response)) as reads:
                async for data in reads:
                    hearing.add(data, time.perf_counter())
        return hearing.end(time.perf_counter())

    @asynccontextmanager
    async def open(
        self, messages: ChatMessages, *, max_tokens: int, is_streamed: bool = True, **options: Any
    ) -> AsyncIterator[httpx.Response]:
        """An answer that is about to come, to be read in the context."""
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}
        body = {"model": await self.find_model(), "messages": messages, **streaming, **options}
        try:
            response = await self._send(body, max_tokens)
            try:
                yield response
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerFailed(f"{self.url} broke off: {str(error) or type(error).__name__}") from None

    @asynccontextmanager
    async def begin(self, messages: ChatMessages, *, max_tokens: int) -> AsyncIterator[None]:
        """An answer of which something has come. Leaving the context hangs up."""
        async with self.open(messages, max_tokens=max_tokens) as response, aclosing(_reads(response)) as reads:
            await anext(reads, None)
            yield

    async def get_status(self, messages: ChatMessages) -> int | None:
        """With what a short request is answered; None if it is not."""
        body = {"model": await self.find_model(), "messages": messages, self._limit: 1}
        response = await self._request("POST", "/v1/chat/completions", json=body)
        return response.status_code if response is not None else None

    async def post(self, path: str, body: Json, page: type[Page]) -> Page | None:
        """None where there is no such thing, it does not take this, or its answer is another."""
        return _parse(await self._request("POST", path, json=body), page)

    async def get_text(self, path: str) -> str:
        """Nothing where there is no such thing."""
        response = await self._request("GET", path)
        return response.text if response is not None and response.status_code == 200 else ""

    async def _send(self, body: Json, max_tokens: int) -> httpx.Response:
        """An answer that is one. Some models have another name for how long it may be, and say so."""
        response = await self._post({**body, self._limit: max_tokens})
        if response.status_code == 400 and b"max_completion_tokens" in response.content:
            self._limit = "max_completion_tokens"
            response = await self._post({**body, self._limit: max_tokens})
        if response.status_code != 200:
            raise ServerFailed(f"{self.url} answered {response.status_code}: {' '.join(response.text.split())[:200]}")
        return response

    async def _post(self, body: Json) -> httpx.Response:
        request = self._http.build_request("POST", f"{self.url}/v1/chat/completions", json=body)
        response = await self._http.send(request, stream=True)
        if response.status_code != 200:
            await response.aread()
            await response.aclose()
        return response

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """None where nobody answers."""
        try:
            return await self._http.request(method, f"{self.url}{path}", **options)
        except (httpx.HTTPError, httpx.InvalidURL):
            return None


async def _reads(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    async for data in response.aiter_bytes():
        yield data


def _ends(response: httpx.Response) -> tuple[str, str]:
    """The client's end of the connection, which no other has, and the address of the server's."""
    stream = response.extensions["network_stream"]
    client, server = (stream.get_extra_info(name) or ("", "") for name in ("client_addr", "server_addr"))
    return f"{client[0]}:{client[1]}", str(server[0])


def _parse(response: httpx.Response | None, page: type[Page]) -> Page | None:
    if response is None or response.status_code != 200:
        return None
    try:
        return msgspec.json.decode(response.content, type=page)
    except msgspec.MsgspecError:
        return None
