"""The items of a response's input and output, as they are kept, listed and made into messages.

    JSON -> settle_items -> Item[] -> make_messages -> Message[]
                            Item[] -> render_items -> JSON, as a client lists what a response was given

What a response put out is settled here again when a later one continues it, so the text of an answer and the calls that
follow it are one turn, as the model wrote them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hotloop.core.message import Message
from hotloop.server.turns import Turns
from hotloop.wire.field import Field, Json
from hotloop.wire.part import Call, Result, Turn
from hotloop.wire.responses.parse import parse_input
from hotloop.wire.responses.render import render_call

# Notes that a model or a hosted tool left for itself: nothing here can read them, and nobody wrote them here.
_DROPPED = ("reasoning", "web_search_call", "image_generation_call", "tool_search_call", "tool_search_output")

Item = Json
"""A message with one text, a call or its output, as the API has them, without id and status."""


def settle_items(given: str | Sequence[Mapping[str, Any]]) -> tuple[Item, ...]:
    """Raises RequestError for an item that is wrong, or of a type that means nothing here."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else [dict(item) for item in given]
    make_messages(items)
    return tuple(_settle(item) for item in items if item.get("type") not in _DROPPED)


def make_messages(items: Sequence[Item]) -> tuple[Message, ...]:
    """Calls belong to the turn of the assistant that they directly follow, or begin one."""
    return tuple(Turns(_parse(items), dropped=_DROPPED).messages)


def count_bytes(items: Iterable[Item]) -> int:
    """About what they take in memory."""
    return sum(200 + len(msgspec.json.encode(item)) for item in items)


def render_items(items: Sequence[Item], response_id: str) -> list[Json]:
    """Each with an id that is the same whenever it is asked for."""
    stem = response_id.removeprefix("resp_")
    prefixes = {"message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}
    return [
        {"id": f"{prefixes.get(item['type'], 'fco')}_{stem}{i:04x}", **item, "status": "completed"}
        for i, item in enumerate(items)
    ]


def _parse(items: Sequence[Item]) -> list[Turn]:
    return parse_input(Field({"input": [*items]}).need("input"))


def _settle(item: Item) -> Item:
    [turn] = _parse([item])
    part = turn.parts[0] if turn.parts else None
    if isinstance(part, Call):
        return render_call(part)
    [message] = Turns([turn]).messages
    if isinstance(part, Result):
        return {"type": item["type"], "call_id": part.call_id, "output": message.content}
    said: Json = {"type": "input_text", "text": message.content}
    if turn.role == "assistant":
        said = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
    return {"type": "message", "role": item["role"], "content": [said]}
