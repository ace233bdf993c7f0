"""One chat completion, streamed or whole, seen from the client's side. Knows the wire and nothing of what is asked."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
import msgspec

from hotloop.border.client import bearer, broke_off, open_client
from hotloop.core.errors import RemoteError
from hotloop.core.message import ToolCall
from hotloop.core.request import Usage
from hotloop.wire.chat.reader import Choice, Completion, Function, Said
from hotloop.wire.sse import EventReader
from hotloop.wire.usage import read_usage


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What a tool call has gained. The first piece of a call has its id and name."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event of the stream brought: text, pieces of calls, why it ended, or at the very end the usage."""

    text: str = ""
    usage: Usage | None = None
    calls: tuple[CallPiece, ...] = ()
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """All of a completion."""

    text: str
    calls: tuple[ToolCall, ...]
    finish_reason: str
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
        """The model asked for, or the first that the server lists."""
        if self.model is None:
            try:
                response = await self._http.get(f"{self.url}/v1/models")
                if response.status_code != 200:
                    raise RemoteError(describe_refusal(self.url, response.status_code, response.content))
                self.model = msgspec.json.decode(response.content, type=_Models).data[0].id
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise RemoteError(f"cannot reach {self.url}: {str(error) or type(error).__name__}") from None
            except (msgspec.MsgspecError, IndexError):
                raise RemoteError(f"{self.url}/v1/models lists no model") from None
        return self.model

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], *, session_id: str = "", **options: Any
    ) -> AsyncGenerator[Delta, None]:
        """One chat completion; `options` go into the body as they are. The last delta has the usage."""
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        body = {"model": await self.find_model(), "messages": messages, **streaming, **options}
        num_deltas = 0
        usage: Usage | None = None
        try:
            async with self._http.stream(
                "POST", f"{self.url}/v1/chat/completions", json=body, headers=_headers(session_id)
            ) as response:
                if response.status_code != 200:
                    raise RemoteError(describe_refusal(self.url, response.status_code, await response.aread()))
                async for delta in _deltas(response):
                    usage = delta.usage or usage
                    num_deltas += bool(delta.text or delta.calls)
                    if delta.text or delta.calls or delta.finish_reason:
                        yield delta
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise broke_off(self.url, error) from None
        yield Delta(usage=usage or Usage(0, 0, num_deltas))

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        is_streamed: bool = True,
        session_id: str = "",
        **options: Any,
    ) -> ChatAnswer:
        """One chat completion when it is over; `options` go into the body as they are."""
        gathered = Gathered()
        if is_streamed:
            async for delta in self.stream(messages, session_id=session_id, **options):
                gathered.add(delta)
            return gathered.answer()
        body = {"model": await self.find_model(), "messages": messages, **options}
        try:
            url = f"{self.url}/v1/chat/completions"
            response = await self._http.post(url, json=body, headers=_headers(session_id))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise broke_off(self.url, error) from None
        if response.status_code != 200:
            raise RemoteError(describe_refusal(self.url, response.status_code, response.content))
        gathered.add(_parse(response.content))
        return gathered.answer()


@dataclass(slots=True)
class Gathered:
    """An answer coming together. Calls must come one after the other, each beginning with its id and name."""

    texts: list[str] = field(default_factory=list)
    calls: list[CallPiece] = field(default_factory=list)
    arguments: list[list[str]] = field(default_factory=list)
    finish_reason: str = ""
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0))

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.usage = delta.usage or self.usage
        for piece in delta.calls:
            is_new = piece.index == len(self.calls)
            if bool(piece.id and piece.name) != is_new or not len(self.calls) - 1 <= piece.index <= len(self.calls):
                raise RemoteError(f"a tool call came in an order that no client understands: {piece}")
            if is_new:
                self.calls.append(piece)
                self.arguments.append([])
            self.arguments[piece.index].append(piece.arguments)

    def answer(self) -> ChatAnswer:
        pieces = zip(self.calls, self.arguments, strict=True)
        calls = tuple(ToolCall(call.id, call.name, "".join(arguments)) for call, arguments in pieces)
        return ChatAnswer("".join(self.texts), calls, self.finish_reason, self.usage)


def _headers(session_id: str) -> dict[str, str]:
    return {"X-Session-ID": session_id} if session_id else {}


async def _deltas(response: httpx.Response) -> AsyncGenerator[Delta, None]:
    reader = EventReader()
    async for data in response.aiter_bytes():
        for event in reader.push(data):
            if event.data.strip() != b"[DONE]":
                yield _parse(event.data)


def _parse(data: bytes) -> Delta:
    """A chunk, or a whole completion as if it had come in one."""
    try:
        completion = msgspec.json.decode(data, type=Completion)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RemoteError(f"not a chat completion: {data[:200].decode(errors='replace')} ({error})") from None
    if completion.error:
        raise RemoteError(f"the stream ended in an error: {completion.error}")
    usage = _parse_usage(completion.usage)
    if not completion.choices:
        return Delta(usage=usage)
    choice = completion.choices[0]
    message = choice.delta or choice.message or Said()
    return Delta(message.text, usage, tuple(_parse_calls(message, choice)), choice.finish_reason or "")


def _parse_calls(message: Said, choice: Choice) -> Iterator[CallPiece]:
    """A whole answer need not number its calls."""
    for position, call in enumerate(message.tool_calls or ()):
        index = position if choice.message else call.index or 0
        function = call.function or Function()
        yield CallPiece(index, call.id or "", function.name or "", function.text)


def _parse_usage(given: Any) -> Usage | None:
    usage = read_usage(given)
    if usage is None:
        return None
    ours: dict[str, int] = usage.hotloop if isinstance(usage.hotloop, dict) else {}
    return Usage(
        usage.num_prompt,
        usage.num_cached or 0,
        usage.num_output,
        num_forced=ours.get("forced_tokens", 0),
        num_drafted=ours.get("drafted_tokens", 0),
        num_accepted=ours.get("accepted_tokens", 0),
        num_steps=ours.get("steps", 0),
    )


def describe_refusal(url: str, status: int, body: bytes) -> str:
    """OpenAI-shaped errors are quoted by their message, others by their first words."""
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    return f"{url} answered {status}: {message}"
