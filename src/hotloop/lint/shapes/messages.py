"""Anthropic's messages: tools are read first, then the system text, then the messages."""

from collections.abc import Iterator
from typing import Any

from hotloop.lint.part import PICTURE, Json, Part, listing, mapping, picture_of, strip_breakpoint, text_of
from hotloop.lint.shapes.chat import content_parts, tool_part


def messages_parts(body: Json) -> Iterator[Part]:
    for i, tool in enumerate(listing(body.get("tools"))):
        yield tool_part(mapping(tool), f"tools[{i}]")
    for part in content_parts(body.get("system"), "system", "system", "system", 0):
        yield Part("system", part.path, part.text, "system", part.label, None, part.has_breakpoint)
    for i, message in enumerate(map(mapping, listing(body.get("messages")))):
        yield from turn_parts(message, i)


def turn_parts(message: Json, index: int) -> Iterator[Part]:
    role, path = str(message.get("role", "")), f"messages[{index}].content"
    content = message.get("content")
    if isinstance(content, str):
        yield from content_parts(content, "text", path, role, index)
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
