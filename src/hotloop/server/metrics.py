"""What Prometheus sees. Every name is documented in docs/metrics.md, and a test holds the two together.

Counters and gauges of the engine are read from its snapshot when a scrape asks; histograms are fed as things happen. A
scrape takes no lock that the engine's thread could wait for longer than one addition takes.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from operator import attrgetter

from prometheus_client import CollectorRegistry, Counter, Histogram, core, disable_created_metrics, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from hotloop.core.request import Priority, Request
from hotloop.core.version import __version__
from hotloop.engine.core import StepReport
from hotloop.engine.engine import Engine
from hotloop.http.trace_metrics import TraceCollector
from hotloop.server.account import PromptAccount
from hotloop.trace.tracer import NullTracer, Tracer

disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a second series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_STEPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_OVERHEADS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.25, 1.5, 2, 4, 10)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048)

Row = tuple[str, str, str]
_GAUGES: tuple[Row, ...] = (
    ("requests_running", "Requests in the batch.", "num_running"),
    ("sessions_admitted", "Sessions under way.", "num_admitted"),
    ("kv_blocks", "KV blocks there are.", "num_blocks"),
    ("kv_blocks_used", "KV blocks held by requests.", "num_blocks_used"),
    ("kv_blocks_cached", "KV blocks kept only for reuse.", "num_blocks_cached"),
    ("kv_host_blocks", "KV blocks there are in host memory.", "host.num_blocks"),
    ("kv_host_blocks_cached", "Those that hold KV.", "host.num_blocks_cached"),
    (
        "draft_model_tokens",
        "Tokens a draft model is asked for at a time.",
        "num_draft_model_tokens",
    ),
    ("states", "Slots for recurrent states there are.", "states.num_slots"),
    ("states_used", "Those held by requests.", "states.num_used"),
    ("states_cached", "Those kept only for reuse.", "states.num_cached"),
    ("states_offloaded", "Recurrent states in host memory.", "states.num_offloaded"),
    ("kv_disk_segments", "KV segments in the folder.", "disk.num_segments"),
    ("kv_disk_bytes", "Size of the folder.", "disk.num_bytes"),
)
_TOTALS: tuple[Row, ...] = (
    ("steps", "Steps of the engine.", "num_steps"),
    ("prompt_tokens", "Prompt tokens asked for.", "usage.num_prompt"),
    ("cached_prompt_tokens", "Prompt tokens found in the cache.", "usage.num_cached"),
    ("restored_prompt_tokens", "Cached prompt tokens read from disk.", "usage.num_restored"),
    ("host_prompt_tokens", "Cached prompt tokens copied back from host memory.", "usage.num_from_host"),
    ("output_tokens", "Tokens generated.", "usage.num_output"),
    ("sampled_tokens", "Generated tokens that were sampled.", "usage.num_sampled"),
    ("forced_tokens", "Generated tokens that a grammar left no choice about.", "usage.num_forced"),
    ("drafted_tokens", "Draft tokens proposed.", "usage.num_drafted"),
    ("accepted_draft_tokens", "Draft tokens accepted.", "usage.num_accepted"),
    ("grammar_cache_hits", "Grammars found compiled.", "num_grammar_hits"),
    ("grammar_cache_misses", "Grammars compiled.", "num_grammar_misses"),
    ("evicted_blocks", "Cached blocks evicted.", "num_evicted_blocks"),
    ("evicted_states", "Recurrent states evicted.", "states.num_evicted"),
    ("displaced_sessions", "Sessions displaced for lack of memory.", "num_displaced"),
    ("preemptions", "Requests preempted for lack of blocks.", "num_preemptions"),
    ("kv_host_offloaded_bytes", "KV copied to host memory.", "host.num_bytes_out"),
    ("kv_host_restored_bytes", "KV copied back from there.", "host.num_bytes_in"),
    ("kv_host_restores", "Times that a prefix was copied back.", "host.num_restores"),
    ("kv_disk_read_bytes", "KV read from disk.", "disk.num_bytes_read"),
    ("kv_disk_written_bytes", "KV written to disk.", "disk.num_bytes_written"),
    ("kv_disk_damaged", "KV segments found damaged.", "disk.num_damaged"),
    ("kv_disk_dropped", "KV segments that were not written.", "disk.num_dropped"),
)
"""Each with its name, what it is, and where in the engine's snapshot it is."""


class Metrics:
    def __init__(self, engine: Engine, model: str, tracer: Tracer | None = None) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine, model))
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
        self._limits = engine.config.class_limits
        first_token = "From arrival to the first token."
        self._first_token = self._histogram("time_to_first_token_seconds", first_token, _LATENCIES)
        self._request = self._histogram("request_seconds", "From arrival to the end.", _LATENCIES)
        self._queue = self._histogram("queue_seconds", "From arrival to the first step.", _LATENCIES)
        self._step = self._histogram("step_seconds", "One step of the engine.", _STEPS)
        overhead = "The part of a step that is not the backend."
        self._overhead = self._histogram("step_overhead_seconds", overhead, _OVERHEADS)
        self._step_requests = self._histogram("step_requests", "Requests in one step.", _SIZES)
        self._step_tokens = self._histogram("step_tokens", "Tokens computed in one step.", _TOKENS)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def observe_step(self, report: StepReport) -> None:
        """On the engine's thread, after each step."""
        self._step.observe(report.duration_s)
        self._overhead.observe(report.overhead_s)
        self._step_requests.observe(report.num_requests)
        self._step_tokens.observe(report.num_tokens)

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
            ratio = request.turn_wait_s / self._limits[request.priority].max_wait_s
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


class _EngineCollector(Collector):
    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model

    def collect(self) -> Iterator[core.Metric]:
        stats = self._engine.stats()
        yield core.InfoMetricFamily("hotloop", "What is running here.", {"version": __version__, "model": self._model})
        text = "Requests waiting for a place."
        waiting = core.GaugeMetricFamily("hotloop_requests_waiting", text, labels=("priority",))
        text = "How long requests of a class wait for their turn at most."
        most = core.GaugeMetricFamily("hotloop_class_max_wait_seconds", text, labels=("priority",))
        for priority, limits in zip(Priority, self._engine.config.class_limits, strict=True):
            waiting.add_metric((priority.name.lower(),), stats.num_waiting.get(priority, 0))
            most.add_metric((priority.name.lower(),), limits.max_wait_s)
        yield from (waiting, most)
        for family, rows in ((core.GaugeMetricFamily, _GAUGES), (core.CounterMetricFamily, _TOTALS)):
            for name, text, place in rows:
                yield family(f"hotloop_{name}", text, attrgetter(place)(stats))
