"""What turns are made of. A part remembers where in a body it came from, for error messages; equality ignores that."""

import base64
import binascii
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Self

import msgspec

from hotloop.core.errors import RequestError
from hotloop.core.message import Thought
from hotloop.wire.field import Field, Json, read_text

Api = Literal["chat", "responses", "messages"]
Role = Literal["system", "user", "assistant"]

# A maker takes back only what it has signed or sealed itself. Where a thought is given out in the other's shape, its
# signature says whose it is, so that it finds its way back.
_MESSAGES, _RESPONSES = "messages:", "responses:"
# What hotloop itself gives out in place of a signature or of sealed content: the text, for clients that return no more.
_OWN_TEXT = "hotloop:text:"


class _Placed(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A struct, and no dataclass: histories have thousands of parts, and this is made in a fifth of the time."""

    at: Field | None = None

    def __eq__(self, other: object) -> bool:
        names = (name for name in self.__struct_fields__ if name != "at")
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    @property
    def place(self) -> str:
        return self.at.place if self.at else ""

    def refuse(self, reason: str) -> RequestError:
        return RequestError(f"{self.place}: {reason}" if self.place else reason, param=self.place or None)


class _Markable(_Placed, frozen=True, eq=False, kw_only=True):
    mark: Json | None = None
    """A cache breakpoint behind this part, as Anthropic's `cache_control` has it."""

    def marked(self, mark: Json | None) -> Self:
        return msgspec.structs.replace(self, mark=mark)


class Text(_Markable, frozen=True, eq=False):
    text: str
    is_refusal: bool = False


class Image(_Markable, frozen=True, eq=False):
    url: str
    detail: str | None = None


class File(_Markable, frozen=True, eq=False):
    """A document: a data URL, or its plain text."""

    url: str = ""
    text: str = ""
    name: str | None = None


class Call(_Markable, frozen=True, eq=False):
    """`arguments` is a JSON text; a custom tool's is an object with its one text, see `wrap_input`."""

    id: str
    name: str
    arguments: str
    namespace: str | None = None
    is_custom: bool = False
    item: str = ""
    """The type of its item, of one of OpenAI's built-in tools; see `CALL_ITEMS`."""

    @property
    def flat_name(self) -> str:
        return flat_name(self.name, self.namespace)


class Opaque(_Markable, frozen=True, eq=False):
    """JSON that is kept as it came, since only its own API means something by it."""

    api: Api
    kind: str
    value: Json
    text: str | None = None
    """The same in words, if it can be said in words."""
    is_private: bool = False
    """Whether it is a note of a model or a hosted tool to itself, which others can do without."""


class ToolChange(Opaque, frozen=True, eq=False):
    """Tools, by their flat names, that may be called from here on, or may no longer be. What they are is among the
    tools of the request, be it that its API lists them or that this part defines them."""

    names: tuple[str, ...] = ()
    is_removal: bool = False
    is_definition: bool = False
    """Whether it defines them itself."""
    is_private: bool = True

    @property
    def words(self) -> str:
        return f"Tools {'removed' if self.is_removal else 'loaded'}: {', '.join(self.names) or 'none'}"


class ToolResult(_Markable, frozen=True, eq=False):
    """What a tool returned. It stands in a turn of the user."""

    call_id: str
    parts: "tuple[Part, ...]"
    is_plain: bool = True
    """Whether it was given as a bare text rather than as a list of parts."""
    is_error: bool = False
    is_custom: bool = False
    item: Json | None = None
    """As it came, of one of OpenAI's built-in tools."""

    @property
    def text(self) -> str:
        """All of it that is text. APIs without a word for a failed call find it in the text."""
        text = "\n".join(part_text for part in self.parts if (part_text := text_of(part)) is not None)
        is_silent = self.is_error and "error" not in text[:32].lower()
        return f"Error: {text}" if is_silent else text


Part = Text | Image | File | Thought | Call | ToolResult | Opaque


class Turn(_Placed, frozen=True, eq=False):
    """One message. An assistant's has its thoughts, then its text, then its calls, unless its API has another order."""

    role: Role
    parts: tuple[Part, ...]
    is_plain: bool = False
    """Whether its content was a bare text rather than a list of parts."""
    name: str | None = None

    @property
    def texts(self) -> list[str]:
        return [part.text for part in self.parts if isinstance(part, Text)]


def parse_content(content: Field | None, parse_part: Callable[[Field], Part]) -> tuple[Part, ...]:
    if content is None:
        return ()
    if content.is_text:
        return (Text(content.text(), at=content),)
    return tuple(parse_part(part) for part in content.each())


def text_of(part: Part) -> str | None:
    match part:
        case Text():
            return part.text
        case File(text=text) if text:
            return f"{part.name}\n{text}" if part.name else text
        case ToolChange():
            return part.words
        case Opaque():
            return part.text
    return None


def flat_name(name: str, namespace: str | None) -> str:
    """What a tool is called where there are no namespaces: two of them may have tools of the same name."""
    return f"{namespace}__{name}" if namespace else name


def is_signed(thought: Thought) -> bool:
    return bool(thought.maker) and (thought.is_sealed or bool(thought.signature))


def parse_block(block: Field) -> Thought:
    match block.kind():
        case "redacted_thinking":
            return Thought(block.need("data").text(), is_sealed=True, maker="messages")
        case "thinking":
            return sign_thought(block.need("thinking").text(), read_text(block, "signature") or "")
    raise block.need("type").refuse("expected thinking or redacted_thinking")


def seal_text(text: str) -> str:
    """A text as something that clients return as it is. It is encoded, and no secret."""
    return _OWN_TEXT + base64.b64encode(text.encode()).decode()


def unseal_text(sealed: str) -> str | None:
    """None if it was not sealed here."""
    if not sealed.startswith(_OWN_TEXT):
        return None
    try:
        return base64.b64decode(sealed.removeprefix(_OWN_TEXT), validate=True).decode()
    except (binascii.Error, UnicodeError):
        return None


def carry_text(thought: Thought) -> Thought:
    """A thought that comes back from clients which return no more of it than its signature."""
    if thought.is_sealed or thought.maker == "responses":
        return thought
    signature = f":{thought.signature}" if thought.maker else ""
    return replace(thought, signature=seal_text(thought.text) + signature)


def omit_text(thought: Thought) -> Thought:
    """A thought that is not shown, whose signature brings it back."""
    if thought.is_sealed:
        return thought
    if thought.maker == "responses" and thought.signature:
        return replace(thought, text="", summary="")
    return Thought("", seal_text(thought.text), maker="messages")


def sign_thought(text: str, signature: str) -> Thought:
    if (own := unseal_text(signature)) is not None:
        return Thought(own)
    if signature.startswith(_RESPONSES):
        return Thought("", signature.removeprefix(_RESPONSES), maker="responses", summary=text)
    return Thought(text, signature, maker="messages" if signature else "")


def render_block(thought: Thought) -> Json:
    if thought.is_sealed:
        return {"type": "redacted_thinking", "data": thought.text}
    signature = _RESPONSES + thought.signature if thought.maker == "responses" else thought.signature
    return {"type": "thinking", "thinking": thought.shown, "signature": signature}


def open_thought(text: str, summary: str, sealed: str) -> Thought:
    """A reasoning item; `sealed` is its `encrypted_content`."""
    if sealed.startswith(f"{_MESSAGES}:"):
        return Thought(sealed.removeprefix(f"{_MESSAGES}:"), is_sealed=True, maker="messages")
    if sealed.startswith(_MESSAGES):
        signature = sealed.removeprefix(_MESSAGES)
        carried, _, rest = signature.removeprefix(_OWN_TEXT).partition(":")
        if signature.startswith(_OWN_TEXT) and (own := unseal_text(_OWN_TEXT + carried)) is not None:
            return Thought(own, rest, maker="messages")
        return Thought(text, signature, maker="messages", summary=summary)
    if (own := unseal_text(sealed)) is not None:
        return Thought(own)
    is_own = bool(sealed or not text)
    return Thought(text, sealed, maker="responses" if is_own else "", summary=summary)


def seal_thought(thought: Thought) -> Json:
    """The `encrypted_content` of a reasoning item, if it has any."""
    sealed = thought.signature
    if thought.maker == "messages":
        sealed = f"{_MESSAGES}:{thought.text}" if thought.is_sealed else _MESSAGES + sealed if sealed else ""
    return {"encrypted_content": sealed} if sealed else {}
