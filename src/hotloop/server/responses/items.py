"""The items of a response's input and output: on the wire, as values, and as the turns of a conversation.

    JSON -> parse_items -> Item[] -> make_turns -> Message[]
                           Item[] -> render_items -> JSON, as a client lists what a response was given

What a response put out is parsed here again when a later one continues it, so the text of an answer and the calls that
follow it are one turn, as the model wrote them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from hotloop.core.errors import RequestError
from hotloop.core.message import Message, ToolCall
from hotloop.server.openai.render import Json
from hotloop.server.openai.wire import convert
from hotloop.wire.arguments import wrap_input
from hotloop.wire.part import Call, flat_name
from hotloop.wire.responses.render import render_call

# Notes that a model or a hosted tool left for itself: nothing here can read them, and nobody wrote them here.
_DROPPED = ("reasoning", "web_search_call", "image_generation_call", "tool_search_call", "tool_search_output")

_TEXTS = frozenset({"input_text", "output_text", "text"})

Speaker = Literal["user", "assistant", "system", "developer"]


class PartBody(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | list[PartBody]


class MessageBody(msgspec.Struct, kw_only=True):
    role: Speaker
    content: Content


class FunctionCallBody(msgspec.Struct, kw_only=True):
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class CustomCallBody(msgspec.Struct, kw_only=True):
    call_id: str
    name: str
    namespace: str | None = None
    input: str


class CallOutputBody(msgspec.Struct, kw_only=True):
    call_id: str
    output: Content


@dataclass(frozen=True, slots=True)
class Said:
    role: Speaker
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """`arguments` is JSON, a custom tool's as well: there it is an object that holds the one text."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class Returned:
    call_id: str
    text: str
    is_custom: bool = False


Item = Said | Called | Returned


def parse_items(given: str | Sequence[Mapping[str, Any]]) -> tuple[Item, ...]:
    """Raises RequestError for an item that is wrong, or of a type that means nothing here."""
    if isinstance(given, str):
        return (Said("user", given),)
    items = (_parse_item(f"input[{i}]", body) for i, body in enumerate(given))
    return tuple(item for item in items if item is not None)


def make_turns(items: Iterable[Item]) -> tuple[Message, ...]:
    """Calls belong to the turn of the assistant that they directly follow, or begin one."""
    turns: list[Message] = []
    text, calls, is_open = "", list[ToolCall](), False
    for item in items:
        if is_open and not isinstance(item, Called):
            turns.append(Message("assistant", text, tool_calls=tuple(calls)))
            text, calls, is_open = "", [], False
        match item:
            case Said(role="assistant"):
                text, is_open = item.text, True
            case Said():
                turns.append(Message("user" if item.role == "user" else "system", item.text))
            case Called():
                calls.append(ToolCall(item.call_id, flat_name(item.name, item.namespace), item.arguments))
                is_open = True
            case Returned():
                turns.append(Message("tool", item.text, tool_call_id=item.call_id))
    if is_open:
        turns.append(Message("assistant", text, tool_calls=tuple(calls)))
    return tuple(turns)


def count_bytes(items: Iterable[Item]) -> int:
    """About what they take in memory."""
    return sum(200 + len(item.arguments if isinstance(item, Called) else item.text) for item in items)


def render_items(items: Sequence[Item], response_id: str) -> list[Json]:
    """Each with an id that is the same whenever it is asked for."""
    stem = response_id.removeprefix("resp_")
    return [_render_item(item, f"{stem}{i:04x}") for i, item in enumerate(items)]


def _parse_item(place: str, body: Mapping[str, Any]) -> Item | None:
    kind = body.get("type") or "message"
    match kind:
        case "message":
            message = convert(body, MessageBody, place)
            joiner = "" if message.role == "assistant" else "\n"  # an answer was one text, in however many parts
            return Said(message.role, _parse_content(f"{place}.content", message.content, joiner))
        case "function_call":
            call = convert(body, FunctionCallBody, place)
            return Called(call.call_id, call.name, call.arguments, call.namespace)
        case "custom_tool_call":
            custom = convert(body, CustomCallBody, place)
            return Called(custom.call_id, custom.name, wrap_input(custom.input), custom.namespace, is_custom=True)
        case "function_call_output" | "custom_tool_call_output":
            output = convert(body, CallOutputBody, place)
            text = _parse_content(f"{place}.output", output.output)
            return Returned(output.call_id, text, is_custom=kind == "custom_tool_call_output")
    if kind in _DROPPED:
        return None
    raise RequestError(f"{place}: items of type {kind!r:.100} are not supported", param=place)


def _parse_content(place: str, content: Content, joiner: str = "\n") -> str:
    if isinstance(content, str):
        return content
    return joiner.join(_parse_part(f"{place}[{i}]", part) for i, part in enumerate(content))


def _parse_part(place: str, part: PartBody) -> str:
    text = part.text if part.type in _TEXTS else part.refusal if part.type == "refusal" else None
    if text is None:
        raise RequestError(f"{place}: content of type {part.type!r:.100} is not supported, only text is", param=place)
    return text


def _render_item(item: Item, stem: str) -> Json:
    match item:
        case Said(role="assistant"):
            part: Json = {"type": "output_text", "text": item.text, "annotations": [], "logprobs": []}
        case Said():
            part = {"type": "input_text", "text": item.text}
        case Called():
            call = Call(item.call_id, item.name, item.arguments, item.namespace, item.is_custom)
            return {**render_call(call), "id": f"{'ctc' if item.is_custom else 'fc'}_{stem}", "status": "completed"}
        case Returned():
            kind = "custom_tool_call_output" if item.is_custom else "function_call_output"
            fields = {"call_id": item.call_id, "output": item.text, "status": "completed"}
            return {"id": f"fco_{stem}", "type": kind, **fields}
    return {"id": f"msg_{stem}", "type": "message", "role": item.role, "status": "completed", "content": [part]}
