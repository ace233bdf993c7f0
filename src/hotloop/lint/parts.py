"""The bodies of all three APIs as parts, in the order in which a prompt has them.

    chat        the system messages that begin it, tools, the other messages
    messages    tools, the system text, the messages
    responses   instructions, tools, the items of the input; what a stored response holds cannot be seen

What is in the wrong place is passed over: a body that no API would take is linted as far as it can be read.
"""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from hotloop.lint.part import PICTURE, Json, Kind, Part, listing, mapping, picture_of, strip_breakpoint, text_of
from hotloop.wire.part import Api

_SYSTEM = ("system", "developer")


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
    """A tool's function may stand inside it or be it."""
    for i, tool in enumerate(map(mapping, listing(body.get("tools")))):
        function = mapping(tool.get("function")) or strip_breakpoint(tool)
        name, text = str(function.get("name", "")), text_of(function)
        yield Part("tool", f"tools[{i}]", text, label=name, has_breakpoint="cache_control" in tool)


def message_parts(message: Json, index: int) -> Iterator[Part]:
    role, path = str(message.get("role", "")), f"messages[{index}]"
    kind: Kind = "system" if role in _SYSTEM else "result" if role in ("tool", "function") else "text"
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


def _content_parts(content: Any, kind: Kind, path: str, role: str, index: int | None) -> Iterator[Part]:
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
            kind: Kind = "system" if role in _SYSTEM else "text"
            yield from _content_parts(item.get("content"), kind, f"{path}.content", role, index)
        case _:
            yield Part("text", path, text_of(item), "assistant", "item", index)


def _thought(item: Json) -> str:
    if sealed := item.get("encrypted_content"):
        return text_of(sealed)
    return "".join(text_of(mapping(piece).get("text", "")) for piece in listing(item.get("summary")))
