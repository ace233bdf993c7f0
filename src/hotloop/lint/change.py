"""What differs between a request and the one it should have continued, part by part.

    before   [ system | tools | history ........ ] + answer
    now      [ system | tools | history ........ | answer | what is new ]

What only comes after the end of the one before is no change. Pure; knows no rule and no token.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any, Literal

from hotloop.lint.parts import Part
from hotloop.lint.requests import LintedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`position` counts parts of the request now. An edit is `begin` to `end` in the new text, `begin` to `old_end` in
    the old one; `is_tail`: nothing of the request before came after it.
    """

    kind: Literal["edited", "inserted", "removed", "moved"]
    position: int
    old: Part | None = None
    new: Part | None = None
    begin: int = 0
    end: int = 0
    old_end: int = 0
    is_tail: bool = False

    @property
    def part(self) -> Part:
        part = self.new or self.old
        assert part
        return part

    @property
    def old_words(self) -> str:
        return self.old.text[self.begin : self.old_end] if self.old else ""

    @property
    def new_words(self) -> str:
        return self.new.text[self.begin : self.end] if self.new else ""

    @property
    def is_same_value(self) -> bool:
        """Whether old and new are the same JSON, written otherwise."""
        return bool(self.old and self.new) and is_same_json(self.old.text, self.new.text)  # type: ignore[union-attr]


def find_changes(before: LintedRequest, now: LintedRequest, *, is_kin: bool = False) -> tuple[Change, ...]:
    """In the order of the prompt. Of a request that is only kin, the history is another."""
    positions = {id(part): i for i, part in enumerate(now.parts)}
    found = [*_align(before.system, now.system, positions, can_grow=False), *_tool_changes(before, now, positions)]
    if not is_kin and not now.is_chained and not before.is_chained:
        found += _align(before.continued, now.history, positions, can_grow=True)
    return tuple(sorted(found, key=lambda change: change.position))


def count_common(one: str, other: str) -> int:
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    return bisect_left(range(size), True, key=lambda i: one[: i + 1] != other[: i + 1])


def is_same_json(one: str, other: str) -> bool:
    try:
        return bool(_loose(json.loads(one)) == _loose(json.loads(other)))
    except (ValueError, RecursionError):
        return False


def edit(old: Part, new: Part, position: int) -> Change:
    begin = count_common(old.text, new.text)
    num_after = count_common(old.text[begin:][::-1], new.text[begin:][::-1])
    ends = len(new.text) - num_after, len(old.text) - num_after
    return Change(kind="edited", position=position, old=old, new=new, begin=begin, end=ends[0], old_end=ends[1])


def _loose(value: Any) -> Any:
    """`required` is a set, whatever order it is written in."""
    if isinstance(value, list):
        return [_loose(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        name: sorted(map(str, part)) if name == "required" and isinstance(part, list) else _loose(part)
        for name, part in value.items()
    }


def _tool_changes(before: LintedRequest, now: LintedRequest, positions: dict[int, int]) -> Iterator[Change]:
    """Tools are known by their names; of those that both have, the first that is out of order has moved."""
    old = {tool.label: tool for tool in before.tools}
    new = {tool.label: tool for tool in now.tools}
    first = positions[id(now.tools[0])] if now.tools else len(now.system)
    for i, (name, tool) in enumerate(old.items()):
        if name not in new:
            yield Change(kind="removed", position=first + i, old=tool, old_end=len(tool.text))
    for name, tool in new.items():
        if name not in old:
            yield Change(kind="inserted", position=positions[id(tool)], new=tool, end=len(tool.text))
        elif tool.text != old[name].text:
            yield edit(old[name], tool, positions[id(tool)])
    was, is_ = ([name for name in names if name in old.keys() & new.keys()] for names in (old, new))
    moved = next((name for then, name in zip(was, is_, strict=True) if then != name), None)
    if moved is not None:
        tool = new[moved]
        yield Change(kind="moved", position=positions[id(tool)], old=old[moved], new=tool, end=len(tool.text))


def _align(old: Sequence[Part], new: Sequence[Part], positions: dict[int, int], *, can_grow: bool) -> Iterator[Change]:
    num_same = sum(1 for _ in takewhile(lambda pair: pair[0].key == pair[1].key, zip(old, new, strict=False)))
    old, new = old[num_same:], new[num_same:]
    if not old and (can_grow or not new):
        return
    ids: dict[tuple[str, ...], int] = {}
    then, now = ([ids.setdefault(part.key, len(ids)) for part in parts] for parts in (old, new))
    for tag, i, i_end, j, j_end in _opcodes(then, now):
        if tag != "equal":
            is_tail = can_grow and i_end == len(old)
            gap = positions[id(new[j])] if j < len(new) else positions[id(new[-1])] + 1 if new else len(positions)
            yield from _pair(old[i:i_end], new[j:j_end], positions, gap, is_tail=is_tail)


def _opcodes(then: Sequence[int], now: Sequence[int]) -> Sequence[tuple[str, int, int, int, int]]:
    """Where leaving out what came first explains as much, it was left out, however often the same words come again."""
    size, matcher = len(then), SequenceMatcher(None, then, now, autojunk=False)
    num_same = sum(block.size for block in matcher.get_matching_blocks())
    num_gone = next((k for k in range(1, size - num_same + 1) if [*then[k:]] == [*now[: size - k]]), None)
    if not num_same or num_gone is None:
        return matcher.get_opcodes()
    return [("delete", 0, num_gone, 0, 0), ("insert", size, size, size - num_gone, len(now))]


def _pair(
    old: Sequence[Part], new: Sequence[Part], positions: dict[int, int], gap: int, *, is_tail: bool
) -> Iterator[Change]:
    """Parts of the same kind in the same role are one that was edited; the others came, or went from the gap."""
    left = [*old]
    num_paired = max((i + 1 for i, part in enumerate(new) if _partner(part, left)), default=0)
    for i, part in enumerate(new):
        partner = _partner(part, left)
        position = positions[id(part)]
        if partner:
            left.remove(partner)
            yield edit(partner, part, position)
        elif not is_tail or i < num_paired:
            yield Change(kind="inserted", position=position, new=part, end=len(part.text))
    for part in left:
        yield Change(kind="removed", position=gap, old=part, old_end=len(part.text), is_tail=is_tail)


def _partner(part: Part, candidates: Sequence[Part]) -> Part | None:
    kin = (part.kind, part.role, part.label)
    return next((other for other in candidates if (other.kind, other.role, other.label) == kin), None)
