"""How much of one history is in another, and what a request goes on from: signs of which conversation it is of.

Texts are compared by lines and sentences, so that one that was edited is still much the same.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile

from hotloop.lint.parts import Part

_SENTENCES = re.compile(r"\s*\n\s*|(?<=[.!?,;:])\s+")


class Texts:
    """Texts in order, to be compared with many others."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    def begins(self, other: "Texts") -> bool:
        """Whether the other goes on where this ends."""
        pairs = zip(self._parts, other._parts, strict=False)
        return 0 < len(self) <= len(other) and all(one.key == two.key for one, two in pairs)

    def share(self, other: "Texts") -> float:
        """Of the shorter one, how much is in the longer."""
        num_chars = min(self._num_chars, other._num_chars)
        return self._count_shared(other) / num_chars if num_chars else 0.0

    def likeness(self, other: "Texts") -> float:
        """From 0 to 1, how much of both is the same; what they begin with counts twice."""
        num_chars = self._num_chars + other._num_chars
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(self._pieces, other._pieces, strict=False))
        num_leading = sum(len(piece) for (_, piece), _ in pairs)
        return (self._count_shared(other) + num_leading) / num_chars if num_chars else 0.0

    def _count_shared(self, other: "Texts") -> int:
        return sum(len(piece) for _, piece in self._pieces.keys() & other._pieces.keys())

    @cached_property
    def _pieces(self) -> dict[tuple[str, str], None]:
        """In the order in which they first come."""
        pieces = ((part.role, piece) for part in self._parts for piece in _SENTENCES.split(part.text))
        return {key: None for key in pieces if key[1]}

    @cached_property
    def _num_chars(self) -> int:
        return sum(len(piece) for _, piece in self._pieces)


def split_newest(history: Sequence[Part]) -> tuple[Sequence[Part], Sequence[Part]]:
    """What came before the assistant last spoke, and what it said then."""
    end = next((i + 1 for i in reversed(range(len(history))) if history[i].role == "assistant"), 0)
    begin = next((i + 1 for i in reversed(range(end)) if history[i].role != "assistant"), 0)
    return history[:begin], history[begin:end]


def is_same(one: Sequence[Part], other: Sequence[Part]) -> bool:
    """Nothing, and no words, are not the same as nothing."""
    return any(part.text for part in one) and [part.key for part in one] == [part.key for part in other]


def count_chars(parts: Sequence[Part]) -> int:
    return sum(len(part.text) for part in parts)
