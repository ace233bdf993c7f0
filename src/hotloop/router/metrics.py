"""What Prometheus sees of the router. Every name is documented in docs/routing.md, which a test checks."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from hotloop.core.request import Priority
from hotloop.http.trace_metrics import TraceCollector
from hotloop.router.placement.pools import POOLS
from hotloop.router.replicas.replica_set import ReplicaSet
from hotloop.router.spending.spending import Spending
from hotloop.router.stabilise import StablePrompts
from hotloop.router.summary import AnswerSummary
from hotloop.router.tiers.tiers import Saved
from hotloop.trace.tracer import Tracer

disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a second series

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


Rows = Mapping[tuple[str, str, str], Mapping[str, float]]
"""Values by label; for each metric its name, the name of its label, and what it is."""


class RouterMetrics:
    def __init__(
        self,
        replica_set: ReplicaSet,
        find_saved: Callable[[], Saved],
        tracer: Tracer,
        stable: StablePrompts,
        spending: Spending,
    ) -> None:
        self.num_prompt = 0
        self.num_cached = 0
        self.registry = CollectorRegistry()
        self.registry.register(_StateCollector(replica_set, find_saved, stable, spending))
        self.registry.register(TraceCollector(tracer))
        self._requests = self._counter("requests", "Requests answered.", "api", "replica", "status")
        self._reasons = self._counter("placements", "Why a replica was chosen.", "replica", "reason")
        self._retries = self._counter("failures", "Attempts that failed before the first byte.", "replica", "why")
        self._broken = self._counter("broken_streams", "Streams that broke off.", "replica")
        self._resumed = self._counter(
            "resumed_streams", "Streams whose replica was lost, and how they went on.", "replica", "how"
        )
        self._prompt = self._counter("prompt_tokens", "Prompt tokens, as replicas count them.", "replica")
        self._cached = self._counter("cached_prompt_tokens", "Prompt tokens that need no prefill.", "replica")
        self._pool_prompt = self._counter("pool_prompt_tokens", "Prompt tokens by pool.", "pool")
        self._pool_cached = self._counter("pool_cached_prompt_tokens", "Those that need no prefill.", "pool")
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

    def count_ended(self, replica: str, summary: AnswerSummary, pool: str = "") -> None:
        num_prompt, num_cached = summary.num_prompt or 0, summary.num_cached or 0
        if pool:
            self._pool_prompt.labels(pool).inc(num_prompt)
            self._pool_cached.labels(pool).inc(num_cached)
        self.num_prompt += num_prompt
        self.num_cached += num_cached
        self._prompt.labels(replica).inc(num_prompt)
        self._cached.labels(replica).inc(num_cached)
        if summary.is_broken:
            self._broken.labels(replica).inc()

    def count_failure(self, replica: str, why: str) -> None:
        self._retries.labels(replica, why).inc()

    def count_resume(self, replica: str, how: str) -> None:
        """A stream that did not go on is counted as broken when it ends."""
        self._resumed.labels(replica, how).inc()

    def count_refusal(self, code: str) -> None:
        self._refused.labels(code).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"hotloop_router_{name}", text, labels, registry=self.registry)


class _StateCollector(Collector):
    def __init__(
        self, replica_set: ReplicaSet, find_saved: Callable[[], Saved], stable: StablePrompts, spending: Spending
    ) -> None:
        self._spending = spending
        self._replica_set = replica_set
        self._find_saved = find_saved
        self._stable = stable

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        saved, room, stable = self._find_saved(), self._replica_set.room, self._stable
        replicas, tallies = self._replica_set.replicas.items(), saved.tallies.items()
        about_up, about_elsewhere = "Whether a replica takes requests.", "Requests a replica has from others."
        gauges: Rows = {
            ("replica_up", "replica", about_up): {name: float(each.state == "up") for name, each in replicas},
            ("running", "replica", "Requests at a replica."): {name: each.num_running for name, each in replicas},
            ("elsewhere", "replica", about_elsewhere): {name: each.num_elsewhere for name, each in replicas},
            ("pool_running", "pool", "Requests at the replicas of a pool."): {
                pool: sum(each.num_running for _, each in replicas if each.config.pool == pool) for pool in POOLS
            },
            ("waiting", "priority", "Requests waiting for a place."): {
                priority.name.lower(): room.num_waiting(priority) for priority in Priority
            },
        }
        counters: Rows = {
            ("stabilised", "change", "Requests whose prompt was changed."): stable.num_changes,
            ("tier_answers", "tier", "Answers by tier."): {name: tally.num_answers for name, tally in tallies},
            ("tier_discarded", "tier", "Answers not taken."): {name: tally.num_discarded for name, tally in tallies},
            ("tier_cost", "tier", "Money spent, by the prices given."): {name: tally.cost for name, tally in tallies},
        }
        for kind, rows in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for (name, label, text), values in rows.items():
                family = kind(f"hotloop_router_{name}", text, labels=(label,))
                for key, value in values.items():
                    family.add_metric((key,), value)
                yield family
        money, seconds = "Less than always the largest would have cost.", "Less than the largest would have taken."
        yield from self._collect_spending()
        about = "Prompt tokens found thanks to stable prompts, by estimate."
        yield CounterMetricFamily("hotloop_router_stabilised_tokens", about, stable.num_saved)
        about = "What these would have cost beyond what they did, by the prices known."
        yield CounterMetricFamily("hotloop_router_stabilised_money", about, stable.money_saved)
        yield GaugeMetricFamily("hotloop_router_saved_money", money, saved.money)
        yield GaugeMetricFamily("hotloop_router_saved_seconds", seconds, saved.time_s)

    def _collect_spending(self) -> Iterator[CounterMetricFamily]:
        requests = CounterMetricFamily("hotloop_router_spent_requests", "Answers by key.", labels=("key", "model"))
        money = CounterMetricFamily("hotloop_router_spent_money", "What they cost.", labels=("key", "model"))
        about = "Their tokens: new and cached ones of prompts, and output."
        tokens = CounterMetricFamily("hotloop_router_spent_tokens", about, labels=("key", "model", "kind"))
        for place, totals in self._spending.totals.items():
            requests.add_metric(place, totals[0])
            for kind, amount in zip(("new", "cached", "output"), totals[1:4], strict=True):
                tokens.add_metric((*place, kind), amount)
            money.add_metric(place, totals[4])
        yield from (requests, tokens, money)
