"""What Prometheus sees of the router. Every name is documented in docs/metrics.md, which a test checks."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from hotloop.border.trace_metrics import TraceCollector
from hotloop.core.request import Priority
from hotloop.router.replicas.fleet import Fleet
from hotloop.router.summary import AnswerSummary
from hotloop.router.tiers.saved import Saved
from hotloop.trace.tracer import NullTracer, Tracer

disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a second series

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class RouterMetrics:
    """Everything measured about one router, in a registry of its own."""

    def __init__(self, fleet: Fleet, find_saved: Callable[[], Saved], tracer: Tracer | None = None) -> None:
        self.num_prompt = 0
        self.num_cached = 0
        self.registry = CollectorRegistry()
        self.registry.register(_FleetCollector(fleet))
        self.registry.register(_TiersCollector(find_saved))
        self.registry.register(TraceCollector(tracer or NullTracer()))
        self._requests = self._counter("requests", "Requests answered.", "api", "replica", "status")
        self._reasons = self._counter("placements", "Why a replica was chosen.", "replica", "reason")
        self._retries = self._counter("failures", "Attempts that failed before the first byte.", "replica", "why")
        self._broken = self._counter("broken_streams", "Streams that broke off.", "replica")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens, as replicas count them.", "replica")
        self._cached = self._counter("cached_prompt_tokens", "Prompt tokens replicas need not read.", "replica")
        self._refused = self._counter("refusals", "Requests the router answered with an error.", "code")
        self._first_byte = Histogram(
            "hotloop_router_first_byte_seconds",
            "From the request to the first byte of its answer.",
            buckets=_LATENCIES,
            registry=self.registry,
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def count_begun(self, api: str, replica: str, status: int, reason: str, first_byte_s: float) -> None:
        self._requests.labels(api, replica, str(status)).inc()
        self._reasons.labels(replica, reason.partition(",")[0]).inc()
        self._first_byte.observe(first_byte_s)

    def count_ended(self, replica: str, summary: AnswerSummary) -> None:
        num_prompt, num_cached = summary.num_prompt or 0, summary.num_cached or 0
        self.num_prompt += num_prompt
        self.num_cached += num_cached
        self._prompt.labels(replica).inc(num_prompt)
        self._cached.labels(replica).inc(num_cached)
        if summary.is_broken:
            self._broken.labels(replica).inc()

    def count_failure(self, replica: str, why: str) -> None:
        self._retries.labels(replica, why).inc()

    def count_refusal(self, code: str) -> None:
        self._refused.labels(code).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"hotloop_router_{name}", text, labels, registry=self.registry)


class _FleetCollector(Collector):
    """How the fleet is, read when somebody asks."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("hotloop_router_replica_up", "Whether a replica takes requests.", labels=("replica",))
        running = GaugeMetricFamily("hotloop_router_running", "Requests at a replica.", labels=("replica",))
        elsewhere = GaugeMetricFamily(
            "hotloop_router_elsewhere", "Requests a replica has from others.", labels=("replica",)
        )
        for replica in self._fleet.replicas.values():
            up.add_metric((replica.name,), float(replica.state == "up"))
            running.add_metric((replica.name,), replica.num_running)
            elsewhere.add_metric((replica.name,), replica.num_elsewhere)
        waiting = GaugeMetricFamily("hotloop_router_waiting", "Requests waiting for a place.", labels=("priority",))
        for priority in Priority:
            waiting.add_metric((priority.name.lower(),), self._fleet.room.num_waiting(priority))
        yield from (up, running, elsewhere, waiting)


class _TiersCollector(Collector):
    """What tiers did and saved; nothing where there are none."""

    def __init__(self, find_saved: Callable[[], Saved]) -> None:
        self._find_saved = find_saved

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        answers = CounterMetricFamily("hotloop_router_tier_answers", "Answers by tier.", labels=("tier",))
        discarded = CounterMetricFamily("hotloop_router_tier_discarded", "Answers not taken.", labels=("tier",))
        cost = CounterMetricFamily("hotloop_router_tier_cost", "Money spent, by the prices given.", labels=("tier",))
        saved = self._find_saved()
        for name, tally in saved.tallies.items():
            answers.add_metric((name,), tally.num_answers)
            discarded.add_metric((name,), tally.num_discarded)
            cost.add_metric((name,), tally.cost)
        money = GaugeMetricFamily("hotloop_router_saved_money", "Less than always the largest would have cost.")
        seconds = GaugeMetricFamily("hotloop_router_saved_seconds", "Less than the largest would have taken.")
        money.add_metric((), saved.money)
        seconds.add_metric((), saved.time_s)
        yield from (answers, discarded, cost, money, seconds)
