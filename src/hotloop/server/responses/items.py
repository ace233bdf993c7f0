"""The items of a response's input and output, as they are kept, listed, and made into messages with those that follow.

What a response put out is input of the one that continues it, so the text of an answer and the calls that follow it are
one turn, as the model wrote them.
"""

from collections.abc import Iterable, Sequence

import msgspec

from hotloop.core.message import Message
from hotloop.server.turns import DROPPED, parse_turns
from hotloop.wire.field import Field, Json
from hotloop.wire.responses.parse import parse_input

Item = Json
"""A message, a call or its output, as the API has them."""

_PREFIXES = {"message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}


def parse_items(given: Field) -> tuple[Item, ...]:
    """Raises RequestError for an item that is wrong, or of a type that means nothing here."""
    items = [{"role": "user", "content": given.text()}] if given.is_text else [item.object() for item in given.each()]
    make_messages(items)
    return keep_items(items)


def keep_items(items: Iterable[Item]) -> tuple[Item, ...]:
    """Those that say something to the model."""
    return tuple(item for item in items if item.get("type") not in DROPPED)


def make_messages(items: Sequence[Item]) -> tuple[Message, ...]:
    """Calls belong to the turn of the assistant that they directly follow, or begin one."""
    return parse_turns(parse_input(Field({"input": [*items]}).need("input")), "responses").messages


def count_bytes(items: Iterable[Item]) -> int:
    """About what they take in memory."""
    return sum(200 + len(msgspec.json.encode(item)) for item in items)


def render_items(items: Sequence[Item], response_id: str) -> list[Json]:
    """As a client lists them, each with an id that is the same whenever it is asked for."""
    stem = response_id.removeprefix("resp_")
    return [_render_item(item, f"{stem}{i:04x}") for i, item in enumerate(items)]


def _render_item(item: Item, stem: str) -> Json:
    kind = item.get("type") or "message"
    rendered = {**item, "id": f"{_PREFIXES.get(kind, 'fco')}_{stem}", "type": kind, "status": "completed"}
    if kind == "message":
        rendered["content"] = _render_content(item["content"], item["role"])
    return rendered


def _render_content(content: str | list[Json], role: str) -> list[Json]:
    if isinstance(content, str):
        content = [{"type": "output_text" if role == "assistant" else "input_text", "text": content}]
    usual: Json = {"annotations": [], "logprobs": []}
    return [{**usual, **part} if part["type"] == "output_text" else part for part in content]
