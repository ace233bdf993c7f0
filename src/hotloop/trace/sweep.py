"""Where the time went: at every moment a run waits for one thing, and this says for which.

    turn   ├───────────────────────────────────┤
    chat     ├────────────────┤
    request    ├──────────────┤
    prefill        ├────┤
    decode              ├─────┤
    tools                  ├───────────┤ ├──┤
    part   r n p q  pre    dec  tools   r tools r

Top down: of what runs within a span, the model counts before tools, tools before what nothing waits for, and of several
alike the one that ends last. Every moment is counted once; what this follows is the critical path.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from hotloop.trace import names
from hotloop.trace.tree import SpanNode


class TimePart(StrEnum):
    ROUTER_QUEUE = "router_queue"
    QUEUE = "queue"
    PREPARE = "prepare"  # the server reads the request: JSON, template, tokens, grammar
    PREFILL_NEW = "prefill_new"
    PREFILL_RECOMPUTED = "prefill_recomputed"
    DECODE_SAMPLED = "decode_sampled"
    DECODE_FORCED = "decode_forced"
    DECODE_ACCEPTED = "decode_accepted"
    HOSTED_PREFILL = "hosted_prefill"  # a model that tells nothing about itself, up to its first token
    HOSTED_DECODE = "hosted_decode"
    NETWORK = "network"  # between client, router and server, and what a replica that failed has cost
    TOOLS = "tools"
    SPECULATIVE = "speculative"  # a tool that the model has not asked for yet, and nothing else
    PREFILL_AHEAD = "prefill_ahead"  # the model reads what it will need, and nothing else happens
    RUNTIME = "runtime"  # the run itself: nothing else is busy
    CLIENT = "client"  # a client of which nothing is known but that it is not asking


_SPECULATIVE, _TOOL, _RUN, _CALL = 2, 3, 4, 5
_RANKS = {
    names.DECODE: 9,
    names.PREFILL: 8,
    names.QUEUE: 7,
    names.REQUEST: 6,
    names.ATTEMPT: _CALL,
    names.ROUTE: _CALL,
    names.CHAT: _CALL,
    names.TURN: _RUN,
    names.RUN: _RUN,
    names.TOOL: _TOOL,
    names.SPECULATIVE: _SPECULATIVE,
}
_PREFILL_ONLY = 1
_WHOLE = {names.SPECULATIVE: TimePart.SPECULATIVE, names.QUEUE: TimePart.QUEUE, names.ATTEMPT: TimePart.NETWORK}


class Segment(NamedTuple):
    """For this long, this is what was waited for; None is nothing that was recorded."""

    node: SpanNode | None
    begin: int
    end: int


class _Claim(NamedTuple):
    """A child that says: this time is mine."""

    begin: int
    end: int
    rank: int
    node: SpanNode


def sweep(roots: Sequence[SpanNode], begin: int, end: int) -> list[Segment]:
    """The time from begin to end without a gap or an overlap, in order."""
    segments: list[Segment] = []
    work: list[tuple[SpanNode | None, Sequence[SpanNode], int, int]] = [(None, roots, begin, end)]
    while work:
        owner, children, begin, end = work.pop()
        for node, since, until in _winners(children, begin, end):
            if node is not None and node.children:
                work.append((node, node.children, since, until))
            else:
                segments.append(Segment(node or owner, since, until))
    return sorted(segments, key=lambda segment: segment.begin)


def _winners(children: Sequence[SpanNode], begin: int, end: int) -> list[tuple[SpanNode | None, int, int]]:
    """Who has which piece of this time; None where nobody claims it."""
    claims = [each for child in children for each in _claims(child) if each.end > begin and each.begin < end]
    starting = sorted(claims, key=lambda claim: claim.begin, reverse=True)
    inner = (at for claim in claims for at in (claim.begin, claim.end) if begin < at < end)
    active: list[_Claim] = []
    pieces: list[tuple[SpanNode | None, int, int]] = []
    for since, until in pairwise(sorted({begin, end, *inner})):
        while starting and starting[-1].begin <= since:
            active.append(starting.pop())
        active = [each for each in active if each.end > since]
        first = max(active, key=lambda each: (each.rank, each.end, -each.begin, each.node.span.span_id), default=None)
        winner = first.node if first else None
        if pieces and pieces[-1][0] is winner:
            since = pieces.pop()[1]
        pieces.append((winner, since, until))
    return pieces


def _claims(node: SpanNode) -> Iterator[_Claim]:
    """A tool that was begun before it was asked for counts as one only from then on."""
    rank = _PREFILL_ONLY if node.is_prefill_only else _RANKS.get(node.name, _RUN)
    asked_at = node.moment(names.DISPATCHED_NS) if node.name == names.TOOL else None
    asked_at = min(max(asked_at, node.begin), node.end) if asked_at is not None else node.begin
    if asked_at > node.begin:
        yield _Claim(node.begin, asked_at, _SPECULATIVE, node)
    if node.end > asked_at:
        yield _Claim(asked_at, node.end, rank, node)


def split(segment: Segment) -> Iterator[tuple[TimePart, int]]:
    """The parts of a segment, in nanoseconds; together as long as it is."""
    node = segment.node
    if node is None:
        yield TimePart.CLIENT, segment.end - segment.begin
    elif node.is_prefill_only:
        yield TimePart.PREFILL_AHEAD, segment.end - segment.begin
    elif node.name in (names.PREFILL, names.DECODE):
        yield from _by_tokens(segment, node)
    else:
        since = segment.begin
        for part, until in _stages(node):
            at = min(max(until, since), segment.end)
            yield part, at - since
            since = at


def _stages(node: SpanNode) -> Iterator[tuple[TimePart, int]]:
    """What a span of which nothing more is known is, until when; the last of it until its end."""
    end = max(node.end, node.begin) + 1
    match node.name:
        case names.TOOL:
            yield TimePart.SPECULATIVE, node.moment(names.DISPATCHED_NS) or node.begin
            yield TimePart.TOOLS, end
        case names.REQUEST:
            yield TimePart.PREPARE, min((child.begin for child in node.children), default=end)
            yield TimePart.NETWORK, end
        case names.CHAT | names.ROUTE:
            yield TimePart.ROUTER_QUEUE, node.begin + node.count(names.QUEUE_NS)
            if not node.is_served:
                first_ns = node.moment(names.FIRST_TOKEN_NS) or node.moment(names.FIRST_BYTE_NS)
                yield TimePart.HOSTED_PREFILL, first_ns or end
                yield TimePart.HOSTED_DECODE, end
            yield TimePart.NETWORK, end
        case _:
            yield _WHOLE.get(node.name, TimePart.RUNTIME), end


def _by_tokens(segment: Segment, node: SpanNode) -> Iterator[tuple[TimePart, int]]:
    """In proportion to the tokens that were computed for each; what was cached took no time."""
    request = node.parent or node
    if node.name == names.PREFILL:
        new, recomputed = request.count(names.NUM_NEW), request.count(names.NUM_RECOMPUTED)
        shares = {TimePart.PREFILL_NEW: new, TimePart.PREFILL_RECOMPUTED: recomputed}
    else:
        kinds = (TimePart.DECODE_SAMPLED, TimePart.DECODE_FORCED, TimePart.DECODE_ACCEPTED)
        shares = dict(zip(kinds, output_shares(request), strict=True))
    left, num_left = segment.end - segment.begin, sum(shares.values())
    first, *others = shares
    for part in others:
        taken = left * shares[part] // num_left if num_left else 0
        left, num_left = left - taken, num_left - shares[part]
        yield part, taken
    yield first, left


def output_shares(request: SpanNode) -> tuple[int, int, int]:
    """Of the output: sampled one by one, forced, accepted. A draft of what was forced anyway is not counted twice."""
    num_output = request.count(names.NUM_OUTPUT)
    num_forced = min(request.count(names.NUM_FORCED), num_output)
    num_accepted = min(request.count(names.NUM_ACCEPTED), num_output - num_forced)
    return num_output - num_forced - num_accepted, num_forced, num_accepted
