"""Content blocks as the parts of a chat message.

A text stays a text and a list stays a list, whatever is marked in it: marks move from turn to turn, and the prompt made
from a message must not.
"""

import re
from collections.abc import Iterable

from hotloop.router.translate.field import Field, Json, read_flag
from hotloop.router.translate.messages_to_chat.writing import Writing

# Notes that a model or a hosted tool left for itself: no replica can read them.
_LEFT_OUT = re.compile(r"redacted_thinking|server_tool_use|tool_reference|container_upload|mcp_tool_.*|.*_tool_result")
_ERROR = "Error: "


def render_content(content: Field, writing: Writing) -> str | list[Json]:
    return content.text() if content.is_text else render_parts(content.each(), writing)


def render_parts(blocks: Iterable[Field], writing: Writing) -> list[Json]:
    return [writing.mark(block, part) for block in blocks for part in _render_part(block, writing)]


def render_result(block: Field, writing: Writing) -> tuple[Json, list[Json]]:
    """The tool's message, and the pictures in it: a chat has them in the user's messages only."""
    call_id = block.need("tool_use_id").text()
    content = block.get("content")
    inner = [] if content is None or content.is_text else content.each()
    parts = [part for each in inner for part in _render_part(each, writing)]
    for each in inner:
        writing.lose_mark(each)
    text = content.text() if content and content.is_text else "\n".join(p["text"] for p in parts if p["type"] == "text")
    # A chat has no word for a call that failed: the text says so, if it does not already.
    if read_flag(block, "is_error") and "error" not in text[:32].lower():
        text = _ERROR + text
    part = writing.mark(block, {"type": "text", "text": text})
    message = {"role": "tool", "tool_call_id": call_id, "content": [part] if "cache_control" in part else text}
    return message, _caption([part for part in parts if part["type"] != "text"], call_id, writing)


def leave_out(block: Field, writing: Writing) -> None:
    """Raises RequestError for a block that has something to say."""
    kind = block.kind()
    if not _LEFT_OUT.fullmatch(kind):
        raise block.refuse(f"content of type {kind!r:.60} cannot be carried to this replica")
    writing.notes.add(f"content of type {kind} left out")
    writing.lose_mark(block)


def _caption(pictures: list[Json], call_id: str, writing: Writing) -> list[Json]:
    if not pictures:
        return []
    writing.notes.add("pictures in tool results are shown as the user's")
    return [{"type": "text", "text": f"From the result of call {call_id}:"}, *pictures]


def _render_part(block: Field, writing: Writing) -> list[Json]:
    match block.kind():
        case "text":
            return [{"type": "text", "text": block.need("text").text()}]
        case "image":
            return [{"type": "image_url", "image_url": {"url": _render_image(block.need("source"))}}]
        case "document":
            return [_render_document(block, writing)]
        case "search_result":
            return [{"type": "text", "text": _render_found(block, writing)}]
    leave_out(block, writing)
    return []


def _render_image(source: Field) -> str:
    match source.kind():
        case "base64":
            return _data_url(source)
        case "url":
            return source.need("url").text()
        case kind:
            raise source.refuse(f"an image of type {kind!r:.60} cannot be carried to this replica")


def _render_document(block: Field, writing: Writing) -> Json:
    source = block.need("source")
    title = block.get("title")
    match source.kind():
        case "text":
            text = source.need("data").text()
            return {"type": "text", "text": f"{title.text()}\n{text}" if title else text}
        case "base64":
            name = title.text() if title else "document.pdf"
            return {"type": "file", "file": {"filename": name, "file_data": _data_url(source)}}
        case "content":
            content = source.need("content")
            return {"type": "text", "text": content.text() if content.is_text else _join_texts(content, writing)}
        case kind:
            raise source.refuse(f"a document of type {kind!r:.60} cannot be carried to this replica")


def _render_found(block: Field, writing: Writing) -> str:
    words = _join_texts(block.need("content"), writing)
    return "\n".join((block.need("title").text(), block.need("source").text(), words))


def _join_texts(content: Field, writing: Writing) -> str:
    for each in content.each():
        writing.lose_mark(each)
    return "\n".join(each.need("text").text() for each in content.each())


def _data_url(source: Field) -> str:
    return f"data:{source.need('media_type').text()};base64,{source.need('data').text()}"
