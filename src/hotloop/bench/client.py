"""One chat completion, streamed or whole, seen from the client's side. Knows HTTP and nothing of what is asked."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Self

import httpx

from hotloop.core.errors import RemoteError
from hotloop.core.message import ToolCall
from hotloop.core.request import Usage
from hotloop.core.stream import CallDelta, TextDelta
from hotloop.http.client import bearer, broke_off, open_client
from hotloop.wire.chat.reader import ChatReader
from hotloop.wire.errors import read_failure
from hotloop.wire.event import Ended, EndReason, Event, gather
from hotloop.wire.sse import EventReader


class Delta(NamedTuple):
    """What an answer has gained: text or, at the very end, the usage."""

    text: str = ""
    usage: Usage | None = None


class ChatAnswer(NamedTuple):
    text: str
    calls: tuple[ToolCall, ...]
    end: EndReason
    usage: Usage


class ChatClient:
    """An OpenAI-compatible server and the model asked of it. An async context manager; connections are pooled."""

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model
        self._http = open_client(bearer(api_key))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def find_model(self) -> str:
        if self.model is None:
            try:
                response = await self._http.get(f"{self.url}/v1/models")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise RemoteError(f"cannot reach {self.url}: {str(error) or type(error).__name__}") from None
            if response.status_code != 200:
                raise refused(self.url, response.status_code, response.content)
            try:
                self.model = str(response.json()["data"][0]["id"])
            except (ValueError, LookupError, TypeError):
                raise RemoteError(f"{self.url}/v1/models lists no model") from None
        return self.model

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], *, session_id: str = "", **options: Any
    ) -> AsyncGenerator[Delta, None]:
        """One chat completion; `options` go into the body as they are. The last delta has the usage."""
        num_pieces = 0
        async with aclosing(self._events(messages, session_id, options, is_streamed=True)) as events:
            async for event in events:
                num_pieces += isinstance(event, TextDelta | CallDelta)
                if isinstance(event, TextDelta):
                    yield Delta(event.text)
                elif isinstance(event, Ended):
                    yield Delta(usage=_usage_of(event, num_pieces))

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        is_streamed: bool = True,
        session_id: str = "",
        **options: Any,
    ) -> ChatAnswer:
        """One chat completion when it is over; `options` go into the body as they are."""
        answer = gather([event async for event in self._events(messages, session_id, options, is_streamed=is_streamed)])
        calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in answer.calls)
        return ChatAnswer(answer.text, calls, answer.ended.reason, _usage_of(answer.ended))

    async def _events(
        self, messages: Sequence[Mapping[str, Any]], session_id: str, options: Mapping[str, Any], *, is_streamed: bool
    ) -> AsyncGenerator[Event, None]:
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}
        body = {"model": await self.find_model(), "messages": messages, **streaming, **options}
        headers = {"X-Session-ID": session_id} if session_id else {}
        url, reader, events = f"{self.url}/v1/chat/completions", ChatReader(), EventReader()
        try:
            async with self._http.stream("POST", url, json=body, headers=headers) as response:
                if response.status_code != 200:
                    raise refused(self.url, response.status_code, await response.aread())
                if not is_streamed:
                    for event in reader.whole(await response.aread()):
                        yield event
                    return
                async for data in response.aiter_bytes():
                    for sent in events.push(data):
                        for event in reader.push(sent):
                            yield event
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise broke_off(self.url, error) from None
        for event in reader.finish():
            yield event


def _usage_of(ended: Ended, num_pieces: int = 0) -> Usage:
    """Where it is not told, a piece is taken for a token."""
    usage = ended.usage
    ours: dict[str, int] = usage.hotloop if isinstance(usage.hotloop, dict) else {}
    return Usage(
        usage.num_prompt,
        usage.num_cached or 0,
        usage.num_output or num_pieces,
        num_forced=ours.get("forced_tokens", 0),
        num_drafted=ours.get("drafted_tokens", 0),
        num_accepted=ours.get("accepted_tokens", 0),
        num_steps=ours.get("steps", 0),
    )


def refused(url: str, status: int, body: bytes) -> RemoteError:
    return RemoteError(f"{url} answered {status}: {read_failure(status, body)}")
