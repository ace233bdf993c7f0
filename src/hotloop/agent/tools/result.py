"""What a tool returned, as text for the model.

A result is not to be trusted: it may be megabytes, bytes that are no text, or something JSON has no word for. What is
too large is cut before it is converted, so that no copy of the whole is made. Every cut leaves out the middle, since
the beginning and the end usually say most, and says how much that was.
"""

import dataclasses
import re
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sized
from contextlib import aclosing
from itertools import chain
from typing import Any, NamedTuple

import pydantic_core

from hotloop.agent.conversation import max_bytes
from hotloop.core.message import Attachment

MAX_CHARS = 100_000
"""Most characters of one result that a model is given; more is cut in the middle, and said so."""

_MAX_VALUE_CHARS = 1 << 20  # about as many of a value are written as JSON before that is cut
_MAX_ITEM_CHARS = _MAX_VALUE_CHARS // 2  # of one whose items come one by one: what was left out of it stays the last
_VALUE_CHARS = 8  # what a number is taken to be, or what is around a text or a list
_MARKERS = [  # in a text, and in a text in JSON; two patterns, as one for both is searched for far more slowly
    re.compile(rf"{newline}\[\.\.\. ([0-9]{{1,15}}) (characters|bytes) left out \.\.\.\]{newline}")
    for newline in (r"\n", r"\\n")
]
_MORE = "[... more left out ...]"
_MARKER_BYTES = 128  # room for two of them, with any number; a text that was cut may leave as much of its room


def render_result(value: Any) -> str:
    """What a tool gave, as the model reads it, with the middle of a long one left out."""
    return render_cut(value)[0]


def render_cut(value: Any) -> tuple[str, int]:
    """What a tool gave: text as it is, anything else as JSON; and how many characters were left out, see `cut`."""
    if value is None:
        return "done", 0
    if isinstance(value, str | bytes | bytearray | memoryview):
        return _read_text(value, MAX_CHARS)
    data = pydantic_core.to_json(_Room(_MAX_VALUE_CHARS).fit(value), fallback=str, inf_nan_mode="constants")
    return cut(data.decode("utf-8", "replace"))


class Given(NamedTuple):
    """What a tool gave, and the images and files that were in it."""

    value: Any
    attachments: tuple[Attachment, ...] = ()


def read_items(value: Any) -> Any:
    """A value whose iterators are lists, as far as there is room for them."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    has_iterator = isinstance(value, Iterator) or any(isinstance(part, Iterator) for part in parts)
    return _Room(_MAX_ITEM_CHARS).fit(value) if has_iterator else value


async def read_async_items(items: AsyncGenerator[Any, None]) -> list[Any]:
    """The same of what comes asynchronously."""
    room, read = _Room(_MAX_ITEM_CHARS), list[Any]()
    async with aclosing(items):
        async for item in items:
            if room.is_full:
                read.append(_MORE)
                break
            read.append(room.fit(item))
    return read


def take_attachments(value: Any) -> Given:
    """Images and files are found where a tool gives one, or a list."""
    if isinstance(value, Given):
        return value
    parts = [value] if isinstance(value, Attachment) else value
    if not isinstance(parts, list | tuple) or not any(isinstance(part, Attachment) for part in parts):
        return Given(value)
    rest = [str(part) if isinstance(part, Attachment) else part for part in parts]
    attachments = tuple(part for part in parts if isinstance(part, Attachment))
    return Given("\n".join(rest) if all(isinstance(part, str) for part in rest) else rest, attachments)


def cut(text: str, max_chars: int = MAX_CHARS) -> tuple[str, int]:
    """A text that is too long, without its middle, and how many characters were left out, by earlier cuts, too."""
    if len(text) <= max_chars:
        return text, 0
    half = _half(max_chars)
    return _leave_out(text, text[:half], text[len(text) - half :])


def cut_to_tokens(text: str, max_tokens: int) -> tuple[str, int]:
    """The same for a text of at most so many tokens, as they are estimated."""
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes(max_tokens):
        return text, 0
    half = _half(max_bytes(max_tokens))
    return _leave_out(text, data[:half].decode(errors="ignore"), data[len(data) - half :].decode(errors="ignore"))


def _half(size: int) -> int:
    """How much to keep of each end, so that there is room for the marker between."""
    return max(size - _MARKER_BYTES, 0) // 2


def _leave_out(text: str, head: str, tail: str) -> tuple[str, int]:
    """Markers of earlier cuts that are in the middle are added up. It may be huge, so no copy of it is made."""
    start, end = len(head), len(text) - len(tail)
    left_out = Counter(characters=end - start)
    for marker in _find_markers(text, start, end):
        left_out["characters"] -= len(marker[0])
        left_out[marker[2]] += int(marker[1])
    shorter = head + "".join(_mark(count, unit) for unit, count in left_out.items()) + tail
    markers = _find_markers(shorter, 0, len(shorter))
    return shorter, sum(int(marker[1]) for marker in markers if marker[2] == "characters")


def _find_markers(text: str, start: int, end: int) -> Iterator[re.Match[str]]:
    return chain.from_iterable(pattern.finditer(text, start, end) for pattern in _MARKERS)


def _mark(count: int, unit: str) -> str:
    return f"\n[... {count} {unit} left out ...]\n"


def _read_text(value: str | bytes | bytearray | memoryview, max_chars: int) -> tuple[str, int]:
    if isinstance(value, str):
        text, num_cut = cut(value, max_chars)
        # A lone surrogate cannot be sent.
        return text[:] if text.isascii() else text.encode("utf-8", "replace").decode(), num_cut
    view = memoryview(value)
    view = view.cast("B") if view.contiguous else memoryview(view.tobytes())
    if len(view) <= 8 * max_chars:
        return cut(str(view, "utf-8", "replace"), max_chars)
    half = _half(max_chars)
    head, tail = str(view[:half], "utf-8", "replace"), str(view[len(view) - half :], "utf-8", "replace")
    return head + _mark(len(view) - 2 * half, "bytes") + tail, 0  # how many characters these are is not known


class _Room:
    """How many characters of a value may still be taken. What there is no room for is left out, and that is said."""

    def __init__(self, num_chars: int) -> None:
        self._left = num_chars

    def fit(self, value: Any) -> Any:
        """A value of plain types that JSON writes as it would the one given."""
        self._left -= _VALUE_CHARS
        if isinstance(value, str | bytes | bytearray | memoryview):
            text, _ = _read_text(value, max(self._left, 0))
            self._left -= len(text)
            return text
        if value is None or isinstance(value, int | float):
            return value
        if isinstance(value, dict):
            return dict(self._pairs(value))
        if isinstance(value, list | tuple | set | frozenset | deque | Iterator):
            return list(self._items(value))
        if hasattr(type(value), "__pydantic_serializer__"):  # it has its own way of being written, and secrets maybe
            return self.fit(pydantic_core.to_jsonable_python(value, fallback=str, inf_nan_mode="constants"))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.fit({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
        return value

    @property
    def is_full(self) -> bool:
        return self._left <= _MARKER_BYTES

    def _items(self, items: Iterable[Any]) -> Iterator[Any]:
        for number, item in enumerate(items):
            if self.is_full:
                yield self._tell(items, number)
                return
            yield self.fit(item)

    def _pairs(self, pairs: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        for number, (key, value) in enumerate(pairs.items()):
            if self.is_full:
                yield "...", self._tell(pairs, number)
                return
            yield self.fit(key) if isinstance(key, str) else key, self.fit(value)

    def _tell(self, items: Iterable[Any], num_taken: int) -> str:
        return f"[... {len(items) - num_taken} more left out ...]" if isinstance(items, Sized) else _MORE
