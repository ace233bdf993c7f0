"""Recorded runs of agents: one JSON object a line, `{"system", "tools", "messages"}` in OpenAI's shapes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.core.files import read_lines
from hotloop.core.message import Message, ToolCall


class RecordedCall(msgspec.Struct):
    function: dict[str, Any]
    id: str = ""


class Recorded(msgspec.Struct):
    """One message of a record."""

    role: str
    content: str | None = None
    tool_calls: list[RecordedCall] | None = None
    tool_call_id: str | None = None

    @property
    def message(self) -> Message:
        calls = tuple(
            ToolCall(call.id, str(call.function.get("name", "")), str(call.function.get("arguments", "{}")))
            for call in self.tool_calls or ()
        )
        content = self.content or ""
        return Message(self.role, content, tool_calls=calls, tool_call_id=self.tool_call_id)  # type: ignore[arg-type]


class Transcript(msgspec.Struct):
    messages: list[Recorded]
    system: str = ""
    tools: list[Any] = []

    @property
    def num_chars(self) -> int:
        return len(msgspec.json.encode(self))


def read_transcripts(path: Path) -> Iterator[Transcript]:
    """Raises ConfigError where the file is none."""
    for number, line in read_lines(path):
        yield _parse(line, f"{path}, line {number}")


def _parse(line: str, where: str) -> Transcript:
    try:
        return msgspec.json.decode(line, type=Transcript)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{where} is not a transcript: {error}") from None
