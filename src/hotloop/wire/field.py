"""What somebody sent, and where in the body it stands: every wrong type becomes one line that names the place.

Bodies are untrusted and only partly known, so they are walked rather than parsed into a shape that would lose the rest.
`null` always means "not given".
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, TypeVar

import msgspec

from hotloop.core.errors import RequestError

Json = dict[str, Any]
T = TypeVar("T")


class Field(msgspec.Struct, frozen=True, gc=False):
    """A value and its place; the body itself stands nowhere. There are many of these, so a place is put into words only
    when somebody asks for it."""

    value: Any
    within: "Field | None" = None
    name: str | int = ""

    @property
    def place(self) -> str:
        if self.within is None:
            return ""
        around = self.within.place
        if isinstance(self.name, int):
            return f"{around}[{self.name}]"
        return f"{around}.{self.name}" if around else self.name

    def get(self, name: str) -> "Field | None":
        value = (self.value if type(self.value) is dict else self.object()).get(name)
        return None if value is None else Field(value, self, name)

    def need_text(self, name: str) -> str:
        """As `need(name).text()`, but quicker where nothing is wrong."""
        value = (self.value if type(self.value) is dict else self.object()).get(name)
        return value if type(value) is str else self.need(name).text()

    def need(self, name: str) -> "Field":
        value = self.object().get(name)
        if value is None:
            place = Field(None, self, name).place
            raise RequestError(f"{place} is missing", param=place)
        return Field(value, self, name)

    def items(self, name: str) -> "list[Field]":
        found = self.get(name)
        return found.each() if found else []

    def each(self) -> "list[Field]":
        return [Field(value, self, i) for i, value in enumerate(self._expect(list, "a list"))]

    def object(self) -> Json:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return self.value

    def text(self) -> str:
        return self._expect(str, "a text")

    def flag(self) -> bool:
        return self._expect(bool, "true or false")

    def count(self, least: int = 0) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not least <= self.value < 2**31:
            raise self.refuse(f"expected a whole number from {least} to {2**31 - 1}")
        return self.value

    def number(self) -> float:
        return self.value if type(self.value) is int else self._expect(float, "a number")

    @property
    def is_text(self) -> bool:
        return isinstance(self.value, str)

    def kind(self) -> str:
        return self.need_text("type")

    def _expect(self, kind: type[T], expected: str) -> T:
        if not isinstance(self.value, kind):
            raise self.wrong(expected)
        return self.value

    def wrong(self, expected: str) -> RequestError:
        what = type(self.value).__name__
        return RequestError(f"{self.place or 'the body'}: expected {expected}, got {what}", param=self.place or None)

    def refuse(self, reason: str) -> RequestError:
        return RequestError(f"{self.place}: {reason}", param=self.place)


def read_text(body: Field | None, name: str) -> str | None:
    value = body.object().get(name) if body else None
    return value if value is None or type(value) is str else Field(value, body, name).text()


def read_choice(body: Field | None, name: str, values: Sequence[str]) -> str | None:
    value = read_text(body, name)
    if body and value is not None and value not in values:
        *first, last = values
        raise body.need(name).refuse(f"expected {', '.join(first)} or {last}, got {value!r:.60}")
    return value


def read_number(body: Field, name: str) -> float | None:
    found = body.get(name)
    return found.number() if found else None


def read_object(body: Field, name: str) -> Json | None:
    found = body.get(name)
    return found.object() if found else None


def read_flag(body: Field, name: str) -> bool | None:
    found = body.get(name)
    return found.flag() if found else None


def present(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


class Body(dict[str, Any]):
    """The fields of a body. It knows which of them were asked for, and so which are left."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self._read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        return super().get(name, default)

    def split_rest(self, own: Set[str]) -> tuple[Json, Json]:
        """What nobody asked for: the fields that mean something to the body's own API only, and those not known."""
        rest = {name: value for name, value in self.items() if value is not None and name not in self._read}
        unknown = {name: value for name, value in rest.items() if name not in own}
        return {name: value for name, value in rest.items() if name in own}, unknown
