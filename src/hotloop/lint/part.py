"""A request as the texts its prompt is made of, in the order in which a model reads them.

Whatever API a body is for, it becomes the same parts; `path` says where in the body each came from. Two parts are the
same if kind, role, label and text are: where they stand does not matter.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
Kind = Literal["system", "tool", "text", "thinking", "call", "result"]

PICTURE = "picture"
"""The label of what is no text: its text is only a name for it."""


@dataclass(frozen=True, slots=True)
class Part:
    """`label` is the name of a tool or of the tool called. `message` counts messages, or items of an input."""

    kind: Kind
    path: str
    text: str
    role: str = ""
    label: str = ""
    message: int | None = None
    has_breakpoint: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.kind, self.role, self.label, self.text


def text_of(value: Any) -> str:
    """JSON as it most likely stands in a prompt, its keys in the order in which they came."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def picture_of(value: Any) -> str:
    """A short name for what is no text, such as an image: the same for the same, whether or not nulls are written."""
    data = json.dumps(_without_nulls(value), sort_keys=True).encode(errors="backslashreplace")
    return f"[{hashlib.sha256(data).hexdigest()[:16]}]"


def mapping(value: Any) -> Json:
    """The value if it is an object, else an empty one: what a stranger's body has in the wrong place is passed over."""
    return value if isinstance(value, dict) else {}


def listing(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def strip_breakpoint(value: Json) -> Json:
    return {name: inner for name, inner in value.items() if name != "cache_control"}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
