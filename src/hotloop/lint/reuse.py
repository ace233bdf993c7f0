"""What a prefix cache would have known: all prompts so far as a tree of parts, and how far a new one follows it.

A model of a cache that never forgets, whoever asked. Bounded: beyond so many characters it begins anew.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hotloop.lint.change import Change, count_common
from hotloop.lint.meter import Scale
from hotloop.lint.parts import Part
from hotloop.lint.requests import LintedRequest

_MAX_CHARS = 256_000_000
_MAX_SIBLINGS = 64
_ROOT = 0


class Reach(NamedTuple):
    """How far a prompt is known: whole parts, and characters of the next."""

    num_parts: int
    num_chars: int = 0


class Seen:
    def __init__(self) -> None:
        self._begin()

    def add(self, parts: Iterable[Part]) -> None:
        if self._num_chars > _MAX_CHARS:
            self._begin()
        node = _ROOT
        for part in parts:
            following = self._children[node]
            if part.key not in following:
                self._num_nodes += 1
                self._num_chars += len(part.text)
                following[part.key] = self._num_nodes
            node = following[part.key]

    def reach(self, parts: Sequence[Part]) -> Reach:
        node = _ROOT
        for i, part in enumerate(parts):
            following = self._children.get(node, {})
            if part.key not in following:
                latest = [*following][-_MAX_SIBLINGS:]
                like = (key[3] for key in latest if key[:2] == part.key[:2])
                return Reach(i, max((count_common(text, part.text) for text in like), default=0))
            node = following[part.key]
        return Reach(len(parts))

    def _begin(self) -> None:
        self._children: defaultdict[int, dict[tuple[str, ...], int]] = defaultdict(dict)
        self._num_nodes = 0
        self._num_chars = 0


def count_lost(before: LintedRequest, now: LintedRequest, changes: Sequence[Change], reach: Reach, scale: Scale) -> int:
    """Tokens behind what a cache could find that the request before had too, its answer included."""
    known = Counter(part.key for part in (*before.parts, *before.answer.parts))
    edits = {change.position: change for change in changes if change.kind == "edited"}
    num_lost = 0
    for i, part in enumerate(now.parts):
        is_known = known[part.key] > 0
        known[part.key] -= is_known
        if i < reach.num_parts:
            continue
        begin = reach.num_chars if i == reach.num_parts else 0
        if is_known and not begin:
            num_lost += scale.part_tokens(part)
        elif is_known:
            num_lost += scale.tokens(part.text[begin:])
        elif i in edits:
            num_lost += _kept_tokens(edits[i], begin, scale)
    return num_lost


def _kept_tokens(change: Change, begin: int, scale: Scale) -> int:
    """What an edited part has in common with what it was, from a character on."""
    text = change.part.text
    if change.is_same_value:
        return scale.tokens(text[begin:])
    around = scale.tokens(text[begin : change.begin]) + scale.tokens(text[max(begin, change.end) :])
    return around + scale.tokens(_lines_in_common(change))


def _lines_in_common(change: Change) -> str:
    """Where a text changed in several places, the lines between them are as they were."""
    old = Counter(change.old_words.splitlines(keepends=True))
    new = Counter(change.new_words.splitlines(keepends=True))
    return "".join((old & new).elements())
