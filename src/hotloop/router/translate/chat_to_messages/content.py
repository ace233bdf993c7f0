"""The parts of a chat message as content blocks. Texts with nothing in them are left out: Anthropic refuses them."""

import re

from hotloop.router.translate.chat_to_messages.marks import lose_mark, mark
from hotloop.router.translate.field import Field, Json
from hotloop.router.translate.notes import Notes

_DATA_URL = re.compile(r"data:(?P<media_type>[\w.+-]+/[\w.+-]+)(;[\w=.+-]+)*;base64,", re.IGNORECASE)


def render_blocks(content: Field | None, notes: Notes) -> list[Json]:
    if content is None:
        return []
    if content.is_text:
        return [_text(content.text())] if content.text().strip() else []
    blocks: list[Json] = []
    for part in content.each():
        rendered = _render_part(part)
        if not rendered:
            lose_mark(part, notes)
        blocks += [mark(part, block, notes) for block in rendered]
    return blocks


def mark_last(message: Field, blocks: list[Json], notes: Notes) -> list[Json]:
    """Some clients put the mark on the message: it is on its last block."""
    if not blocks:
        lose_mark(message, notes)
        return []
    return [*blocks[:-1], mark(message, blocks[-1], notes)]


def _render_part(part: Field) -> list[Json]:
    match part.kind():
        case "text":
            text = part.need("text").text()
            return [_text(text)] if text.strip() else []
        case "refusal":
            return [_text(part.need("refusal").text())]
        case "image_url":
            return [_render_image(part.need("image_url"))]
        case "file":
            return [_render_file(part.need("file"))]
        case kind:
            raise part.refuse(f"content of type {kind!r:.60} cannot be carried to this replica")


def _render_image(image: Field) -> Json:
    url = image.need("url")
    return {"type": "image", "source": _render_data(url) or {"type": "url", "url": url.text()}}


def _render_file(file: Field) -> Json:
    data = file.get("file_data")
    if data is None:
        raise file.refuse("a file that was uploaded elsewhere cannot be carried to this replica: send its data")
    source = _render_data(data)
    if source is None:
        raise data.refuse("expected a data URL")
    title = file.get("filename")
    document: Json = {"type": "document", "source": source}
    return {**document, "title": title.text()} if title else document


def _render_data(url: Field) -> Json | None:
    """What a data URL holds; None if it is another sort of address."""
    text = url.text()
    if text[:5].lower() != "data:":
        return None
    head = _DATA_URL.match(text)
    if head is None:
        raise url.refuse("expected a data URL with a media type and base64")
    return {"type": "base64", "media_type": head["media_type"], "data": text[head.end() :]}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
