"""What Prometheus sees. Every name is documented in docs/metrics.md, and a test holds the two together.

Counters and gauges of the engine are read from its snapshot when a scrape asks; histograms are fed as things happen. A
scrape takes no lock that the engine's thread could wait for longer than one addition takes.
"""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from hotloop.border.trace_metrics import TraceCollector
from hotloop.core.request import FinishReason, Priority, Request
from hotloop.core.version import __version__
from hotloop.engine.core import StepReport
from hotloop.engine.disk.store import DiskStats
from hotloop.engine.engine import Engine
from hotloop.engine.host import HostStats
from hotloop.engine.snapshot import EngineStats
from hotloop.server.account import Account
from hotloop.trace.tracer import NullTracer, Tracer

disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a second series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_STEPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_OVERHEADS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048)

Family = CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily


class Metrics:
    """Everything measured about one engine and its server, in a registry of its own."""

    def __init__(self, engine: Engine, model: str, tracer: Tracer | None = None) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine, model))
        self.registry.register(TraceCollector(tracer or NullTracer()))
        self._requests = Counter(
            "hotloop_requests", "Requests that ended.", ("endpoint", "finish_reason"), registry=self.registry
        )
        self._http_errors = Counter(
            "hotloop_http_errors", "HTTP responses of 400 and above.", ("status",), registry=self.registry
        )
        self._explained = Counter(
            "hotloop_explained_prompt_tokens", "Where prompt tokens came from.", ("kind",), registry=self.registry
        )
        self._recomputed = [
            Counter(name, text, ("cause",), registry=self.registry)
            for name, text in (
                ("hotloop_prompt_tokens_recomputed", "Why prompt tokens were recomputed."),
                ("hotloop_prompt_tokens_read_again", "The old name of hotloop_prompt_tokens_recomputed."),
            )
        ]
        self._first_token = self._histogram(
            "hotloop_time_to_first_token_seconds", "From arrival to the first token.", _LATENCIES
        )
        self._gap = self._histogram("hotloop_inter_token_seconds", "Between two tokens of one request.", _GAPS)
        self._request = self._histogram("hotloop_request_seconds", "From arrival to the end.", _LATENCIES)
        self._queue = self._histogram("hotloop_queue_seconds", "From arrival to the first step.", _LATENCIES)
        self._waits = Counter("hotloop_wait_seconds", "What requests waited for.", ("reason",), registry=self.registry)
        self._step = self._histogram("hotloop_step_seconds", "One step of the engine.", _STEPS)
        self._overhead = self._histogram(
            "hotloop_step_overhead_seconds", "The part of a step that is not the backend.", _OVERHEADS
        )
        self._step_requests = self._histogram("hotloop_step_requests", "Requests in one step.", _SIZES)
        self._step_tokens = self._histogram("hotloop_step_tokens", "Tokens computed in one step.", _TOKENS)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def observe_step(self, report: StepReport) -> None:
        """On the engine's thread, after each step."""
        self._step.observe(report.duration_s)
        self._overhead.observe(report.overhead_s)
        self._step_requests.observe(report.num_requests)
        self._step_tokens.observe(report.num_tokens)

    def observe_gap(self, gap_s: float, num_tokens: int) -> None:
        """Tokens that came together share the time since the last ones."""
        for _ in range(num_tokens):
            self._gap.observe(gap_s / num_tokens)

    def observe_finish(self, request: Request, endpoint: str, reason: FinishReason) -> None:
        self._requests.labels(endpoint, reason.value).inc()
        self._request.observe(time.monotonic() - request.arrived_at)
        if request.first_scheduled_at is not None:
            self._queue.observe(request.first_scheduled_at - request.arrived_at)
        for wait, wait_s in request.usage.waits_s.items():
            self._waits.labels(wait.value).inc(wait_s)
        if request.first_token_at is not None:
            self._first_token.observe(request.first_token_at - request.arrived_at)

    def count_reading(self, account: Account) -> None:
        """A prompt was read; of several choices, by the first."""
        self._explained.labels("cached").inc(account.num_cached)
        self._explained.labels("new").inc(account.num_new)
        self._explained.labels("again").inc(account.num_again)
        for cause in account.causes:
            if cause.reason != "cold":
                for counter in self._recomputed:
                    counter.labels(cause.reason).inc(cause.num_tokens)

    def count_http_error(self, status: int) -> None:
        self._http_errors.labels(str(status)).inc()

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)


class _EngineCollector(Collector):
    """The engine's own totals, read when somebody asks."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model

    def collect(self) -> Iterator[Family]:
        stats = self._engine.stats()
        yield InfoMetricFamily("hotloop", "What is running here.", {"version": __version__, "model": self._model})
        yield from _gauges(stats)
        yield from _totals(stats)
        yield from _host(stats.host)
        yield from _disk(stats.disk)


def _gauges(stats: EngineStats) -> Iterator[GaugeMetricFamily]:
    waiting = GaugeMetricFamily("hotloop_requests_waiting", "Requests waiting for a place.", labels=("priority",))
    for priority in Priority:
        waiting.add_metric((priority.name.lower(),), stats.num_waiting.get(priority, 0))
    yield waiting
    yield GaugeMetricFamily("hotloop_requests_running", "Requests in the batch.", stats.num_running)
    yield GaugeMetricFamily("hotloop_sessions_seated", "Sessions under way.", stats.num_seated)
    yield GaugeMetricFamily("hotloop_kv_blocks", "KV blocks there are.", stats.num_blocks)
    yield GaugeMetricFamily("hotloop_kv_blocks_used", "KV blocks held by requests.", stats.num_blocks_used)
    yield GaugeMetricFamily("hotloop_kv_blocks_cached", "KV blocks kept only for reuse.", stats.num_blocks_cached)


def _totals(stats: EngineStats) -> Iterator[CounterMetricFamily]:
    yield CounterMetricFamily("hotloop_steps", "Steps of the engine.", stats.num_steps)
    yield CounterMetricFamily("hotloop_prompt_tokens", "Prompt tokens asked for.", stats.usage.num_prompt)
    yield CounterMetricFamily(
        "hotloop_cached_prompt_tokens", "Prompt tokens found in the cache.", stats.usage.num_cached
    )
    yield CounterMetricFamily(
        "hotloop_restored_prompt_tokens", "Cached prompt tokens read from disk.", stats.usage.num_restored
    )
    yield CounterMetricFamily(
        "hotloop_host_prompt_tokens", "Cached prompt tokens copied back from host memory.", stats.usage.num_from_host
    )
    yield CounterMetricFamily("hotloop_output_tokens", "Tokens generated.", stats.usage.num_output)
    yield CounterMetricFamily("hotloop_sampled_tokens", "Generated tokens that were sampled.", stats.usage.num_sampled)
    yield CounterMetricFamily(
        "hotloop_forced_tokens", "Generated tokens that a grammar left no choice about.", stats.usage.num_forced
    )
    yield CounterMetricFamily("hotloop_drafted_tokens", "Tokens guessed and computed ahead.", stats.usage.num_drafted)
    yield CounterMetricFamily(
        "hotloop_accepted_draft_tokens", "Guessed tokens that were right.", stats.usage.num_accepted
    )
    yield CounterMetricFamily("hotloop_grammar_cache_hits", "Grammars found compiled.", stats.num_grammar_hits)
    yield CounterMetricFamily("hotloop_grammar_cache_misses", "Grammars compiled.", stats.num_grammar_misses)
    yield CounterMetricFamily("hotloop_evicted_blocks", "Cached blocks given up for room.", stats.num_evicted_blocks)
    yield CounterMetricFamily("hotloop_swapped_sessions", "Sessions put back for lack of room.", stats.num_swapped)
    yield CounterMetricFamily("hotloop_preemptions", "Requests put back for lack of blocks.", stats.num_preemptions)


def _host(stats: HostStats) -> Iterator[Family]:
    yield GaugeMetricFamily("hotloop_kv_host_blocks", "KV blocks there are in host memory.", stats.num_blocks)
    yield GaugeMetricFamily("hotloop_kv_host_blocks_cached", "Those that hold KV.", stats.num_blocks_cached)
    yield CounterMetricFamily("hotloop_kv_host_offloaded_bytes", "KV copied to host memory.", stats.num_bytes_out)
    yield CounterMetricFamily("hotloop_kv_host_restored_bytes", "KV copied back from there.", stats.num_bytes_in)
    yield CounterMetricFamily("hotloop_kv_host_restores", "Times that a prefix was copied back.", stats.num_restores)


def _disk(stats: DiskStats) -> Iterator[Family]:
    yield GaugeMetricFamily("hotloop_kv_disk_segments", "KV segments in the folder.", stats.num_segments)
    yield GaugeMetricFamily("hotloop_kv_disk_bytes", "Size of the folder.", stats.num_bytes)
    yield CounterMetricFamily("hotloop_kv_disk_read_bytes", "KV read from disk.", stats.num_bytes_read)
    yield CounterMetricFamily("hotloop_kv_disk_written_bytes", "KV written to disk.", stats.num_bytes_written)
    yield CounterMetricFamily("hotloop_kv_disk_damaged", "KV segments found damaged.", stats.num_damaged)
    yield CounterMetricFamily("hotloop_kv_disk_dropped", "KV segments that were not written.", stats.num_dropped)
