"""A conversation as values: what every wire format is parsed into, and every prompt is made from."""

import base64
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotloop.core.errors import ConfigError
from hotloop.core.files import named_errors

MAX_ATTACHMENT_CHARS = 32 << 20
_TEXTS = ("application/json", "application/xml", "application/x-yaml", "application/toml")

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
class Attachment:
    """An image or a file beside a text: its bytes in a data URL, or the address of an image."""

    url: str
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.url) > MAX_ATTACHMENT_CHARS:
            raise ConfigError(f"an attachment of more than {MAX_ATTACHMENT_CHARS >> 20} MiB, as base64")
        if self.url.startswith("data:"):
            if not self.media_type or not self.url.partition(",")[0].endswith(";base64"):
                raise ConfigError("the data URL of an attachment must have a media type and base64")
        elif not self.url.startswith(("https://", "http://")):
            raise ConfigError("an attachment has a data URL or the address of an image; Attachment.read reads a file")

    @classmethod
    def read(cls, path: Path | str) -> "Attachment":
        """A file, whose name says what it is."""
        found, _ = mimetypes.guess_type(str(path))
        if found is None:
            raise ConfigError(f"the name of {path} does not say what it is: use Attachment.of(data, media_type)")
        with named_errors("read", Path(path)):
            return cls.of(Path(path).read_bytes(), found, Path(path).name)

    @classmethod
    def of(cls, data: bytes, media_type: str, name: str = "") -> "Attachment":
        return cls(f"data:{media_type};base64,{base64.b64encode(data).decode()}", name)

    @property
    def media_type(self) -> str:
        """Empty where only an address is known."""
        return self.url[5:].partition(",")[0].partition(";")[0] if self.url.startswith("data:") else ""

    @property
    def is_image(self) -> bool:
        return not self.media_type or self.media_type.startswith("image/")

    @property
    def text(self) -> str | None:
        """What a text file says; None of any other."""
        is_text = self.media_type.startswith("text/") or self.media_type in _TEXTS
        return base64.b64decode(self.url.partition(",")[2]).decode("utf-8", "replace") if is_text else None

    def __str__(self) -> str:
        return f"[{self.name or self.media_type or self.url}, attached]"


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
    attachments: tuple[Attachment, ...] = ()
    """Of the user, or of a tool's result."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` is its JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_strict: bool = True
    """Whether its arguments must follow the schema; if not, any JSON object will do."""
