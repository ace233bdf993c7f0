"""What Prometheus sees of requests, fed as things happen; the engine's part of the page is in `engine_metrics`. Every
name is documented in docs/metrics.md, and a test holds the two together.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain

from prometheus_client import CollectorRegistry, Counter, Histogram, core, disable_created_metrics, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from hotloop.core.config import ClassLimits
from hotloop.core.request import Request
from hotloop.http.trace_metrics import TraceCollector
from hotloop.server.account import PromptAccount
from hotloop.trace.tracer import NullTracer, Tracer

disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a second series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.25, 1.5, 2, 4, 10)


Counts = list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]
"""Metrics that can be added up: of each its name, what it is, its type, and its samples by name and labels."""


def add_counts(*counts: Counts) -> Counts:
    families: dict[str, tuple[str, str, dict[tuple[str, tuple[tuple[str, str], ...]], float]]] = {}
    for name, text, kind, samples in chain.from_iterable(counts):
        _, _, sums = families.setdefault(name, (text, kind, {}))
        for sample, labels, value in samples:
            key = sample, tuple(labels.items())
            sums[key] = sums.get(key, 0) + value
    return [
        (name, text, kind, [(sample, dict(labels), value) for (sample, labels), value in sums.items()])
        for name, (text, kind, sums) in families.items()
    ]


class Metrics:
    def __init__(self, class_limits: Callable[[], Sequence[ClassLimits]], tracer: Tracer | None = None) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(TraceCollector(tracer or NullTracer()))
        self._gap = _GapCollector()
        self.registry.register(self._gap)
        self._requests = self._counter("requests", "Requests that ended.", "endpoint", "finish_reason")
        self._http_errors = self._counter("http_errors", "HTTP responses of 400 and above.", "status")
        self._explained = self._counter("explained_prompt_tokens", "Where prompt tokens came from.", "kind")
        self._recomputed = self._counter("prompt_tokens_recomputed", "Why prompt tokens were recomputed.", "cause")
        self._waits = self._counter("wait_seconds", "What requests waited for.", "reason")
        ratio = "Wait for a turn, divided by the class's maximum."
        self._turn_wait = self._histogram("class_wait_ratio", ratio, _RATIOS, "priority")
        self._limits_now = class_limits
        first_token = "From arrival to the first token."
        self._first_token = self._histogram("time_to_first_token_seconds", first_token, _LATENCIES)
        self._request = self._histogram("request_seconds", "From arrival to the end.", _LATENCIES)
        self._queue = self._histogram("queue_seconds", "From arrival to the first step.", _LATENCIES)

    def count(self) -> Counts:
        return [
            (
                family.name,
                family.documentation,
                family.type,
                [(each.name, each.labels, each.value) for each in family.samples],
            )
            for family in self.registry.collect()
        ]

    def render(self, others: Counts) -> bytes:
        """One page for this process and others."""
        return generate_latest(_Sum(add_counts(self.count(), others)))

    def observe_gaps(self, gaps: Mapping[tuple[float, int], int]) -> None:
        """How many streams have waited so long for so many tokens. Tokens that came together share the time."""
        for (gap_s, num_tokens), num_streams in gaps.items():
            self._gap.observe(gap_s / max(num_tokens, 1), num_tokens * num_streams)

    def observe_finish(self, request: Request, endpoint: str) -> None:
        self._requests.labels(endpoint, request.finish_reason or "").inc()
        self._request.observe(time.monotonic() - request.arrived_at)
        if request.first_scheduled_at is not None:
            self._queue.observe(request.first_scheduled_at - request.arrived_at)
        if request.turn_wait_s is not None:
            ratio = request.turn_wait_s / self._limits_now()[request.priority].max_wait_s
            self._turn_wait.labels(request.priority.name.lower()).observe(ratio)
        for wait, wait_s in request.usage.waits_s.items():
            self._waits.labels(wait.value).inc(wait_s)
        if request.first_token_at is not None:
            self._first_token.observe(request.first_token_at - request.arrived_at)

    def count_prompt(self, account: PromptAccount) -> None:
        """A prompt was prefilled; of several choices, by the first."""
        self._explained.labels("cached").inc(account.num_cached)
        self._explained.labels("new").inc(account.num_new)
        self._explained.labels("recomputed").inc(account.num_recomputed)
        for cause in account.causes:
            if cause.reason != "cold":
                self._recomputed.labels(cause.reason).inc(cause.num_tokens)

    def count_http_error(self, status: int) -> None:
        self._http_errors.labels(str(status)).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"hotloop_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"hotloop_{name}", text, labels, buckets=buckets, registry=self.registry)


class _Sum(CollectorRegistry):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def collect(self) -> Iterable[core.Metric]:
        for name, text, kind, samples in self._counts:
            metric = core.Metric(name, text, kind)
            for sample in samples:
                metric.add_sample(*sample)
            yield metric


class _GapCollector(Collector):
    """Times between two tokens of a request. Fed many at once, on the event loop, as is whoever reads it."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_GAPS) + 1)
        self._sum_s = 0.0

    def observe(self, gap_s: float, num_times: int) -> None:
        self._counts[bisect_left(_GAPS, gap_s)] += num_times
        self._sum_s += gap_s * num_times

    def collect(self) -> Iterator[core.HistogramMetricFamily]:
        bounds = [*map(floatToGoString, _GAPS), "+Inf"]
        buckets = [*zip(bounds, accumulate(self._counts), strict=True)]
        text = "Between two tokens of one request."
        yield core.HistogramMetricFamily("hotloop_inter_token_seconds", text, buckets, self._sum_s)
