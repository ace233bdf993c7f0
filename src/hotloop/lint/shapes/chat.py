"""OpenAI's chat completions: messages and tools to parts. Tools are read behind the system messages that begin it."""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from hotloop.lint.part import PICTURE, Json, Kind, Part, listing, mapping, picture_of, strip_breakpoint, text_of

_SYSTEM = ("system", "developer")


def chat_parts(body: Json) -> Iterator[Part]:
    messages = [mapping(message) for message in listing(body.get("messages"))]
    num_system = sum(1 for _ in takewhile(lambda message: message.get("role") in _SYSTEM, messages))
    for i, message in enumerate(messages[:num_system]):
        yield from message_parts(message, i)
    for i, tool in enumerate(listing(body.get("tools"))):
        yield tool_part(mapping(tool), f"tools[{i}]")
    for i, message in enumerate(messages[num_system:], num_system):
        yield from message_parts(message, i)


def tool_part(tool: Json, path: str) -> Part:
    """A tool of any API: its function may stand inside it or be it."""
    function = mapping(tool.get("function")) or strip_breakpoint(tool)
    return Part(
        "tool", path, text_of(function), label=str(function.get("name", "")), has_breakpoint="cache_control" in tool
    )


def message_parts(message: Json, index: int) -> Iterator[Part]:
    role, path = str(message.get("role", "")), f"messages[{index}]"
    kind: Kind = "system" if role in _SYSTEM else "result" if role in ("tool", "function") else "text"
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := message.get(name), str) and text:
            yield Part("thinking", f"{path}.{name}", text, role, message=index)
            break
    yield from content_parts(message.get("content"), kind, f"{path}.content", role, index)
    for i, call in enumerate(listing(message.get("tool_calls"))):
        function = mapping(mapping(call).get("function"))
        where = f"{path}.tool_calls[{i}].function.arguments"
        name, arguments = str(function.get("name", "")), text_of(function.get("arguments", ""))
        yield Part("call", where, arguments, role, name, index)


def content_parts(content: Any, kind: Kind, path: str, role: str, index: int) -> Iterator[Part]:
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
