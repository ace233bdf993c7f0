"""A run as the dashboard draws it: the ledger's turns, each with the rows of its waterfall, in ms from the start.

    turn 3   chat    queue│ recomputed │ new │ decode .....
             tool                                  └ search ────────
             tool                                      └ search ──────
             speculative                         lookup ──  (nobody asked)

Pure: spans in, JSON out. What adds up to what is the ledger's; here is only where things stand.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from hotloop.trace import names
from hotloop.trace.ledger import PathStep, RunLedger, ToolLedger, TurnLedger, build_ledger
from hotloop.trace.money import PriceTable
from hotloop.trace.span import Span
from hotloop.trace.sweep import split, sweep
from hotloop.trace.tree import SpanNode, build_tree, is_open
from hotloop.wire.field import Json

MAX_TEXT = 4000
"""Characters of a recorded text that are sent; the store has all of them."""
_LABELS = (names.TOOL_NAME, names.REPLICA, names.MODEL, names.AGENT)
_PARTS = frozenset({names.CHAT, names.TOOL, names.SPECULATIVE})


def draw_run(spans: Sequence[Span], prices: PriceTable | None = None) -> Json:
    """There is at least one span."""
    return _Scene(_with_open_turns(spans), prices).draw()


class _Scene:
    def __init__(self, spans: Sequence[Span], prices: PriceTable | None) -> None:
        self._ledger: RunLedger = build_ledger(spans, prices)
        self._roots = build_tree(spans)
        self._nodes = {node.span.span_id: node for root in self._roots for node in root.walk()}
        self._place_of = self._place_turns()

    def draw(self) -> Json:
        ledger = self._ledger
        run = next((root for root in self._roots if root.name == names.RUN), None)
        return {
            **_pick(ledger, "session", "agent", "error", "services", "money", "num_saved", "money_saved"),
            **_pick(ledger, "tokens", "prefill_ahead", "lost"),
            "id": ledger.trace_id,
            "prompt": _content(run, names.CONTENT_PROMPT) if run else None,
            "start_ms": ledger.start_ns / 1e6,
            "wall_ms": ledger.wall_s * 1e3,
            "model_idle_ms": ledger.model_idle_s * 1e3,
            "tools_hidden_ms": ledger.tools_hidden_s * 1e3,
            "parts": _as_ms(ledger.parts),
            "turns": [self._draw_turn(turn) for turn in ledger.turns],
            "troubles": sorted(self._troubles(), key=lambda each: each["start"]),
            "path": [self._draw_step(step) for step in ledger.critical_path],
        }

    def _ms(self, moment_ns: int) -> float:
        return round((moment_ns - self._ledger.start_ns) / 1e6, 3)

    def _place_turns(self) -> dict[str, int]:
        """Which turn, by its place in the ledger, a span is part of; of turns within turns, the innermost."""
        places: dict[str, int] = {}
        turns = enumerate(self._ledger.turns)
        for place, turn in sorted(turns, key=lambda each: _depth(self._nodes[each[1].span_id])):
            places |= dict.fromkeys((node.span.span_id for node in self._nodes[turn.span_id].walk()), place)
        return places

    def _draw_turn(self, turn: TurnLedger) -> Json:
        node = self._nodes[turn.span_id]
        run = self._nodes.get(turn.run_span_id)
        return {
            **_pick(turn, "model", "replica", "reason", "priority", "finish_reason", "money", "error"),
            **_pick(turn, "tokens", "prefill_ahead", "lost", "num_saved", "money_saved"),
            "changes": [_cut(change) for change in turn.changes],
            "id": turn.span_id,
            "turn": turn.index,
            "depth": _depth(node),
            "agent": str(run.span.attributes.get(names.AGENT, "")) if run and run.name == names.RUN else "",
            "start": self._ms(turn.start_ns),
            "end": self._ms(turn.end_ns),
            "first_token_ms": None if turn.first_token_s is None else turn.first_token_s * 1e3,
            "parts": _as_ms(turn.parts),
            "answer": _answer(node),
            "causes": [cause for call in node.calls() if not call.is_prefill_only for cause in _causes(call)],
            "rows": sorted(self._rows(node, turn), key=lambda row: (row["kind"] != "chat", row["start"])),
        }

    def _rows(self, node: SpanNode, turn: TurnLedger) -> Iterator[Json]:
        for call in node.calls():
            yield self._draw_call(call)
        for tool in turn.tools:
            yield self._draw_tool(tool, self._nodes[tool.span_id])
        for child in node.children:  # one that was used is a tool's row already
            if child.name == names.SPECULATIVE and not child.span.attributes.get(names.WAS_USED):
                yield self._draw_speculative(child)

    def _draw_call(self, call: SpanNode) -> Json:
        """A question as its asker saw it: what was waited for at every moment of it."""
        pieces = []
        at = call.begin
        for segment in sweep([call], call.begin, call.end):
            for part, length_ns in split(segment):
                if length_ns > 0:
                    pieces.append((part.value, self._ms(at), self._ms(at + length_ns)))
                at += length_ns
        label = "prefill ahead" if call.is_prefill_only else "model"
        return self._row(call, "chat", label, call.begin, call.end) | {"pieces": pieces}

    def _draw_tool(self, tool: ToolLedger, node: SpanNode) -> Json:
        return {
            **self._row(node, "tool", tool.name, tool.start_ns, tool.end_ns),
            **_pick(tool, "was_speculative", "num_tries", "is_error"),
            "dispatched": self._ms(tool.dispatched_ns),
            "waited_ms": tool.waited_s * 1e3,
            "arguments": _content(node, names.CONTENT_ARGUMENTS),
            "result": _content(node, names.CONTENT_RESULT),
        }

    def _draw_speculative(self, node: SpanNode) -> Json:
        return {
            **self._row(node, "speculative", _tool_name(node), node.begin, node.end),
            "confidence": node.span.attributes.get(names.CONFIDENCE),
            "arguments": _content(node, names.CONTENT_ARGUMENTS),
        }

    def _row(self, node: SpanNode, kind: str, label: str, start_ns: int, end_ns: int) -> Json:
        start, end = self._ms(start_ns), self._ms(end_ns)
        return {"kind": kind, "label": label, "start": start, "end": end, "error": node.span.error}

    def _troubles(self) -> Iterator[Json]:
        """What went wrong, where it did so: what failed for that alone is left out."""
        for node in self._nodes.values():
            error = node.span.error or _failure(node)
            if error and all(child.span.error != error for child in node.children):
                facts = node.span.attributes
                label = next((str(facts[name]) for name in _LABELS if facts.get(name)), "")
                place = self._place_of.get(node.span.span_id)
                yield {"name": node.name, "label": label, "place": place, "start": self._ms(node.begin), "error": error}

    def _draw_step(self, step: PathStep) -> Json:
        node = self._nodes.get(step.span_id)
        return {
            "name": step.name,
            "label": _tool_name(node) if node else "",
            "place": self._place_of.get(step.span_id),
            "start": self._ms(step.start_ns),
            "end": self._ms(step.end_ns),
        }


def _tool_name(node: SpanNode) -> str:
    return str(node.span.attributes.get(names.TOOL_NAME, ""))


def _failure(node: SpanNode) -> str:
    """What the model was told of a tool that failed, or where that is not recorded, what the tool raised."""
    facts = node.span.attributes
    if not facts.get(names.IS_ERROR):
        return ""
    raised = str(facts.get(names.TRACEBACK, "")).rpartition("\n")[2].strip()
    return _content(node, names.CONTENT_RESULT) or raised or "failed; the model was told why"


def _depth(node: SpanNode) -> int:
    """How many runs it is within, beyond the first."""
    num_runs = 0
    while node.parent:
        node = node.parent
        num_runs += node.name == names.RUN
    return max(num_runs - 1, 0)


def _answer(turn: SpanNode) -> str | None:
    calls = (node for call in turn.calls() if not call.is_prefill_only for node in call.walk())
    return next((said for node in calls if (said := _content(node, names.CONTENT_ANSWER)) is not None), None)


def _causes(call: SpanNode) -> Iterator[Json]:
    """Why tokens were recomputed, with the words where they are recorded."""
    for node in call.walk():
        for cause, said in node.causes():
            yield {**cause, **{name: _cut(text) for name, text in said.items()}}


def _content(node: SpanNode, name: str) -> str | None:
    text = node.span.attributes.get(name)
    return None if text is None else _cut(text)


def _cut(text: Any) -> str:
    text = str(text)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} …"


def _as_ms(parts: Any) -> dict[str, float]:
    return {part.value: seconds * 1e3 for part, seconds in parts.items()}


def _pick(value: Any, *fields: str) -> Json:
    """Some of its fields, as JSON has them."""
    return {name: msgspec.to_builtins(getattr(value, name)) for name in fields}


def _with_open_turns(spans: Sequence[Span]) -> list[Span]:
    """These spans, and the turns that are missing from runs that go on.

    A span is recorded when it has ended, so what is done in a turn is known before the turn is: until then one is made
    up for it. It has the id of the real one, which will take its place.
    """
    runs = sorted((span for span in spans if is_open(span)), key=lambda span: span.start_ns)
    known = {span.span_id for span in spans}
    parts: dict[str, list[Span]] = {}
    for span in spans:
        if runs and span.name in _PARTS and span.parent_id and span.parent_id not in known:
            parts.setdefault(span.parent_id, []).append(span)
    return [*spans, *(_make_up(turn_id, within, runs, spans) for turn_id, within in parts.items())]


def _make_up(turn_id: str, within: Sequence[Span], runs: Sequence[Span], spans: Sequence[Span]) -> Span:
    """Of runs within runs it is believed to be the innermost's: the one that began last."""
    start_ns = min(span.start_ns for span in within)
    run = next((run for run in reversed(runs) if run.start_ns <= start_ns), runs[0])
    num_turns = sum(span.name == names.TURN and span.parent_id == run.span_id for span in spans)
    return Span(
        trace_id=run.trace_id,
        span_id=turn_id,
        parent_id=run.span_id,
        name=names.TURN,
        service=run.service,
        start_ns=start_ns,
        end_ns=max(span.end_ns for span in within),
        session=run.session,
        attributes={names.INDEX: num_turns + 1},
    )
