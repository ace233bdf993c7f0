"""A model behind an API over HTTP, whichever it is: what is asked of it as a request of the wire."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar

import httpx

from hotloop.agent.model import Ask
from hotloop.agent.wire.http import RemoteServer, Retries
from hotloop.core.errors import ConfigError, RemoteError
from hotloop.core.message import Attachment, Message, Tool
from hotloop.trace.span import TRACEPARENT, render_traceparent
from hotloop.wire.event import Begun, Ended, Event
from hotloop.wire.field import Json
from hotloop.wire.hints import PARENT_HEADER, PRIORITY_HEADER, SESSION_HEADER, TASK_HEADER
from hotloop.wire.models import read_window
from hotloop.wire.part import Call, File, Image, Text, ToolResult, Turn
from hotloop.wire.reader import Reader
from hotloop.wire.request import ApiRequest, ApiTool, Cache, Choice, ChoiceMode, OutputShape

log = logging.getLogger(__name__)

_MAX_CACHE_KEY_CHARS = 64
_FAILED = "Error: "  # how a run words a call that failed
_MAX_LIST_S = 5.0  # a result waits for it


class ServedModel(ABC):
    """Without a `model` it is the first that the server lists.

    `max_tokens` is for asks that do not say. `is_plain` is for servers that refuse fields they do not know: it leaves
    out all but the oldest.
    """

    path: ClassVar[str]
    models_path: ClassVar[str] = "/models"
    suffix: ClassVar[str] = ""
    """Of a base URL that has too much."""
    quiet: ClassVar[Json] = {}
    """What has a prompt prefilled, and nothing answered."""

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        max_tokens: int | None = None,
        is_plain: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout | None = None,
        retries: Retries | None = None,
    ) -> None:
        own = {**self._key_headers(api_key), **(headers or {})}
        url = base_url.rstrip("/").removesuffix(self.suffix)
        self._server = RemoteServer(url, headers=own, secret=api_key, timeout=timeout, retries=retries)
        self._model = model
        self._max_tokens = max_tokens
        self._is_plain = is_plain
        self._is_hotloop = False
        self._listed: list[Any] | None = None
        """The models at this server, once it was asked for them."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._server.url!r}, {self._model!r})"

    @property
    def name(self) -> str:
        return self._model or self._server.url

    @property
    def can_prefill_ahead(self) -> bool:
        """Only hotloop prefills without answering; it shows itself in the usage of its answers."""
        return self._is_hotloop

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        ask = replace(ask, max_tokens=ask.max_tokens or self._max_tokens)
        body = self._render(ask, await self.find_model(), is_stream=True)
        reader = self._reader(ask)
        sent = self._server.events(self.path, body, session_headers(ask), lambda: reader.is_over)
        async with aclosing(sent) as events:
            async for event in events:
                for each in self.hear(reader.push(event)):
                    yield each
        for each in self.hear(reader.finish()):
            yield each

    def hear(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events of an answer. Raises RemoteError, in this server's name, if they tell of a failure."""
        try:
            for event in events:
                if isinstance(event, Begun | Ended):
                    self._is_hotloop |= event.usage.hotloop is not None
                if isinstance(event, Ended) and event.reason == "refusal":
                    raise RemoteError("the model refused to answer, or a content filter stopped it")
                yield event
        except RemoteError as error:
            raise self._server.fail(f"broke off: {error}", can_retry=error.can_retry) from None

    async def prefill(self, ask: Ask) -> None:
        body = self._render(ask, await self.find_model(), is_stream=False)
        await self._server.ask(self.path, body | self.quiet, session_headers(ask))

    async def find_model(self) -> str:
        if self._model is None:
            match await self._list_models():
                case [{"id": str(name)}, *_]:
                    self._model = name
                case _:
                    raise RemoteError(f"{self._server.url}{self.models_path} lists no model: name one")
        return self._model

    async def find_window(self) -> int | None:
        """As the server's list of models tells. A server that has no list is asked once."""
        name = await self.find_model()
        if self._listed is None:
            try:
                async with asyncio.timeout(_MAX_LIST_S):
                    await self._list_models()
            except (RemoteError, TimeoutError) as error:
                log.info("the model's context window is unknown: %s", str(error) or "no answer in time")
                self._listed = []
        listed = [each for each in self._listed or () if isinstance(each, dict)]
        # A name that is not listed, such as a router's `auto`, may stand for any of them.
        meant = [each for each in listed if each.get("id") == name] or listed
        return min((window for window in map(read_window, meant) if window), default=None)

    async def _list_models(self) -> list[Any]:
        match await self._server.ask(self.models_path):
            case {"data": list(models)}:
                self._listed = models
            case _:
                self._listed = []
        return self._listed

    async def close(self) -> None:
        await self._server.close()

    def _key_headers(self, api_key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    @abstractmethod
    def _render(self, ask: Ask, model: str, *, is_stream: bool) -> Json: ...

    @abstractmethod
    def _reader(self, ask: Ask) -> Reader: ...


def session_headers(ask: Ask) -> dict[str, str]:
    """Session, class and task are said in headers, which servers that do not know them pass over."""
    said = {
        SESSION_HEADER: ask.session_id,
        PARENT_HEADER: ask.parent_id,
        PRIORITY_HEADER: ask.priority.name.lower() if ask.priority else "",
        TASK_HEADER: ask.task,
        TRACEPARENT: render_traceparent(ask.trace) if ask.trace else "",
    }
    return {name: value for name, value in said.items() if value}


def call_id(ask: Ask, number: int) -> str:
    """An id of its own in the conversation, for a call that comes without one."""
    return f"call_{len(ask.messages)}_{number}"


def make_request(ask: Ask, model: str, *, has_cache_key: bool = False) -> ApiRequest:
    """The cache key is the session that branches have in common: `session-1/2` began as `session-1`."""
    mode: ChoiceMode = "none" if ask.schema is not None else ask.choice
    strict = {"strict": True} if is_closed(ask.schema) else {}
    session = ask.session_id.partition("/")[0][:_MAX_CACHE_KEY_CHARS]
    return ApiRequest(
        api="chat",
        model=model,
        turns=tuple(_make_turn(message) for message in ask.messages),
        tools=tuple(_make_tool(tool) for tool in ask.tools),
        choice=Choice(None if mode == "auto" else mode) if ask.tools else Choice(),
        shape=None if ask.schema is None else OutputShape(dict(ask.schema), strict),
        max_tokens=ask.max_tokens,
        temperature=ask.temperature,
        cache=Cache(key=session or None if has_cache_key else None),
    )


# OpenAI refuses these where strict is said, and hotloop what it cannot keep to of them.
_NOT_STRICT = {"allOf", "contains", "dependentRequired", "dependentSchemas", "if", "not", "oneOf", "propertyNames"}
_NOT_STRICT |= {"dependencies", "patternProperties", "uniqueItems", "unevaluatedProperties"}


def is_closed(schema: Any) -> bool:
    """Whether OpenAI takes a schema as a strict one: every object lists all it may have, and must have it; and there is
    nothing that no grammar keeps to."""
    if isinstance(schema, list):
        return all(map(is_closed, schema))
    if not isinstance(schema, Mapping):
        return True
    if schema.keys() & _NOT_STRICT:
        return False
    if schema.get("type") == "object":
        properties = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(properties):
            return False
    return all(is_closed(value) for key, value in schema.items() if key not in ("default", "enum", "const"))


def _make_turn(message: Message) -> Turn:
    text = Text(message.content)
    attached = tuple(map(_make_part, message.attachments))
    parts = (text, *attached) if message.content or not attached else attached
    match message.role:
        case "tool":
            is_error = message.content.startswith(_FAILED)
            result = ToolResult(message.tool_call_id or "", parts, is_plain=not attached, is_error=is_error)
            return Turn("user", (result,))
        case "assistant":
            calls = [Call(call.id, call.name, call.arguments or "{}") for call in message.tool_calls]
            return Turn("assistant", (*message.thoughts, text, *calls))
        case role:
            return Turn(role, parts, is_plain=not attached)


def _make_part(attachment: Attachment) -> Image | File:
    """A text file is a text wherever it goes. Raises ConfigError for what no API takes."""
    if attachment.is_image:
        return Image(attachment.url)
    if (text := attachment.text) is not None:
        return File(text=text, name=attachment.name or None)
    if attachment.media_type.startswith(("audio/", "video/")):
        raise ConfigError(f"{attachment.media_type} is not supported: images, documents and texts are")
    return File(attachment.url, name=attachment.name or None)


def _make_tool(tool: Tool) -> ApiTool:
    """`strict` is said where it can be kept everywhere; a server that can do more does it unasked."""
    is_said = not tool.is_strict or is_closed(tool.parameters)
    return ApiTool(tool.name, tool.description, dict(tool.parameters), tool.is_strict if is_said else None)
