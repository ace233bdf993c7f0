"""What turns are made of. A part remembers where in a body it came from, for error messages; equality ignores that."""

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from hotloop.core.errors import RequestError
from hotloop.core.message import Thought
from hotloop.wire.field import Field, Json

Api = Literal["chat", "responses", "messages"]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    mark: Json | None = None
    """A cache breakpoint behind this part, as Anthropic's `cache_control` has it."""
    at: Field | None = field(default=None, compare=False, repr=False)

    def marked(self, mark: Json | None) -> Self:
        return replace(self, mark=mark)

    def refuse(self, reason: str) -> RequestError:
        place = self.at.place if self.at else ""
        return RequestError(f"{place}: {reason}" if place else reason, param=place or None)


@dataclass(frozen=True, slots=True)
class Text(_Placed):
    text: str
    is_refusal: bool = False


@dataclass(frozen=True, slots=True)
class Image(_Placed):
    """`url` is an address or a data URL."""

    url: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class File(_Placed):
    """A document: a data URL, or its plain text."""

    url: str = ""
    text: str = ""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Call(_Placed):
    """`arguments` is a JSON text; a custom tool's is an object with its one text, see `wrap_input`."""

    id: str
    name: str
    arguments: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def flat_name(self) -> str:
        return flat_name(self.name, self.namespace)


@dataclass(frozen=True, slots=True)
class Opaque(_Placed):
    """JSON that is kept as it came, since only its own API means something by it."""

    api: Api
    kind: str
    value: Json
    text: str | None = None
    """The same in words, if it can be said in words."""
    is_private: bool = False
    """Whether it is a note of a model or a hosted tool to itself, which others can do without."""


@dataclass(frozen=True, slots=True)
class Result(_Placed):
    """What a tool returned. It stands in a turn of the user."""

    call_id: str
    parts: "tuple[Part, ...]"
    is_plain: bool = True
    """Whether it was given as a bare text rather than as a list of parts."""
    is_error: bool = False
    is_custom: bool = False

    @property
    def text(self) -> str:
        """All of it that is text. APIs without a word for a failed call find it in the text."""
        text = "\n".join(part_text for part in self.parts if (part_text := text_of(part)) is not None)
        is_silent = self.is_error and "error" not in text[:32].lower()
        return f"Error: {text}" if is_silent else text


Part = Text | Image | File | Thought | Call | Result | Opaque


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. An assistant's has its thoughts, then its text, then its calls, unless its API has another order."""

    role: Role
    parts: tuple[Part, ...]
    is_plain: bool = False
    """Whether its content was a bare text rather than a list of parts."""
    name: str | None = None
    at: Field | None = field(default=None, compare=False, repr=False)

    @property
    def texts(self) -> list[str]:
        return [part.text for part in self.parts if isinstance(part, Text)]


def text_of(part: Part) -> str | None:
    """A part in words; None if it has none."""
    match part:
        case Text():
            return part.text
        case File(text=text) if text:
            return f"{part.name}\n{text}" if part.name else text
        case Opaque():
            return part.text
    return None


def flat_name(name: str, namespace: str | None) -> str:
    """What a tool is called where there are no namespaces: two of them may have tools of the same name."""
    return f"{namespace}__{name}" if namespace else name
