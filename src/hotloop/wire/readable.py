"""What stands in a conversation where a model reads text only: a short text in place of a picture, a recording, a file
or the notes of a hosted tool. What is text already, such as a search result, is given as that text.

A conversation one turn longer still begins with what it was.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from hotloop.wire.image import image_size
from hotloop.wire.part import File, Image, Opaque, Part, Text, ToolChange, ToolResult, Turn, text_of

_MAX_NAME = 80
_LABELS = {
    **dict.fromkeys(("image", "input_image"), "image"),
    **dict.fromkeys(("document", "file", "input_file", "container_upload"), "document"),
    **dict.fromkeys(("input_audio", "audio_url", "audio"), "audio"),
    **dict.fromkeys(("video_url", "input_video", "video"), "video"),
}
# What hosted tools were asked and answered, and what else a hosted model keeps in a history for itself.
_NOTES = re.compile(r"server_tool_use|mcp_.*|tool_search_.*|.*_tool_result|.*_call(_output)?")
_NOT_IN_NAMES = re.compile(r"[\s\[\]]+")


@dataclass(slots=True)
class Reading:
    """Makes turns readable and counts what it replaced. For another API that is only what it has no word for."""

    is_for_other_api: bool = False
    replaced: Counter[str] = field(default_factory=Counter)

    def read(self, turns: Iterable[Turn]) -> tuple[Turn, ...]:
        return tuple(self._read_turn(turn) for turn in turns)

    def check(self, turns: Iterable[Turn]) -> None:
        """Raises RequestError if nothing was said but what would be replaced."""
        lost: list[Image | File | Opaque] = []
        for part in _flatten(part for turn in turns if turn.role != "system" for part in turn.parts):
            if isinstance(part, Image | File | Opaque) and self._is_replaced(part):
                lost.append(part)
            elif text_of(part) != "":
                return
        if lost:
            kind = lost[0].at.value.get("type") if lost[0].at else None
            raise lost[0].refuse(f"content of type {kind!r:.100} is not supported: only text is")

    @property
    def changes(self) -> tuple[str, ...]:
        replaced = self.replaced.items()
        return tuple(
            f"content of type {kind} became a short text, {num} in all: only text is read" for kind, num in replaced
        )

    def _read_turn(self, turn: Turn) -> Turn:
        if all(isinstance(part, Text) for part in turn.parts):
            return turn
        end = "\n" if turn.role == "assistant" else ""  # an answer's texts are joined by nothing
        return msgspec.structs.replace(turn, parts=tuple(self._read_part(part, end) for part in turn.parts))

    def _read_part(self, part: Part, end: str = "") -> Part:
        match part:
            case ToolResult() if not all(isinstance(inner, Text) for inner in part.parts):
                return msgspec.structs.replace(part, parts=tuple(map(self._read_part, part.parts)))
            case ToolChange():
                return part
            case Image() | File() | Opaque() if self._is_replaced(part) and (label := _label(part)):
                self.replaced[label] += 1
                return Text(f"[{', '.join(filter(None, (label, _detail(part))))}]{end}", mark=part.mark, at=part.at)
            case File() | Opaque() if not self.is_for_other_api and (text := text_of(part)) is not None:
                return Text(text, mark=part.mark, at=part.at)
        return part

    def _is_replaced(self, part: Image | File | Opaque) -> bool:
        """Pictures and files are carried to other APIs, and hosted tools' notes left out there."""
        is_carried = self.is_for_other_api and (not isinstance(part, Opaque) or part.is_private)
        return text_of(part) is None and not is_carried


def _flatten(parts: Iterable[Part]) -> Iterator[Part]:
    for part in parts:
        yield from part.parts if isinstance(part, ToolResult) else (part,)


def _label(part: Image | File | Opaque) -> str | None:
    if isinstance(part, Opaque):
        return _LABELS.get(part.kind) or (part.kind if len(part.kind) < 64 and _NOTES.fullmatch(part.kind) else None)
    return "image" if isinstance(part, Image) else "document"


def _detail(part: Image | File | Opaque) -> str:
    if isinstance(part, Image):
        size = image_size(part.url)
        return f"{size[0]}×{size[1]}" if size else ""
    name = part.name if isinstance(part, File) else part.value.get("name") or part.value.get("title")
    return _NOT_IN_NAMES.sub(" ", name).strip()[:_MAX_NAME] if isinstance(name, str) else ""
