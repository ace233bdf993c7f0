"""Models behind OpenAI's chat completions: hotloop's, those of vLLM, SGLang, llama.cpp and many more, and OpenAI's own.

Every prompt begins as the one before it did; the session is named in a header, and in `prompt_cache_key` for those who
route by it.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx

from hotloop.agent.model import Ask, ModelEvent
from hotloop.agent.wire.http import TIMEOUT, Json, RemoteServer, Retries
from hotloop.agent.wire.openai_answer import DONE, OpenAIAnswer, read_usage
from hotloop.agent.wire.session import session_headers, shared_session
from hotloop.core.errors import RemoteError
from hotloop.core.message import Message, Tool

_PATH = "/chat/completions"


class OpenAIModel:
    """`base_url` ends with `/v1`. Without a `model` it is the first that the server lists.

    `is_plain` is for servers that refuse fields they do not know: it leaves out all but the oldest.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        is_plain: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        retries: Retries | None = None,
    ) -> None:
        key = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._server = RemoteServer(
            base_url, headers={**key, **(headers or {})}, secret=api_key, timeout=timeout, retries=retries
        )
        self._model = model
        self._is_plain = is_plain
        self._is_hotloop = False

    def __repr__(self) -> str:
        return f"OpenAIModel({self._server.url!r}, {self._model!r})"

    @property
    def name(self) -> str:
        return self._model or self._server.url

    @property
    def can_read_ahead(self) -> bool:
        """Only hotloop reads without answering; it shows itself in the usage of its answers."""
        return self._is_hotloop

    async def stream(self, ask: Ask) -> AsyncGenerator[ModelEvent, None]:
        body = {**render_ask(ask, await self.find_model(), is_plain=self._is_plain), **_stream(self._is_plain)}
        answer = OpenAIAnswer(self._server, {tool.name for tool in ask.tools}, f"call_{len(ask.messages)}")
        headers = session_headers(ask)
        async with aclosing(self._server.events(_PATH, body, headers, lambda event: event.text == DONE)) as events:
            async for event in events:
                for each in answer.push(event):
                    yield each
        self._is_hotloop |= answer.is_hotloop
        for last in answer.finish():
            yield last

    async def read(self, ask: Ask) -> None:
        body = render_ask(ask, await self.find_model(), is_plain=self._is_plain)
        # One token, for a hotloop that is too old to know the field.
        quiet: Json = {"generate": False, "max_completion_tokens": 1}
        read_usage(self._server, await self._server.post(_PATH, body | quiet, session_headers(ask)))

    async def find_model(self) -> str:
        """The model's name on this server."""
        if self._model is None:
            self._model = await first_model(self._server, "/models")
        return self._model

    async def close(self) -> None:
        await self._server.close()


async def first_model(server: RemoteServer, path: str) -> str:
    match await server.get(path):
        case {"data": [{"id": str(name)}, *_]}:
            return name
    raise RemoteError(f"{server.url}{path} lists no model: name the one to use")


def render_ask(ask: Ask, model: str, *, is_plain: bool = False) -> Json:
    """The body, but for how the answer is to be sent."""
    body: Json = {"model": model, "messages": [_render_message(message) for message in ask.messages]}
    if ask.tools:
        body["tools"] = [_render_tool(tool, is_plain=is_plain) for tool in ask.tools]
        choice = "none" if ask.schema is not None else ask.choice
        body |= {} if choice == "auto" else {"tool_choice": choice}
    if ask.schema is not None:
        shape: Json = {"name": "answer", "schema": ask.schema}
        shape |= {"strict": True} if is_closed(ask.schema) else {}
        body["response_format"] = {"type": "json_schema", "json_schema": shape}
    if ask.max_tokens is not None:
        body["max_tokens" if is_plain else "max_completion_tokens"] = ask.max_tokens
    if ask.temperature is not None:
        body["temperature"] = ask.temperature
    if ask.session_id and not is_plain:
        body["prompt_cache_key"] = shared_session(ask)
    return {**body, **ask.extra}


def _stream(is_plain: bool) -> Json:
    return {"stream": True} if is_plain else {"stream": True, "stream_options": {"include_usage": True}}


def _render_message(message: Message) -> Json:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id or "", "content": message.content}
    rendered: Json = {"role": message.role, "content": message.content}
    if message.tool_calls:
        rendered["content"] = message.content or None
        rendered["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
            for call in message.tool_calls
        ]
    return rendered


def _render_tool(tool: Tool, *, is_plain: bool) -> Json:
    """`strict` is said where it can be kept everywhere; a server that can do more does it unasked."""
    function: Json = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if not is_plain and (not tool.is_strict or is_closed(tool.parameters)):
        function["strict"] = tool.is_strict
    return {"type": "function", "function": function}


def is_closed(schema: Any) -> bool:
    """Whether OpenAI takes a schema as a strict one: every object lists all it may have, and must have it."""
    if isinstance(schema, list):
        return all(map(is_closed, schema))
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object":
        properties = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(properties):
            return False
    return all(is_closed(value) for key, value in schema.items() if key not in ("default", "enum", "const"))
