"""A request as the texts its prompt is made of, in the order in which a model reads them.

    chat        the system messages that begin it, tools, the other messages
    messages    tools, the system text, the messages
    responses   instructions, tools, the items of the input; what a stored response holds cannot be seen

Whatever API a body is for, it becomes the same parts; `path` says where in the body each came from. Two parts are the
same if kind, role, label and text are: where they stand does not matter. What is in the wrong place is passed over: a
body that no API would take is linted as far as it can be read.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal

from hotloop.core.errors import RemoteError
from hotloop.wire.event import Event, gather
from hotloop.wire.field import Json
from hotloop.wire.formats import FORMATS
from hotloop.wire.part import Api
from hotloop.wire.reader import name_call
from hotloop.wire.request import ApiRequest
from hotloop.wire.sse import EventReader
from hotloop.wire.usage import ApiUsage, read_usage

PartKind = Literal["system", "tool", "text", "thinking", "call", "result"]

PICTURE = "picture"
"""The label of what is no text: its text is only a name for it."""
_SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Part:
    """`label` is the name of a tool or of the tool called. `message` counts messages, or items of an input."""

    kind: PartKind
    path: str
    text: str
    role: str = ""
    label: str = ""
    message: int | None = None
    has_breakpoint: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.kind, self.role, self.label, self.text


def text_of(value: Any) -> str:
    """JSON as it most likely stands in a prompt, its keys in the order in which they came."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def picture_of(value: Any) -> str:
    """A short name for what is no text, such as an image: the same for the same, whether or not nulls are written."""
    data = json.dumps(_without_nulls(value), sort_keys=True).encode(errors="backslashreplace")
    return f"[{hashlib.sha256(data).hexdigest()[:16]}]"


def mapping(value: Any) -> Json:
    """The value if it is an object, else an empty one: what a stranger's body has in the wrong place is passed over."""
    return value if isinstance(value, dict) else {}


def listing(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def strip_breakpoint(value: Json) -> Json:
    return {name: inner for name, inner in value.items() if name != "cache_control"}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def parts_of(body: Json, api: Api) -> Iterator[Part]:
    return {"chat": _chat_parts, "messages": _messages_parts, "responses": _responses_parts}[api](body)


def _chat_parts(body: Json) -> Iterator[Part]:
    messages = [mapping(message) for message in listing(body.get("messages"))]
    num_system = sum(1 for _ in takewhile(lambda message: message.get("role") in _SYSTEM, messages))
    for i, message in enumerate(messages[:num_system]):
        yield from message_parts(message, i)
    yield from _tool_parts(body)
    for i, message in enumerate(messages[num_system:], num_system):
        yield from message_parts(message, i)


def _tool_parts(body: Json) -> Iterator[Part]:
    """A tool's function may stand inside it or be it. One that is deferred is read only where it is found."""
    for i, tool in enumerate(map(mapping, listing(body.get("tools")))):
        if tool.get("defer_loading") is True:
            continue
        function = mapping(tool.get("function")) or strip_breakpoint(tool)
        name, text = str(function.get("name", "")), text_of(function)
        yield Part("tool", f"tools[{i}]", text, label=name, has_breakpoint="cache_control" in tool)


def message_parts(message: Json, index: int) -> Iterator[Part]:
    role, path = str(message.get("role", "")), f"messages[{index}]"
    kind: PartKind = "system" if role in _SYSTEM else "result" if role in ("tool", "function") else "text"
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := message.get(name), str) and text:
            yield Part("thinking", f"{path}.{name}", text, role, message=index)
            break
    yield from _content_parts(message.get("content"), kind, f"{path}.content", role, index)
    for i, call in enumerate(listing(message.get("tool_calls"))):
        function = mapping(mapping(call).get("function"))
        where = f"{path}.tool_calls[{i}].function.arguments"
        name, arguments = str(function.get("name", "")), text_of(function.get("arguments", ""))
        yield Part("call", where, arguments, role, name, index)


def _content_parts(content: Any, kind: PartKind, path: str, role: str, index: int | None) -> Iterator[Part]:
    """A text, or a list of pieces; one that is no text is known by a digest."""
    if isinstance(content, str):
        if content or kind == "result":
            yield Part(kind, path, content, role, message=index)
        return
    for i, piece in enumerate(map(mapping, listing(content))):
        has_breakpoint = "cache_control" in piece
        text = piece.get("text")
        if not isinstance(text, str):
            yield Part(kind, f"{path}[{i}]", picture_of(strip_breakpoint(piece)), role, PICTURE, index, has_breakpoint)
        elif text:
            yield Part(kind, f"{path}[{i}].text", text, role, "", index, has_breakpoint)


def _messages_parts(body: Json) -> Iterator[Part]:
    yield from _tool_parts(body)
    yield from _content_parts(body.get("system"), "system", "system", "system", None)
    for i, message in enumerate(map(mapping, listing(body.get("messages")))):
        yield from turn_parts(message, i)


def turn_parts(message: Json, index: int) -> Iterator[Part]:
    role, path = str(message.get("role", "")), f"messages[{index}].content"
    content = message.get("content")
    if isinstance(content, str):
        yield from _content_parts(content, "text", path, role, index)
        return
    for i, block in enumerate(map(mapping, listing(content))):
        yield from _block_parts(block, f"{path}[{i}]", role, index)


def _block_parts(block: Json, path: str, role: str, index: int) -> Iterator[Part]:
    has_breakpoint = "cache_control" in block
    match block.get("type"):
        case "text":
            if text := text_of(block.get("text", "")):
                yield Part("text", f"{path}.text", text, role, "", index, has_breakpoint)
        case "thinking" | "redacted_thinking":
            text = text_of(block.get("thinking") or block.get("data") or "")
            yield Part("thinking", path, text, role, "", index)
        case "tool_use":
            arguments = text_of(block.get("input", {}))
            yield Part("call", f"{path}.input", arguments, role, str(block.get("name", "")), index, has_breakpoint)
        case "tool_result":
            yield Part("result", f"{path}.content", _result_text(block.get("content")), role, "", index, has_breakpoint)
        case _:
            digest = picture_of(strip_breakpoint(block))
            yield Part("text", path, digest, role, PICTURE, index, has_breakpoint)


def _result_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    pieces = (mapping(piece) for piece in listing(content))
    return "".join(piece["text"] if isinstance(piece.get("text"), str) else picture_of(piece) for piece in pieces)


def _responses_parts(body: Json) -> Iterator[Part]:
    if isinstance(instructions := body.get("instructions"), str) and instructions:
        yield Part("system", "instructions", instructions, "system")
    yield from _tool_parts(body)
    given = body.get("input")
    if isinstance(given, str):
        yield Part("text", "input", given, "user", message=0)
    for i, item in enumerate(map(mapping, listing(given))):
        yield from item_parts(item, i, f"input[{i}]")


def item_parts(item: Json, index: int, path: str) -> Iterator[Part]:
    match item.get("type", "message"):
        case "function_call":
            arguments = text_of(item.get("arguments", ""))
            yield Part("call", f"{path}.arguments", arguments, "assistant", str(item.get("name", "")), index)
        case "function_call_output":
            yield Part("result", f"{path}.output", text_of(item.get("output", "")), "tool", message=index)
        case "reasoning":
            yield Part("thinking", path, _thought(item), "assistant", message=index)
        case "message":
            role = str(item.get("role", ""))
            kind: PartKind = "system" if role in _SYSTEM else "text"
            yield from _content_parts(item.get("content"), kind, f"{path}.content", role, index)
        case _:
            yield Part("text", path, text_of(item), "assistant", "item", index)


def _thought(item: Json) -> str:
    if sealed := item.get("encrypted_content"):
        return text_of(sealed)
    return "".join(text_of(mapping(piece).get("text", "")) for piece in listing(item.get("summary")))


@dataclass(frozen=True, slots=True)
class LintedAnswer:
    parts: tuple[Part, ...] = ()
    usage: ApiUsage | None = None
    id: str = ""


def parse_answer(body: Any, api: Api) -> LintedAnswer:
    """The answer that a whole body is; an assistant's message alone will do."""
    given = mapping(body)
    parts = (replace(part, path=f"answer: {part.path}") for part in _parts(given, api))
    return LintedAnswer(tuple(parts), read_usage(given.get("usage")), str(given.get("id", "")))


def parse_stream(data: bytes, api: Api) -> LintedAnswer:
    """The answer that was streamed as these server-sent events, as far as it came."""
    reader, events = FORMATS[api].reader(name_call), list[Event]()
    try:
        for event in EventReader().push(data):
            events += reader.push(event)
        events += reader.finish()
    except RemoteError:
        pass  # it broke off
    body = FORMATS[api].writer(ApiRequest(api=api, model="", turns=()), {"model": ""}).whole(events)
    return replace(parse_answer(body, api), usage=reader.usage, id=gather(events).id)


def _parts(body: Json, api: Api) -> Iterator[Part]:
    """An answer has no place in a request until it is sent back: its paths are its own."""
    if api == "messages":
        yield from turn_parts({"role": "assistant"} | body, 0)
    elif api == "responses":
        for i, item in enumerate(listing(body.get("output"))):
            yield from item_parts(mapping(item), i, f"output[{i}]")
    else:
        message = mapping(mapping(next(iter(listing(body.get("choices"))), body)).get("message")) or body
        yield from message_parts({"role": "assistant"} | message, 0)
