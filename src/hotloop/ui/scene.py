"""A run as the page draws it: the ledger's turns, each with the rows of its waterfall, in milliseconds from the start.

    turn 3   chat    queue│again│ read new│ decode ............
             tool                                  └ search ────────
             tool                                      └ search ──────
             foreseen                         lookup ──  (nobody asked)

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
from hotloop.trace.tree import SpanNode, build_tree
from hotloop.ui.source import Json
from hotloop.ui.unfinished import with_open_turns

MAX_TEXT = 4000
"""Characters of a recorded text that are sent; the store has all of them."""


def draw_run(spans: Sequence[Span], prices: PriceTable | None = None) -> Json:
    """There is at least one span."""
    return _Scene(with_open_turns(spans), prices).draw()


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
            "id": ledger.trace_id,
            "session": ledger.session,
            "agent": ledger.agent,
            "error": ledger.error,
            "prompt": _content(run, names.CONTENT_PROMPT) if run else None,
            "services": ledger.services,
            "start_ms": ledger.start_ns / 1e6,
            "wall_ms": ledger.wall_s * 1e3,
            "money": ledger.money,
            "model_idle_ms": ledger.model_idle_s * 1e3,
            "tools_hidden_ms": ledger.tools_hidden_s * 1e3,
            "parts": _as_ms(ledger.parts),
            "tokens": _plain(ledger.tokens),
            "read_ahead": _plain(ledger.read_ahead),
            "lost": _plain(ledger.lost),
            "turns": [self._draw_turn(turn) for turn in ledger.turns],
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
            "id": turn.span_id,
            "turn": turn.index,
            "depth": _depth(node),
            "agent": str(run.span.attributes.get(names.AGENT, "")) if run and run.name == names.RUN else "",
            "start": self._ms(turn.start_ns),
            "end": self._ms(turn.end_ns),
            "first_token_ms": None if turn.first_token_s is None else turn.first_token_s * 1e3,
            "parts": _as_ms(turn.parts),
            "tokens": _plain(turn.tokens),
            "read_ahead": _plain(turn.read_ahead),
            "lost": _plain(turn.lost),
            "model": turn.model,
            "replica": turn.replica,
            "reason": turn.reason,
            "priority": turn.priority,
            "finish_reason": turn.finish_reason,
            "money": turn.money,
            "error": turn.error,
            "answer": _answer(node),
            "causes": [cause for call in node.calls() if not call.is_reading for cause in _causes(call)],
            "rows": sorted(self._rows(node, turn), key=lambda row: (row["kind"] != "chat", row["start"])),
        }

    def _rows(self, node: SpanNode, turn: TurnLedger) -> Iterator[Json]:
        for call in node.calls():
            yield self._draw_call(call)
        for tool in turn.tools:
            yield self._draw_tool(tool, self._nodes[tool.span_id])
        for child in node.children:  # one that was used is a tool's row already
            if child.name == names.FORESEEN and not child.span.attributes.get(names.WAS_USED):
                yield self._draw_foreseen(child)

    def _draw_call(self, call: SpanNode) -> Json:
        """A question as its asker saw it: what was waited for at every moment of it."""
        pieces = []
        at = call.begin
        for segment in sweep([call], call.begin, call.end):
            for part, length_ns in split(segment):
                if length_ns > 0:
                    pieces.append((part.value, self._ms(at), self._ms(at + length_ns)))
                at += length_ns
        return {
            "kind": "chat",
            "label": "read ahead" if call.is_reading else "model",
            "start": self._ms(call.begin),
            "end": self._ms(call.end),
            "pieces": pieces,
            "error": call.span.error,
        }

    def _draw_tool(self, tool: ToolLedger, node: SpanNode) -> Json:
        return {
            "kind": "tool",
            "label": tool.name,
            "start": self._ms(tool.start_ns),
            "dispatched": self._ms(tool.dispatched_ns),
            "end": self._ms(tool.end_ns),
            "waited_ms": tool.waited_s * 1e3,
            "was_foreseen": tool.was_foreseen,
            "num_tries": tool.num_tries,
            "is_error": tool.is_error,
            "error": node.span.error,
            "arguments": _content(node, names.CONTENT_ARGUMENTS),
            "result": _content(node, names.CONTENT_RESULT),
        }

    def _draw_foreseen(self, node: SpanNode) -> Json:
        return {
            "kind": "foreseen",
            "label": str(node.span.attributes.get(names.TOOL_NAME, "")),
            "start": self._ms(node.begin),
            "end": self._ms(node.end),
            "confidence": node.span.attributes.get(names.CONFIDENCE),
            "error": node.span.error,
            "arguments": _content(node, names.CONTENT_ARGUMENTS),
        }

    def _draw_step(self, step: PathStep) -> Json:
        node = self._nodes.get(step.span_id)
        return {
            "name": step.name,
            "label": str(node.span.attributes.get(names.TOOL_NAME, "")) if node else "",
            "place": self._place_of.get(step.span_id),
            "start": self._ms(step.start_ns),
            "end": self._ms(step.end_ns),
        }


def _depth(node: SpanNode) -> int:
    """How many runs it is within, beyond the first."""
    num_runs = 0
    while node.parent:
        node = node.parent
        num_runs += node.name == names.RUN
    return max(num_runs - 1, 0)


def _answer(turn: SpanNode) -> str | None:
    calls = (node for call in turn.calls() if not call.is_reading for node in call.walk())
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


def _plain(value: Any) -> Json:
    plain: Json = msgspec.to_builtins(value)
    return plain
