"""A conversation as values: what every wire format is parsed into, and every prompt is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made: `arguments` is the JSON text exactly as it was written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Thought:
    """What a model thought before it spoke: for whoever wrote it, to be given back just as it came or not at all."""

    text: str
    signature: str = ""
    is_sealed: bool = False
    """Whether the text can be read by nobody else."""
    maker: str = ""
    """The API whose maker signed or sealed it: no other takes it back."""
    summary: str = ""
    """What its maker shows of one whose text it keeps to itself."""

    @property
    def shown(self) -> str:
        return "" if self.is_sealed else self.text or self.summary


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. Content is plain text; the wire's content parts are joined before they get here."""

    role: Role
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    thoughts: tuple[Thought, ...] = ()
    note: str = ""
    """What the server has to say behind it: a turn of the system's, in whatever words the template has for that."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` is its JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_strict: bool = True
    """Whether its arguments must follow the schema; if not, any JSON object will do."""
