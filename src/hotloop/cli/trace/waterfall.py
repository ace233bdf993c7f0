"""A run as rows over time: one row a span, all on one scale.

    turn 1          ───────────────────────────────    2.10 s
     model          ·░▒▒▒███▼██▼██                      950 ms *
     search                 ━━━━━━━━━━━━━━━━━━━━━━      1.50 s *
     weather           ┄┄┄┄┄┄┄┄┄━━━━━━                  1.04 s

What the server tells of an answer (queue, prefill, decode) is drawn into the client's row for it, and so is the moment
a tool begins. Knows nothing of stores; the account beside the picture is `trace_view`'s.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from rich.cells import set_cell_size
from rich.text import Text

from hotloop.cli.output import Bar, draw_bar, shorten
from hotloop.trace import names
from hotloop.trace.ledger import RunLedger
from hotloop.trace.tree import SpanNode

NETWORK, QUEUE, PREFILL, DECODE = ("·", "dim"), ("░", "yellow"), ("▒", "blue"), ("█", "cyan")
TOOL, FAILED, SPECULATIVE, FRAME = ("━", "green"), ("━", "red"), ("┄", "magenta"), ("─", "dim")
BEGINS, CRITICAL = ("▼", "bold green"), ("*", "bold red")
LEGEND = (
    (QUEUE, "queue"), (PREFILL, "prefill"), (DECODE, "decode"), (NETWORK, "network"), (BEGINS, "tool begins"),
    (TOOL, "tool"), (SPECULATIVE, "ahead"), (CRITICAL, "waited for"),
)  # fmt: skip

MIN_SHARE = 0.01
"""What took less of a run is not told of when it comes to what was waited for."""
_LABEL_CELLS = 22
_TIME_CELLS = 9
_MARK_CELLS = 2
_MAX_DEPTH = 8
_SERVED = {names.QUEUE: QUEUE, names.PREFILL: PREFILL, names.DECODE: DECODE}
_CALLS = (names.CHAT, names.ROUTE, names.REQUEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallRow:
    """The first of its pieces is as long as the span; the last are moments at which tools began."""

    depth: int
    label: str
    pieces: tuple[Bar, ...]
    span_ids: AbstractSet[str]
    """Whose time it is: the span's, and that of those drawn into it."""
    is_heading: bool

    @property
    def length_s(self) -> float:
        return (self.pieces[0].end - self.pieces[0].begin) / 1e9


def draw(roots: Sequence[SpanNode], ledger: RunLedger, width: int) -> Iterator[Text]:
    """A line a row, each of so many cells at most. `roots` are all of the run, or those of its turns to be seen."""
    begin, end = min(root.begin for root in roots), max(root.end for root in roots)
    path_ids = _path_ids(ledger)
    num_cells = max(width - _LABEL_CELLS - _TIME_CELLS - _MARK_CELLS - 1, 10)
    for row in _rows(roots, {turn.span_id: turn.index for turn in ledger.turns}):
        label = set_cell_size(" " * row.depth + row.label, _LABEL_CELLS)
        bar = draw_bar(row.pieces, begin, end, num_cells)
        mark = CRITICAL if row.span_ids & path_ids else (" ", "")
        style = "bold" if row.is_heading else ""
        yield Text.assemble((label, style), " ", bar, f"{duration(row.length_s):>{_TIME_CELLS}} ", mark)


def _path_ids(ledger: RunLedger) -> AbstractSet[str]:
    """Whose time the run waited for, of those for which it did a hundredth of its time or more."""
    sums: Counter[str] = Counter()
    for step in ledger.critical_path:
        sums[step.span_id] += step.end_ns - step.start_ns
    return {span_id for span_id, num_ns in sums.items() if num_ns >= MIN_SHARE * ledger.wall_s * 1e9}


def draw_legend() -> Text:
    parts = [part for glyph, word in LEGEND for part in (glyph, (f" {word} ", "dim"))]
    return Text.assemble(*parts)


def duration(seconds: float) -> str:
    """Three digits, in the unit that suits."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _rows(roots: Sequence[SpanNode], numbers: Mapping[str, int]) -> Iterator[WaterfallRow]:
    """Spans as they began, each before those within it."""
    waiting = [(root, 0) for root in reversed(roots)]
    while waiting:
        node, depth = waiting.pop()
        if node.name in _CALLS:
            yield from _call_rows(node, depth, numbers)
            continue
        if row := _row(node, depth, numbers):
            yield row
        below = sorted(node.children, key=lambda child: (child.begin, child.end), reverse=True)
        waiting.extend((child, min(depth + 1, _MAX_DEPTH)) for child in below)


def _row(node: SpanNode, depth: int, numbers: Mapping[str, int]) -> WaterfallRow | None:
    attributes = node.span.attributes
    frame = Bar(node.begin, node.end, FAILED if node.span.error else FRAME)
    match node.name:
        case names.RUN:
            return _make(node, depth, f"run {attributes.get(names.AGENT) or ''}", frame)
        case names.TURN:
            return _make(node, depth, f"turn {numbers.get(node.span.span_id, '')}", frame)
        case names.TOOL:
            return _make(node, depth, str(attributes.get(names.TOOL_NAME) or node.name), *_tool_pieces(node))
        case names.SPECULATIVE if attributes.get(names.WAS_USED):
            return None  # the call that used it begins where this did
        case names.SPECULATIVE:
            wasted = Bar(node.begin, node.end, SPECULATIVE)
            return _make(node, depth, f"wasted {attributes.get(names.TOOL_NAME) or node.name}", wasted)
    return _make(node, depth, node.name, frame)


def _tool_pieces(node: SpanNode) -> Iterator[Bar]:
    is_error = node.span.attributes.get(names.IS_ERROR) or node.span.error
    yield Bar(node.begin, node.end, FAILED if is_error else TOOL)
    dispatched_at = _dispatched_at(node)
    if dispatched_at > node.begin:
        yield Bar(node.begin, dispatched_at, SPECULATIVE)


def _dispatched_at(tool: SpanNode) -> int:
    return min(max(tool.moment(names.DISPATCHED_NS) or tool.begin, tool.begin), tool.end)


def _call_rows(call: SpanNode, depth: int, numbers: Mapping[str, int]) -> Iterator[WaterfallRow]:
    """A question to a model: a row with all that is known of it, and one for each try where there were several."""
    below = list(call.walk())
    number = numbers.get(call.span.span_id)
    label = "prefill ahead" if call.is_prefill_only else f"turn {number}" if number else "model"
    replica = next((word for each in below if (word := each.span.attributes.get(names.REPLICA))), "")
    siblings = call.parent.children if call.parent else ()
    begun = [_dispatched_at(each) for each in siblings if each.name == names.TOOL]
    marks = [Bar(at, at, BEGINS) for at in begun if call.begin <= at < call.end and not call.is_prefill_only]
    label = f"{label} @{replica}" if replica else label
    yield _make(call, depth, label, *_call_pieces(call, below), *marks, within=below)
    attempts = [each for each in below if each.name == names.ATTEMPT]
    for attempt in attempts if len(attempts) > 1 else ():
        frame = Bar(attempt.begin, attempt.end, FAILED if attempt.span.error else FRAME)
        yield _make(attempt, depth + 1, f"tried {attempt.span.attributes.get(names.REPLICA) or ''}", frame)


def _call_pieces(call: SpanNode, below: Sequence[SpanNode]) -> Iterator[Bar]:
    yield Bar(call.begin, call.end, FAILED if call.span.error else NETWORK)
    if not call.is_served and not call.span.error:
        began_at = call.moment(names.FIRST_TOKEN_NS) or call.moment(names.FIRST_BYTE_NS) or call.end
        yield Bar(call.begin, began_at, PREFILL)
        if began_at < call.end:
            yield Bar(began_at, call.end, DECODE)
    for node in below:
        if queued_ns := node.count(names.QUEUE_NS):
            yield Bar(node.begin, min(node.begin + queued_ns, node.end), QUEUE)
        if node.name in _SERVED and node.end > node.begin:
            yield Bar(node.begin, node.end, _SERVED[node.name])


def _make(node: SpanNode, depth: int, label: str, *pieces: Bar, within: Sequence[SpanNode] = ()) -> WaterfallRow:
    return WaterfallRow(
        depth=depth,
        label=shorten(label, max(_LABEL_CELLS - depth, 4)),
        pieces=pieces,
        span_ids={each.span.span_id for each in within or (node,)},
        is_heading=node.name in (names.RUN, names.TURN),
    )
