"""What Prometheus sees of an agent's runs, fed with their events. Every name is documented in docs/agents.md, which a
test checks. What sub-agents do counts as the run's own.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from hotloop.agent import events
from hotloop.http.trace_metrics import TraceCollector
from hotloop.trace.tracer import Tracer
from hotloop.wire.usage import ApiUsage

disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a second series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_RUN = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


class AgentMetrics:
    def __init__(self, tracer: Tracer) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(TraceCollector(tracer))
        self._begun = self._counter("runs_begun", "Runs that began, or were gone on with.")
        self._ended = self._counter("runs_ended", "Runs that ended, by how.", "end")
        self._running = Gauge("hotloop_agent_runs_running", "Runs that go on.", registry=registry)
        self._run = self._histogram("run_seconds", "From a run's beginning to its end.", _RUN)
        self._turns = self._counter("turns", "Turns that ended.")
        self._calls = self._counter("calls", "Calls of tools that ended.", "tool", "outcome")
        self._tokens = self._counter("tokens", "Tokens of models, by kind.", "kind")
        first_token = "From a turn's beginning to the first token of its answer."
        self._first_token = self._histogram("time_to_first_token_seconds", first_token, _FIRST_TOKEN)
        self._errors = self._counter("http_errors", "HTTP responses of 400 and above.", "status")

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def count_http_error(self, status: int) -> None:
        self._errors.labels(str(status)).inc()

    def watch(self) -> Callable[[events.Event], None]:
        """What is told the events of one run."""
        turns: dict[str, float] = {}
        called: set[str] = set()

        def hear(event: events.Event, run_id: str = "") -> None:
            match event:
                case events.SubAgentEvent():
                    if not isinstance(event.inner, events.RunStarted | events.RunEnded):
                        hear(event.inner, event.run_id)
                case events.RunStarted() | events.RunEnded():
                    self._count_run(event)
                case events.TurnStarted():
                    turns[run_id] = event.at
                case events.Text() | events.CallOpened():
                    if (began_at := turns.pop(run_id, None)) is not None:
                        self._first_token.observe(event.at - began_at)
                case events.TurnFinished() | events.Compacted():
                    self._turns.inc(isinstance(event, events.TurnFinished))
                    self._count_tokens(event.usage)
                case events.CallDispatched():
                    called.add(event.name)
                case events.CallFinished():
                    # Models make up names: only those of tools that have run are told apart.
                    tool, outcome = event.name if event.name in called else "", "error" if event.is_error else "ok"
                    self._calls.labels(tool, outcome).inc()

        return hear

    def _count_run(self, event: events.RunStarted | events.RunEnded) -> None:
        if isinstance(event, events.RunStarted):
            self._begun.inc()
            self._running.inc()
        else:
            self._running.dec()
            self._ended.labels(event.end).inc()
            self._run.observe(event.at_s)

    def _count_tokens(self, usage: ApiUsage) -> None:
        num_cached = usage.num_cached or 0
        for kind, count in (
            ("new", usage.num_prompt - num_cached),
            ("cached", num_cached),
            ("output", usage.num_output),
        ):
            self._tokens.labels(kind).inc(max(count, 0))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"hotloop_agent_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"hotloop_agent_{name}", text, buckets=buckets, registry=self._registry)
