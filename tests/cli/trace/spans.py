"""A run of two turns to the millisecond: an agent, a router with two replicas, their servers, and three tools."""

from pathlib import Path
from typing import Any

from hotloop.trace import names
from hotloop.trace.content import Content
from hotloop.trace.span import Span
from hotloop.trace.store import Bounds, StoreTracer

MS = 1_000_000
START_NS = 1_790_000_000 * 10**9
OLD, NEW = "a1" * 16, "b2" * 16


class Trace:
    """Spans of one trace, numbered as they are added; times in milliseconds since it began."""

    def __init__(self, trace_id: str, start_ns: int = START_NS) -> None:
        self.trace_id = trace_id
        self.start_ns = start_ns
        self.spans: list[Span] = []

    def at(self, ms: float) -> int:
        return self.start_ns + round(ms * MS)

    def add(
        self,
        name: str,
        service: str,
        begin: float,
        end: float,
        parent: Span | None = None,
        /,
        *,
        error: str = "",
        **told: Any,
    ) -> Span:
        span = Span(
            trace_id=self.trace_id,
            span_id=f"{len(self.spans) + 1:016x}",
            parent_id=parent.span_id if parent else None,
            name=name,
            service=service,
            start_ns=self.at(begin),
            end_ns=self.at(end),
            session="s-1",
            attributes=told,
            error=error,
        )
        self.spans.append(span)
        return span

    def served(self, parent: Span | None, service: str, times: tuple[float, ...], **told: Any) -> Span:
        """A request of a server's, which arrives, is scheduled, has its first token and its last."""
        request = self.add(names.REQUEST, service, times[0], times[-1], parent, model="tiny", **told)
        for name, begin, end in zip((names.QUEUE, names.PREFILL, names.DECODE), times, times[1:], strict=False):
            self.add(name, service, begin, end, request)
        return request


def clerk(trace_id: str = OLD, *, is_warm: bool = True, start_ns: int = START_NS) -> list[Span]:
    """Turn 1 calls two tools, one of which was speculative; turn 2 answers. Not warm, it has to read turn 2 again."""
    trace = Trace(trace_id, start_ns)
    late = 0 if is_warm else 200
    run = trace.add(
        names.RUN, "agent", 0, 1000 + late, agent="clerk", end="done", run_id="r", num_turns=2, money=0.0021
    )
    turn = trace.add(names.TURN, "agent", 0, 600, run, turn=1)
    chat = trace.add(names.CHAT, "agent", 0, 300, turn, first_token_ns=trace.at(120), num_prompt=100, num_output=20)
    route = trace.add(names.ROUTE, "router", 10, 300, chat, replica="east", reason="load")
    trace.add(names.ATTEMPT, "router", 10, 15, route, error="it is down", replica="west")
    attempt = trace.add(names.ATTEMPT, "router", 15, 300, route, replica="east")
    cold = [{"reason": "cold", "num_tokens": 100}]
    tokens = {"num_prompt": 100, "num_cached": 0, "num_new": 100, "num_recomputed": 0, "causes": cold}
    written = {"num_output": 20, "num_sampled": 15, "num_forced": 5, "num_drafted": 8, "num_accepted": 6}
    trace.served(attempt, "server:tiny@1", (20, 40, 120, 300), **tokens, **written)
    trace.add(
        names.TOOL,
        "agent",
        160,
        560,
        turn,
        tool="search",
        call_id="1",
        dispatched_ns=trace.at(200),
        was_speculative=True,
    )
    trace.add(
        names.TOOL, "agent", 250, 350, turn, tool="weather", call_id="2", dispatched_ns=trace.at(250), is_error=True
    )
    trace.add(names.SPECULATIVE, "agent", 150, 180, turn, tool="news", was_used=False, confidence=0.4)
    turn = trace.add(names.TURN, "agent", 600, 1000 + late, run, turn=2)
    chat = trace.add(names.CHAT, "agent", 600, 1000 + late, turn, num_prompt=180, num_output=30)
    written = {"num_output": 30, "num_sampled": 30, "num_forced": 0}
    trace.served(chat, "server:tiny@1", (600, 600, 640 + late, 1000 + late), **_second(is_warm), **written)
    return trace.spans


def _second(is_warm: bool) -> dict[str, Any]:
    if is_warm:
        block = {"reason": "block", "num_tokens": 8}
        return {"num_prompt": 180, "num_cached": 112, "num_new": 60, "num_recomputed": 8, "causes": [block]}
    divergence = {"reason": "diverged", "num_tokens": 104, "token_index": 16, "kind": "system", "index": 0}
    words = {"before": "It is ", "previous": "12:03\x1b[2J", "current": "[red]12:04"}
    tokens = {"num_prompt": 180, "num_cached": 16, "num_new": 60, "num_recomputed": 104, "causes": [divergence]}
    return {**tokens, names.CONTENT_WORDS: [words]}


def plain(trace_id: str = "c3" * 16, *, start_ns: int = START_NS) -> list[Span]:
    """What a client without an agent leaves behind: two requests of one session."""
    trace = Trace(trace_id, start_ns)
    for begin in (0, 500):
        told = {
            "num_prompt": 10,
            "num_cached": 0,
            "num_new": 10,
            "num_recomputed": 0,
            "num_output": 3,
            "num_sampled": 3,
        }
        trace.served(None, "server:tiny@1", (begin, begin + 10, begin + 50, begin + 400), **told)
    return trace.spans


def fill(path: Path, *runs: list[Span]) -> Path:
    bounds = Bounds(max_age_days=1e5)  # these runs are as old as the test is
    tracer = StoreTracer(path, bounds=bounds, content=Content(is_kept=True))
    for spans in runs:
        for span in spans:
            tracer.record(span)
    tracer.close()
    return path
