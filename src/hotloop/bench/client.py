"""One streamed chat completion, seen from the client's side. Knows the wire and nothing of what is asked."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx
import msgspec

from hotloop.core.errors import HotloopError
from hotloop.core.request import Usage

_TIMEOUT = httpx.Timeout(600, connect=10)


class ServerFailed(HotloopError):
    """The server could not be reached, refused, or broke off."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event of the stream brought: text, or at the end the usage."""

    text: str = ""
    usage: Usage | None = None


class ChatClient:
    """An OpenAI-compatible server and the model asked of it. An async context manager; connections are pooled."""

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(headers=headers, timeout=_TIMEOUT, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def find_model(self) -> str:
        """The model asked for, or the first that the server lists."""
        if self.model is None:
            try:
                response = await self._http.get(f"{self.url}/v1/models")
                if response.status_code != 200:
                    raise ServerFailed(_describe(self.url, response.status_code, response.content))
                self.model = msgspec.json.decode(response.content, type=_Models).data[0].id
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise ServerFailed(f"cannot reach {self.url}: {str(error) or type(error).__name__}") from None
            except (msgspec.MsgspecError, IndexError):
                raise ServerFailed(f"{self.url}/v1/models lists no model") from None
        return self.model

    async def stream(
        self, messages: Sequence[Mapping[str, str]], *, session_id: str = "", **options: Any
    ) -> AsyncGenerator[Delta, None]:
        """One chat completion; `options` go into the body as they are. The last delta has the usage."""
        body = {
            "model": await self.find_model(),
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }
        headers = {"X-Session-ID": session_id} if session_id else {}
        num_deltas = 0
        usage: Usage | None = None
        try:
            async with self._http.stream(
                "POST", f"{self.url}/v1/chat/completions", json=body, headers=headers
            ) as response:
                if response.status_code != 200:
                    raise ServerFailed(_describe(self.url, response.status_code, await response.aread()))
                async for line in response.aiter_lines():
                    delta = _parse_line(line)
                    usage = delta.usage or usage
                    if delta.text:
                        num_deltas += 1
                        yield delta
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerFailed(f"{self.url} broke off: {str(error) or type(error).__name__}") from None
        yield Delta(usage=usage or Usage(0, 0, num_deltas))


def _parse_line(line: str) -> Delta:
    if not line.startswith("data:") or line.endswith("[DONE]"):
        return Delta()
    try:
        chunk = msgspec.json.decode(line[5:].strip(), type=_Chunk)
    except msgspec.MsgspecError as error:
        raise ServerFailed(f"not a chat completion chunk: {line[:200]} ({error})") from None
    if chunk.error:
        raise ServerFailed(f"the stream ended in an error: {chunk.error}")
    usage = None
    if chunk.usage:
        details = chunk.usage.prompt_tokens_details
        num_cached = (details.cached_tokens if details else None) or 0
        usage = Usage(chunk.usage.prompt_tokens, num_cached, chunk.usage.completion_tokens)
    text = "".join((choice.delta.content if choice.delta else None) or "" for choice in chunk.choices)
    return Delta(text, usage)


def _describe(url: str, status: int, body: bytes) -> str:
    """OpenAI-shaped errors are quoted by their message, others by their first words."""
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    return f"{url} answered {status}: {message}"
