"""The account of a run, drawn from its spans: where the time went, what the tokens were, what it cost, what it waited
for. Pure: the same spans give the same ledger, in whatever order.

Invariant: the parts of a turn, and of a run, make up its wall-clock time; what was delivered, prefilled ahead and lost
make up all that the engines did. Tokens are those the server counted, where one of ours tells; else the client's.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from hotloop.trace import names
from hotloop.trace.money import PriceTable
from hotloop.trace.span import Span
from hotloop.trace.sweep import Segment, TimePart, output_shares, split, sweep
from hotloop.trace.tree import SpanNode, build_tree, clip, is_open, length_of, overlap_of, union

_ASKERS = frozenset({names.RUN, names.TURN})
_WORDS = (names.MODEL, names.REPLICA, names.REASON, names.PRIORITY, names.FINISH_REASON, names.ANSWER_ID)
"""Of a turn: fields of `TurnLedger` by the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """prompt = cached + new + recomputed; output = sampled + forced + accepted."""

    prompt: int = 0
    cached: int = 0
    new: int = 0
    recomputed: int = 0  # computed though they had been computed before; `causes` says why
    restored: int = 0  # those of the cached ones that came from disk
    from_host: int = 0  # those that came from host memory; the others were on the device
    output: int = 0
    sampled: int = 0
    forced: int = 0
    accepted: int = 0  # drafted, and the output's tokens
    drafted: int = 0  # accepted or rejected
    matched: int = 0  # of those: `accepted`, and what was forced anyway or came behind the end
    causes: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        counts = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in _COUNTS}
        return TokenCounts(**counts, causes=dict(Counter(self.causes) + Counter(other.causes)))


_COUNTS = [each for each in fields(TokenCounts) if each.name != "causes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLedger:
    """One call. It ran from `start_ns` to `end_ns`; some of that was waited for, some hidden behind the model."""

    span_id: str
    name: str
    call_id: str
    start_ns: int
    dispatched_ns: int
    end_ns: int
    ran_s: float
    waited_s: float  # for how long the run could do nothing but wait for this one
    was_speculative: bool
    reused: str  # "cached" or "joined" where the result is that of the same call; else empty
    saved_s: float  # what the tool would have taken for it
    num_tries: int
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep:
    """A piece of the critical path. No `span_id`: nothing that was recorded."""

    span_id: str
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Of a turn, or of a whole run."""

    start_ns: int
    end_ns: int
    wall_s: float
    parts: Mapping[TimePart, float]
    tokens: TokenCounts
    prefill_ahead: TokenCounts  # what was prefilled before it was needed, on top of `tokens`
    lost: TokenCounts  # for answers that failed, were broken off, or came second
    money: float
    num_saved: int  # prompt tokens cached thanks to a router's stable prompts, by its estimate; among `tokens.cached`
    money_saved: float  # what these would have cost beyond what they did
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLedger(Account):
    """From asking the model to the results of its calls being there; of a plain client, one request."""

    span_id: str
    run_span_id: str  # the run it is a turn of; a run of an agent may have others within it
    index: int
    first_token_s: float | None
    tools: tuple[ToolLedger, ...]
    num_speculative: int
    num_wasted: int  # of those speculative
    model: str
    replica: str
    reason: str  # why that replica
    priority: str
    finish_reason: str
    answer_id: str
    changes: tuple[str, ...]  # to its prompt, by a router, so that it begins as the one before it did


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLedger(Account):
    trace_id: str
    session: str
    agent: str
    end: str
    is_running: bool  # whether it has begun and not ended; then this is the account so far
    turns: tuple[TurnLedger, ...]
    critical_path: tuple[PathStep, ...]
    model_idle_s: float  # while the run lasted and no model was asked anything
    tool_idle_s: float  # while the run lasted and no tool ran
    tools_hidden_s: float  # while tools ran behind the model's back
    services: tuple[str, ...]


def build_ledger(spans: Iterable[Span], prices: PriceTable | None = None) -> RunLedger:
    """The account of one trace. There must be at least one span."""
    spans = list(spans)
    assert spans, "a trace has at least one span"
    roots = build_tree(spans)
    begin, end = min(node.begin for node in roots), max(node.end for node in roots)
    segments = sweep(roots, begin, end)
    prices = prices or PriceTable()
    nodes = [node for root in roots for node in root.walk()]
    turns = _turns(nodes, prices)
    run = next((node for node in roots if node.name == names.RUN), None)
    calls = [call for node in nodes if node.parent is None or node.name in _ASKERS for call in node.calls()]
    models, tools = (clip(_busy(nodes, is_model=is_model), begin, end) for is_model in (True, False))
    return RunLedger(
        **_account(calls, segments, begin, end, prices),
        trace_id=spans[0].trace_id,
        session=next((node.span.session for node in nodes if node.span.session), ""),
        agent=_word(run, names.AGENT),
        end=_word(run, names.END),
        is_running=run is not None and is_open(run.span),
        turns=turns,
        money=sum(_money(call, prices) for call in calls) or (run.amount(names.MONEY) if run else 0.0),
        critical_path=_path(segments),
        model_idle_s=(end - begin - length_of(models)) / 1e9,
        tool_idle_s=(end - begin - length_of(tools)) / 1e9,
        tools_hidden_s=overlap_of(models, tools) / 1e9,
        services=tuple(sorted({span.service for span in spans})),
        error=next((node.span.error for node in (run, *roots) if node and node.span.error), ""),
    )


def _turns(nodes: Sequence[SpanNode], prices: PriceTable) -> tuple[TurnLedger, ...]:
    """Where no agent told of its turns, each question to a model is one."""
    found = [node for node in nodes if node.name == names.TURN]
    if not found:
        found = [call for node in nodes if node.parent is None for call in node.calls() if not call.is_prefill_only]
    found.sort(key=lambda node: node.begin)
    return tuple(_turn(node, i, prices) for i, node in enumerate(found, start=1))


def _turn(turn: SpanNode, number: int, prices: PriceTable) -> TurnLedger:
    calls = list(turn.calls())
    asked = [call for call in calls if not call.is_prefill_only]
    segments = sweep([turn], turn.begin, turn.end)
    within = [node for call in asked for node in call.walk()]
    guesses = [node for node in turn.children if node.name == names.SPECULATIVE]
    return TurnLedger(
        **_account(calls, segments, turn.begin, turn.end, prices)
        | {name: _first_word(within, name) for name in _WORDS},
        span_id=turn.span.span_id,
        run_span_id=turn.span.parent_id or "",
        index=turn.count(names.INDEX) or number,
        first_token_s=_first_token_s(asked[0]) if asked else None,
        tools=tuple(_tool(node, segments) for node in turn.children if node.name == names.TOOL),
        num_speculative=len(guesses),
        num_wasted=sum(not node.span.attributes.get(names.WAS_USED) for node in guesses),
        changes=tuple(change for node in within for change in _words(node, names.STABILISED)),
        money=sum(_money(call, prices) for call in calls),
        error=turn.span.error or next((node.span.error for node in within if node.span.error), ""),
    )


def _tool(node: SpanNode, segments: Sequence[Segment]) -> ToolLedger:
    attributes, below = node.span.attributes, {id(each) for each in node.walk()}
    return ToolLedger(
        span_id=node.span.span_id,
        name=_word(node, names.TOOL_NAME),
        call_id=_word(node, names.CALL_ID),
        start_ns=node.begin,
        dispatched_ns=node.moment(names.DISPATCHED_NS) or node.begin,
        end_ns=node.end,
        ran_s=(node.end - node.begin) / 1e9,
        waited_s=sum(each.end - each.begin for each in segments if id(each.node) in below) / 1e9,
        was_speculative=bool(attributes.get(names.WAS_SPECULATIVE)),
        reused=_word(node, names.REUSED),
        saved_s=_seconds(attributes.get(names.SAVED_S)),
        num_tries=node.count(names.NUM_TRIES),
        is_error=bool(attributes.get(names.IS_ERROR)),
    )


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0.0


def _account(
    calls: Sequence[SpanNode], segments: Sequence[Segment], begin: int, end: int, prices: PriceTable
) -> dict[str, Any]:
    """What turns and runs have in common, but for what they cost and errors."""
    times = {"start_ns": begin, "end_ns": end, "wall_s": (end - begin) / 1e9, "parts": _add_up(segments)}
    routes = [node for call in calls for node in call.walk() if node.name == names.ROUTE]
    saved = {
        "num_saved": sum(route.count(names.NUM_SAVED) for route in routes),
        "money_saved": sum(_money_saved(route, prices) for route in routes),
    }
    return times | saved | dict(zip(("tokens", "prefill_ahead", "lost"), _count_tokens(calls), strict=True))


def _count_tokens(calls: Iterable[SpanNode]) -> tuple[TokenCounts, TokenCounts, TokenCounts]:
    """What was delivered by these, prefilled ahead, and lost."""
    tokens = ahead = lost = TokenCounts()
    for call in calls:
        requests = [node for node in call.walk() if node.name == names.REQUEST]
        if call.is_prefill_only:
            ahead += _sum(map(_counted, requests))
            continue
        givers = _givers(call, requests)
        tokens += _sum(map(_counted, givers)) if givers else _reported(call)
        lost += _sum(_counted(each) for each in requests if not any(each is giver for giver in givers))
    return tokens, ahead, lost


def _reported(call: SpanNode) -> TokenCounts:
    """Of an answer that no server of ours counted: as its client was told."""
    if call.span.error:
        return TokenCounts()
    reporters = (node for node in call.walk() if node.name != names.REQUEST and node.count(names.NUM_PROMPT))
    reporter = next(reporters, call)
    num_prompt, num_output = reporter.count(names.NUM_PROMPT), reporter.count(names.NUM_OUTPUT)
    num_cached = min(reporter.count(names.NUM_CACHED), num_prompt)
    return TokenCounts(
        prompt=num_prompt, cached=num_cached, new=num_prompt - num_cached, output=num_output, sampled=num_output
    )


def _givers(call: SpanNode, requests: Sequence[SpanNode]) -> list[SpanNode]:
    """Those of an answer's requests that gave it: by its id, else all that went well; none if another's model did."""
    if call.span.error:
        return []
    stem = _stem(call)
    named = [request for request in requests if stem and _stem(request) == stem]
    return named or [request for request in requests if not request.span.error and not _is_other(request, call)]


def _is_other(request: SpanNode, call: SpanNode) -> bool:
    """Whether it gave another answer: neither the id nor the prompt is the one that was told of."""
    reported, counted = call.count(names.NUM_PROMPT), request.count(names.NUM_PROMPT)
    return bool(_stem(call) and _stem(request) and reported and reported != counted)


def _stem(node: SpanNode) -> str:
    """An answer's id without what its API begins ids with: a router that translates changes no more than that."""
    return re.sub(r"^[a-z]+[-_]", "", _word(node, names.ANSWER_ID))


def _counted(request: SpanNode) -> TokenCounts:
    sampled, forced, accepted = output_shares(request)
    return TokenCounts(
        prompt=request.count(names.NUM_PROMPT),
        cached=request.count(names.NUM_CACHED),
        new=request.count(names.NUM_NEW),
        recomputed=request.count(names.NUM_RECOMPUTED),
        restored=request.count(names.NUM_RESTORED),
        from_host=request.count(names.NUM_FROM_HOST),
        output=request.count(names.NUM_OUTPUT),
        sampled=sampled,
        forced=forced,
        accepted=accepted,
        drafted=request.count(names.NUM_DRAFTED),
        matched=request.count(names.NUM_ACCEPTED),
        causes=_causes(request),
    )


def _causes(request: SpanNode) -> dict[str, int]:
    sums = Counter[str]()
    for cause, _ in request.causes():
        sums[cause["reason"]] += cause["num_tokens"]
    return dict(sums)


def _first_token_s(call: SpanNode) -> float | None:
    for node in call.walk():
        if began_at := node.moment(names.FIRST_TOKEN_NS):
            return (began_at - call.begin) / 1e9
        if node.name == names.PREFILL:
            return (node.end - call.begin) / 1e9
    return None


def _money(call: SpanNode, prices: PriceTable) -> float:
    """As the agent reckoned, or by the table."""
    (tokens, _, _), model = _count_tokens([call]), _first_word(list(call.walk()), names.MODEL)
    return call.amount(names.MONEY) or prices.cost(
        model, num_prompt=tokens.prompt, num_cached=tokens.cached, num_output=tokens.output
    )


def _money_saved(route: SpanNode, prices: PriceTable) -> float:
    """As the router reckoned, or by the table."""
    model, num = _word(route, names.MODEL), route.count(names.NUM_SAVED)
    found, lost = (prices.cost(model, num_prompt=num, num_cached=cached, num_output=0) for cached in (num, 0))
    return route.amount(names.MONEY_SAVED) or lost - found


def _add_up(segments: Sequence[Segment]) -> dict[TimePart, float]:
    sums = dict.fromkeys(TimePart, 0)
    for segment in segments:
        for part, num_ns in split(segment):
            sums[part] += num_ns
    return {part: num_ns / 1e9 for part, num_ns in sums.items() if num_ns}


def _path(segments: Sequence[Segment]) -> tuple[PathStep, ...]:
    steps: list[PathStep] = []
    for segment in segments:
        span_id, name = (segment.node.span.span_id, segment.node.name) if segment.node else ("", "")
        start_ns = steps.pop().start_ns if steps and steps[-1].span_id == span_id else segment.begin
        steps.append(PathStep(span_id=span_id, name=name, start_ns=start_ns, end_ns=segment.end))
    return tuple(steps)


def _busy(nodes: Sequence[SpanNode], *, is_model: bool) -> list[tuple[int, int]]:
    """When a model, or a tool, was at work; a server of ours tells best when that was."""

    def is_busy(node: SpanNode) -> bool:
        if not is_model:
            return node.name == names.TOOL
        return node.name == names.REQUEST or (node.name in (names.CHAT, names.ROUTE) and not node.is_served)

    return union((node.begin, node.end) for node in nodes if is_busy(node))


def _sum(each: Iterable[TokenCounts]) -> TokenCounts:
    return sum(each, TokenCounts())


def _word(node: SpanNode | None, name: str) -> str:
    value = node.span.attributes.get(name) if node else None
    return value if isinstance(value, str) else ""


def _words(node: SpanNode, name: str) -> list[str]:
    value = node.span.attributes.get(name)
    return [word for word in value if isinstance(word, str)] if isinstance(value, list | tuple) else []


def _first_word(nodes: Sequence[SpanNode], name: str) -> str:
    return next((word for node in nodes if (word := _word(node, name))), "")
