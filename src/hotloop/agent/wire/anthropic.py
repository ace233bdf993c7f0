"""Models behind Anthropic's messages: Anthropic's own, and whoever speaks like them, as hotloop does.

There are two cache breakpoints: behind what never changes (tools and system prompt), and behind all that was said so
far, which the next turn begins with.
"""

from dataclasses import replace
from typing import ClassVar

from hotloop.agent.model import Ask
from hotloop.agent.wire.served import ServedModel, call_id, make_request
from hotloop.core.errors import ConfigError
from hotloop.wire.field import Json
from hotloop.wire.messages.reader import MessagesReader
from hotloop.wire.messages.render import render_request
from hotloop.wire.policy import RenderTarget
from hotloop.wire.request import ApiTool

_VERSION = "2023-06-01"
_MAX_TOKENS = 8192  # for asks that do not say, since this API must be told
_KEPT = {"cache_control": {"type": "ephemeral"}}


class AnthropicModel(ServedModel):
    """`base_url` is without `/v1`."""

    path = "/v1/messages"
    models_path = "/v1/models"
    suffix = "/v1"
    quiet: ClassVar[Json] = {"max_tokens": 0}

    def _key_headers(self, api_key: str | None) -> dict[str, str]:
        return {"anthropic-version": _VERSION} | ({"x-api-key": api_key} if api_key else {})

    def _render(self, ask: Ask, model: str, *, is_stream: bool) -> Json:
        body = render_ask(ask, model, max_tokens=self._max_tokens or _MAX_TOKENS)
        return (body if self._is_plain else mark(body)) | ({"stream": True} if is_stream else {})

    def _reader(self, ask: Ask) -> MessagesReader:
        return MessagesReader(name_call=lambda _, n: call_id(ask, n))


def render_ask(ask: Ask, model: str, *, max_tokens: int) -> Json:
    """The body, but for breakpoints and how the answer is to be sent."""
    for attachment in (each for message in ask.messages for each in message.attachments):
        if not attachment.is_image and attachment.text is None and attachment.media_type != "application/pdf":
            raise ConfigError(f"Anthropic's messages take images, PDF and texts, not {attachment.media_type}")
    request = make_request(ask, model)
    # `strict` is said only where it is not wanted: what this API can be strict about it does not say.
    tools = tuple(
        replace(tool, is_strict=None if tool.is_strict else tool.is_strict)
        for tool in request.tools
        if isinstance(tool, ApiTool)
    )
    limit = request.max_tokens or max_tokens
    return {**render_request(replace(request, tools=tools, max_tokens=limit), RenderTarget()), **ask.extra}


def mark(body: Json) -> Json:
    marked = dict(body)
    for part in ("system", "tools"):
        if body.get(part):
            marked[part] = _mark_last(body[part])
            break
    *turns, last = body["messages"]
    return {**marked, "messages": [*turns, {**last, "content": _mark_last(last["content"])}]}


def _mark_last(blocks: list[Json]) -> list[Json]:
    return [*blocks[:-1], {**blocks[-1], **_KEPT}]
