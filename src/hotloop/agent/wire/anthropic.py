"""Models behind Anthropic's messages: Anthropic's own, and whoever speaks like them, as hotloop does.

What was read is kept at two breakpoints: behind what never changes (tools and system prompt), and behind all that was
said so far, which the next turn begins with. What the model thought before its calls goes back with them, ahead of all
else it said: a model that thinks refuses to go on without.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import httpx
import msgspec

from hotloop.agent.model import Ask, ModelEvent
from hotloop.agent.wire.anthropic_answer import LAST, AnthropicAnswer
from hotloop.agent.wire.http import TIMEOUT, Json, RemoteServer, Retries
from hotloop.agent.wire.openai import first_model
from hotloop.agent.wire.session import session_headers
from hotloop.core.message import Message, Thought, Tool, ToolCall
from hotloop.wire.sse import ServerEvent

_PATH = "/v1/messages"
_VERSION = "2023-06-01"
_KEPT = {"cache_control": {"type": "ephemeral"}}
_FAILED = "Error: "  # how a run words a call that failed


class AnthropicModel:
    """`base_url` is without `/v1`. `max_tokens` is for asks that do not say, since this API must be told.

    `is_plain` is for servers that refuse fields they do not know: it leaves out the breakpoints.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        max_tokens: int = 8192,
        is_plain: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        retries: Retries | None = None,
    ) -> None:
        own = {"anthropic-version": _VERSION} | ({"x-api-key": api_key} if api_key else {})
        url = base_url.rstrip("/").removesuffix("/v1")
        self._server = RemoteServer(
            url, headers={**own, **(headers or {})}, secret=api_key, timeout=timeout, retries=retries
        )
        self._model = model
        self._max_tokens = max_tokens
        self._is_plain = is_plain
        self._is_hotloop = False

    def __repr__(self) -> str:
        return f"AnthropicModel({self._server.url!r}, {self._model!r})"

    @property
    def name(self) -> str:
        return self._model or self._server.url

    @property
    def can_read_ahead(self) -> bool:
        """Only hotloop reads a prompt whose calls have not all been answered; it shows itself in its usage."""
        return self._is_hotloop

    async def stream(self, ask: Ask) -> AsyncGenerator[ModelEvent, None]:
        body = {**await self._render(ask), "stream": True}
        answer = AnthropicAnswer(self._server, f"call_{len(ask.messages)}")
        async with aclosing(self._server.events(_PATH, body, session_headers(ask), _is_last)) as events:
            async for event in events:
                for each in answer.push(event):
                    yield each
        self._is_hotloop |= answer.is_hotloop
        for last in answer.finish():
            yield last

    async def read(self, ask: Ask) -> None:
        body = await self._render(ask)
        await self._server.post(_PATH, body | {"max_tokens": 0}, session_headers(ask))

    async def find_model(self) -> str:
        """The model's name on this server."""
        if self._model is None:
            self._model = await first_model(self._server, "/v1/models")
        return self._model

    async def close(self) -> None:
        await self._server.close()

    async def _render(self, ask: Ask) -> Json:
        body = render_ask(ask, await self.find_model(), max_tokens=self._max_tokens)
        return body if self._is_plain else mark(body)


def _is_last(event: ServerEvent) -> bool:
    return event.name == LAST


def render_ask(ask: Ask, model: str, *, max_tokens: int) -> Json:
    """The body, but for breakpoints and how the answer is to be sent."""
    system, rest = _part(ask.messages)
    body: Json = {"model": model, "max_tokens": ask.max_tokens or max_tokens}
    if system:
        body["system"] = [_text(message.content) for message in system]
    body["messages"] = _render_turns(rest)
    if ask.tools:
        body["tools"] = [_render_tool(tool) for tool in ask.tools]
        choice = "none" if ask.schema is not None else ask.choice
        body |= {} if choice == "auto" else {"tool_choice": {"type": "any" if choice == "required" else choice}}
    if ask.schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": ask.schema}}
    if ask.temperature is not None:
        body["temperature"] = ask.temperature
    return {**body, **ask.extra}


def mark(body: Json) -> Json:
    """The same body with its breakpoints."""
    marked = dict(body)
    for part in ("system", "tools"):
        if body.get(part):
            marked[part] = _mark_last(body[part])
            break
    if not body["messages"]:
        return marked  # which the server refuses, and says so
    *turns, last = body["messages"]
    return {**marked, "messages": [*turns, {**last, "content": _mark_last(last["content"])}]}


def _mark_last(blocks: list[Json]) -> list[Json]:
    return [*blocks[:-1], {**blocks[-1], **_KEPT}]


def _part(messages: tuple[Message, ...]) -> tuple[list[Message], tuple[Message, ...]]:
    """The system messages a conversation begins with, and the rest of it."""
    num_system = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    return [message for message in messages[:num_system] if message.content], messages[num_system:]


def _render_turns(messages: Iterable[Message]) -> list[Json]:
    """Turns of one role that follow each other are one, and none is empty: the API refuses anything else."""
    turns: list[Json] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _render_blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _render_blocks(message: Message) -> list[Json]:
    """A system message that comes late has no place of its own here: it is put into the user's mouth."""
    if message.role == "tool":
        return [_render_result(message)]
    text = [_text(message.content)] if message.content.strip() else []
    said = text + [_render_call(call) for call in message.tool_calls]
    return [*map(_render_thought, message.thoughts), *said] if said else []


def _render_thought(thought: Thought) -> Json:
    if thought.is_sealed:
        return {"type": "redacted_thinking", "data": thought.text}
    return {"type": "thinking", "thinking": thought.text, "signature": thought.signature}


def _render_result(message: Message) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": message.tool_call_id or "", "content": message.content}
    return {**block, "is_error": True} if message.content.startswith(_FAILED) else block


def _render_call(call: ToolCall) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": _parse_input(call.arguments)}


def _parse_input(arguments: str) -> dict[str, Any]:
    """Arguments that are no object were refused when they came, as their result says; the API takes objects only."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _render_tool(tool: Tool) -> Json:
    rendered: Json = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
    return rendered if tool.is_strict else {**rendered, "strict": False}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
