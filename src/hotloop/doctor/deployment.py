"""A deployment as its clients meet it: requests out, answers timed read by read. The one place here that knows HTTP.

Speaks OpenAI's chat completions, and Anthropic's messages to whoever has nothing else; sends no field that only some
deployments take. However it answers, a read ends: whole pages and answers are bounded in size, pages in time too. The
key is in nothing that is said.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Self

import httpx
import msgspec

from hotloop.core.errors import HotloopError, RemoteError
from hotloop.core.structs import compiled
from hotloop.doctor.facts import TimedAnswer
from hotloop.doctor.timer import (
    AnswerTimer,
    Page,
    parse_page,
    read_bounded,
    read_ends,
    read_retry_after_s,
    read_whole,
    read_words,
)
from hotloop.http.client import bearer, broke_off, open_client
from hotloop.http.url import check_url
from hotloop.router.kinds import KINDS
from hotloop.wire.field import Json
from hotloop.wire.formats import FORMATS
from hotloop.wire.part import Api
from hotloop.wire.policy import Notes, RenderTarget

ChatMessages = Sequence[Mapping[str, Any]]

_PAGE_S = 5.0
_MAX_REFUSALS = 5
_MAX_RETRY_AFTER_S = 15.0


class ErrorAnswer(RemoteError):
    """It answered with an error."""


class Refused(ErrorAnswer):
    """It has too much to do, and said to come again later."""

    retry_after_s: float


@compiled
class Card(msgspec.Struct):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


@compiled
class _Models(msgspec.Struct):
    data: list[Card]


class Deployment:
    """An address, and a model there. An async context manager; connections are pooled."""

    def __init__(
        self, url: str, *, model: str | None = None, api_key: str | None = None, api: Api = "chat", limit: str = ""
    ) -> None:
        self.url = check_url(url).removesuffix("/v1")
        self.api = api
        self.headers: Mapping[str, str] = {}
        """Of the latest answer."""
        self._stream: Any = None
        self._model = model
        self._api_key = api_key
        self._limit = limit or "max_tokens"
        # It never closes a connection by itself: if one is closed, it was the deployment.
        self._http = open_client(read_s=None, keepalive_s=None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    @property
    def is_connected(self) -> bool:
        """Whether the latest answer's connection is still open. Nothing can be read from an idle one but its end."""
        return self._stream is not None and not self._stream.get_extra_info("is_readable")

    def newcomer(self, *, has_key: bool = True) -> "Deployment":
        """The same for a client with connections of its own, and with or without the key."""
        api_key = self._api_key if has_key else None
        return Deployment(self.url, model=self._model, api_key=api_key, api=self.api, limit=self._limit)

    async def find_model(self) -> str:
        if self._model is None:
            cards = await self._list_models()
            if not cards:
                raise RemoteError(f"{self.url}/v1/models lists no model: name one with `--model`")
            self._model = cards[0].id
        return self._model

    async def find_card(self) -> Card:
        model = await self.find_model()
        with suppress(RemoteError):
            return next((card for card in await self._list_models() if card.id == model), Card(model))
        return Card(model)

    async def ask(
        self, messages: ChatMessages, *, max_tokens: int, is_streamed: bool = True, **options: Any
    ) -> TimedAnswer:
        async with self.open(messages, max_tokens=max_tokens, is_streamed=is_streamed, **options) as (timer, reads):
            async with aclosing(reads):
                async for data in reads:
                    timer.add(data, time.perf_counter())
                    if timer.num_pieces > 16 * max_tokens + 256:
                        raise RemoteError(
                            f"{self.url} does not end its answer: {timer.num_pieces} pieces for {max_tokens} tokens"
                        )
            return timer.end(time.perf_counter())

    @asynccontextmanager
    async def open(
        self, messages: ChatMessages, *, max_tokens: int, is_streamed: bool = True, **options: Any
    ) -> AsyncIterator[tuple[AnswerTimer, AsyncGenerator[bytes, None]]]:
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}
        body = {"model": await self.find_model(), "messages": messages, **streaming, **options}
        try:
            timer, response = await self._send_patiently(body, max_tokens)
            try:
                timer.client, timer.server = read_ends(response)
                yield timer, read_bounded(response)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RemoteError(self._hide(str(broke_off(self.url, error)))) from None
        except ErrorAnswer:
            raise
        except HotloopError as error:
            raise RemoteError(self._hide(str(error))) from None

    @asynccontextmanager
    async def begin(self, messages: ChatMessages, *, max_tokens: int) -> AsyncIterator[None]:
        """An answer of which something has come. Leaving the context hangs up."""
        async with self.open(messages, max_tokens=max_tokens) as (_, reads), aclosing(reads):
            await anext(reads, None)
            yield

    async def get_status(self, messages: ChatMessages) -> int | None:
        """With what a short request is answered; None if it is not."""
        try:
            async with self.open(messages, max_tokens=1, is_streamed=False):
                return 200
        except ErrorAnswer as error:
            return error.status
        except RemoteError:
            return None

    async def get(self, path: str, page: type[Page], body: Json | None = None) -> Page | None:
        """None where there is no such thing, it does not take this, or its answer is another. A body is posted."""
        return parse_page(*await self._page("POST" if body else "GET", path, json=body), page)

    async def get_text(self, path: str) -> str:
        """Nothing where there is no such thing."""
        status, body = await self._page("GET", path)
        return body.decode(errors="replace") if status == 200 else ""

    async def _list_models(self) -> list[Card]:
        try:
            async with asyncio.timeout(2 * _PAGE_S):
                status, body, location = await self._fetch("GET", "/v1/models")
        except TimeoutError:
            raise RemoteError(f"{self.url}/v1/models timed out after {2 * _PAGE_S:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RemoteError(f"cannot reach {self.url}: {str(error) or type(error).__name__}") from None
        if status != 200:
            raise ErrorAnswer(self._quote(status, body, location), status=status)
        models = parse_page(status, body, _Models)
        if models is None:
            raise RemoteError(self._hide(f"{self.url}/v1/models is not a list of models: {read_words(status, body)}"))
        return models.data

    async def _send_patiently(self, body: Json, max_tokens: int) -> tuple[AnswerTimer, httpx.Response]:
        """Whoever is told to come again later does; the clock starts with the request that is answered."""
        for num_refused in range(_MAX_REFUSALS + 1):
            timer = AnswerTimer(time.perf_counter(), self.api, num_refused=num_refused)
            try:
                return timer, await self._send(body, max_tokens)
            except Refused as refusal:
                if num_refused == _MAX_REFUSALS or refusal.retry_after_s > _MAX_RETRY_AFTER_S:
                    raise
                await asyncio.sleep(refusal.retry_after_s)
        raise AssertionError("the last refusal was raised")

    async def _send(self, body: Json, max_tokens: int) -> httpx.Response:
        """An answer that is one. Some models have another name for how long it may be, and say so."""
        try:
            return await self._post({**body, self._limit: max_tokens})
        except ErrorAnswer as error:
            if error.status != 400 or "max_completion_tokens" not in str(error) or self._limit != "max_tokens":
                raise
        self._limit = "max_completion_tokens"
        return await self._post({**body, self._limit: max_tokens})

    async def _post(self, body: Json) -> httpx.Response:
        spoken = FORMATS[self.api]
        if self.api == "messages":
            marked = {**body, "messages": _mark_last(body["messages"])}
            body = spoken.render(FORMATS["chat"].parse(marked, Notes()), RenderTarget())
        request = self._http.build_request("POST", f"{self.url}{spoken.path}", json=body, headers=self._auth())
        response = await self._http.send(request, stream=True)
        self.headers = response.headers
        self._stream = response.extensions["network_stream"]
        if response.status_code != 200:
            raise await self._failed(response)
        return response

    async def _failed(self, response: httpx.Response) -> ErrorAnswer:
        status, headers = response.status_code, response.headers
        said = self._quote(status, await read_whole(response), headers.get("location", ""))
        await response.aclose()
        if status == 429 or (status == 503 and "retry-after" in headers):
            retry_after_s = read_retry_after_s(headers.get("retry-after", ""))
            return Refused(said, status=status, retry_after_s=retry_after_s)
        return ErrorAnswer(said, status=status)

    async def _page(self, method: str, path: str, **options: Any) -> tuple[int, bytes]:
        """The status is 0 where nobody answers in time."""
        try:
            async with asyncio.timeout(_PAGE_S):
                return (await self._fetch(method, path, **options))[:2]
        except (httpx.HTTPError, httpx.InvalidURL, RemoteError, TimeoutError):
            return 0, b""

    async def _fetch(self, method: str, path: str, **options: Any) -> tuple[int, bytes, str]:
        """Status, body, and where it redirects to."""
        async with self._http.stream(method, f"{self.url}{path}", headers=self._auth(), **options) as response:
            return response.status_code, await read_whole(response), response.headers.get("location", "")

    def _auth(self) -> dict[str, str]:
        kind = KINDS["anthropic" if self.api == "messages" else "openai"]
        fixed = {name.decode(): value.decode() for name, value in kind.fixed_headers}
        if not self._api_key:
            return fixed
        return fixed | ({"x-api-key": self._api_key} if kind.auth == "x-api-key" else bearer(self._api_key))

    def _quote(self, status: int, body: bytes, location: str = "") -> str:
        """An answer that is an error, in a line."""
        said = f"it redirects to {location}, so give that address" if location else read_words(status, body)
        hint = " (give a key with `--api-key`)" if status == 401 and not self._api_key else ""
        return self._hide(f"{self.url} answered {status}: {said}{hint}")

    def _hide(self, said: str) -> str:
        """What is said may be quoted from the deployment, and some quote the key."""
        return said.replace(self._api_key, "***") if self._api_key else said


def _mark_last(messages: ChatMessages) -> list[Mapping[str, Any]]:
    """Anthropic caches what is marked, up to the mark."""
    *others, last = messages
    if not isinstance(last["content"], str):
        return list(messages)
    block = {"type": "text", "text": last["content"], "cache_control": {"type": "ephemeral"}}
    return [*others, {**last, "content": [block]}]
