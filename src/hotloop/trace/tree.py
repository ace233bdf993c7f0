"""The spans of one trace as a tree, on one clock.

Whose parent is not here is a root or, while a run goes on, a child of that run. A span whose process has another clock
than its parent's, so that it would begin outside of it, is moved into the middle of it, with all below.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from hotloop.trace import names
from hotloop.trace.span import Span

_SKEW_NS = 1_000_000  # clocks of one machine agree better than this

_CALLS = frozenset({names.CHAT, names.ROUTE, names.REQUEST})

_MAX_MOMENT = 2**63
_MAX_COUNT = 2**53  # more than this is in no run, only in a hand-made file


@dataclass(slots=True, eq=False)
class SpanNode:
    span: Span
    parent: "SpanNode | None" = None
    children: list["SpanNode"] = field(default_factory=list)
    shift_ns: int = 0
    is_prefill_only: bool = False  # whether it is part of what is only prefilled ahead
    is_served: bool = False  # whether a server of ours tells what it did, here or below

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def begin(self) -> int:
        return self.span.start_ns + self.shift_ns

    @property
    def end(self) -> int:
        return max(self.span.end_ns, self.span.start_ns) + self.shift_ns

    def moment(self, name: str) -> int | None:
        """An attribute that is a moment, on the common clock."""
        value = self.span.attributes.get(name)
        return value + self.shift_ns if isinstance(value, int) and 0 <= value < _MAX_MOMENT else None

    def count(self, name: str) -> int:
        """An attribute that is a number of something; whatever else stands there is none."""
        value = self.span.attributes.get(name)
        return value if isinstance(value, int) and 0 < value < _MAX_COUNT else 0

    def amount(self, name: str) -> float:
        """The same of what need not be whole, such as money."""
        value = self.span.attributes.get(name)
        return float(value) if isinstance(value, int | float) and 0 < value < _MAX_COUNT else 0.0

    def causes(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Why tokens were recomputed: each cause that says so, and the words where the prompts part, if it has any."""
        causes, words = (self.span.attributes.get(name) for name in (names.CAUSES, names.CONTENT_WORDS))
        told = words if isinstance(words, list) else []
        for i, cause in enumerate(causes if isinstance(causes, list) else ()):
            match cause:
                case {"reason": str(), "num_tokens": int(num_tokens)} if 0 < num_tokens < _MAX_COUNT:
                    yield cause, told[i] if i < len(told) and isinstance(told[i], dict) else {}

    def walk(self) -> Iterator["SpanNode"]:
        """This one and all below, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def calls(self) -> Iterator["SpanNode"]:
        """The questions to a model in here, each as whoever asked saw it; not those of runs within."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node.name in _CALLS:
                yield node
            elif node is self or node.name not in (names.RUN, names.TURN):
                waiting.extend(reversed(node.children))


def is_open(span: Span) -> bool:
    """Whether it only tells that something began: a run, of which it is not known how it ended."""
    return span.name == names.RUN and names.END not in span.attributes


def as_of_now(spans: Iterable[Span]) -> list[Span]:
    """Each of a trace once, as they began. A run that goes on lasts, so far, until the last that is known of it."""
    known = {span.span_id: span for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns, span.span_id))}
    last_ns = max((span.end_ns for span in known.values()), default=0)
    return [replace(span, end_ns=max(last_ns, span.end_ns)) if is_open(span) else span for span in known.values()]


def build_tree(spans: Iterable[Span]) -> list[SpanNode]:
    """The roots, as they began."""
    nodes = {span.span_id: SpanNode(span) for span in as_of_now(spans)}
    roots = _link(nodes)
    for root in roots:
        _settle(root)
    return sorted(roots, key=lambda node: (node.begin, node.span.span_id))


def _link(nodes: dict[str, SpanNode]) -> list[SpanNode]:
    roots = []
    going_on = next((node for node in nodes.values() if node.span.is_root and is_open(node.span)), None)
    for node in nodes.values():
        parent = nodes.get(node.span.parent_id or "") or (None if node.span.is_root else going_on)
        if parent is None or parent is node:
            roots.append(node)
        else:
            parent.children.append(node)
    reached = {id(node) for root in roots for node in root.walk()}
    for node in nodes.values():  # what is left goes round in circles, which only a made-up file has
        if id(node) not in reached:
            nodes[node.span.parent_id or ""].children.remove(node)
            roots.append(node)
            reached |= {id(each) for each in node.walk()}
    return roots


def _settle(root: SpanNode) -> None:
    """Put everything below on the root's clock, and tell the children what they are part of and the parents of whom."""
    in_order = list(root.walk())
    for node in in_order:
        node.is_prefill_only |= bool(node.span.attributes.get(names.IS_PREFILL_ONLY))
        for child in node.children:
            child.parent = node
            child.is_prefill_only = node.is_prefill_only
            child.shift_ns = _shift_ns(child, node)
    for node in reversed(in_order):
        node.is_served = node.name == names.REQUEST or any(child.is_served for child in node.children)


def _shift_ns(child: SpanNode, parent: SpanNode) -> int:
    begin = child.span.start_ns + parent.shift_ns
    if child.span.service == parent.span.service or parent.begin - _SKEW_NS <= begin <= parent.end:
        return parent.shift_ns
    num_spare = max((parent.end - parent.begin) - (child.end - child.begin), 0)
    return parent.begin + num_spare // 2 - child.span.start_ns


def length_of(intervals: Iterable[tuple[int, int]]) -> int:
    """How long at least one of them lasts."""
    return sum(end - begin for begin, end in union(intervals))


def union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same time, in intervals that are apart, in order."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > begin:
            merged.append((begin, end))
    return merged


def clip(intervals: Sequence[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    """What of them lies between two moments."""
    return [(max(one, begin), min(other, end)) for one, other in intervals if one < end and other > begin]


def overlap_of(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> int:
    return length_of(one) + length_of(other) - length_of([*one, *other])
