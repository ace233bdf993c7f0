"""The engine's part of the metrics page: counters and gauges are read from its snapshot when a scrape asks, histograms
of steps are fed on its thread. A scrape takes no lock that thread could wait for longer than one addition takes.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter

from prometheus_client import CollectorRegistry, Gauge, Histogram, core, generate_latest
from prometheus_client.registry import Collector

from hotloop.core.request import Priority
from hotloop.core.version import __version__
from hotloop.engine.core import StepReport
from hotloop.engine.engine import Engine

_STEPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_OVERHEADS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048)
_WINDOW_S = 10

Row = tuple[str, str, str]
_GAUGES: tuple[Row, ...] = (
    ("requests_running", "Requests in the batch.", "num_running"),
    ("sessions_admitted", "Sessions under way.", "num_admitted"),
    ("kv_blocks", "KV blocks there are.", "num_blocks"),
    ("kv_blocks_used", "KV blocks held by requests.", "num_blocks_used"),
    ("kv_blocks_cached", "KV blocks kept only for reuse.", "num_blocks_cached"),
    ("kv_host_blocks", "KV blocks there are in host memory.", "num_host_blocks"),
    ("kv_host_blocks_cached", "Those that hold KV.", "num_host_blocks_cached"),
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
    ("restored_prompt_tokens", "Cached prompt tokens read from disk or another server.", "usage.num_restored"),
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
    ("kv_host_restores", "Times that a prefix was copied back.", "host.num_copies"),
    ("kv_disk_read_bytes", "KV read from disk.", "disk.num_bytes_read"),
    ("kv_disk_written_bytes", "KV written to disk.", "disk.num_bytes_written"),
    ("kv_disk_damaged", "KV segments found damaged.", "disk.num_damaged"),
    ("kv_moves", "Times that KV came from another server.", "moves.num_copies"),
    ("kv_moves_failed", "Times that it did not, or not all of it.", "moves.num_failed"),
    ("kv_moved_in_bytes", "KV that came from other servers.", "moves.num_bytes_in"),
    ("kv_moved_out_bytes", "KV that was sent to other servers.", "moves.num_bytes_out"),
    ("kv_disk_dropped", "KV segments that were not written.", "disk.num_dropped"),
)
"""Each with its name, what it is, and where in the engine's snapshot it is."""


class Utilization:
    """What share of the last ten whole seconds the device computed, by what steps took of it. A step counts for the
    second in which it ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._busy: deque[tuple[int, float]] = deque(maxlen=_WINDOW_S + 1)  # seconds, and how much of each

    def add(self, busy_s: float) -> None:
        second = int(self._clock())
        if self._busy and self._busy[-1][0] == second:
            self._busy[-1] = second, self._busy[-1][1] + busy_s
        else:
            self._busy.append((second, busy_s))

    def share(self) -> float:
        now = int(self._clock())
        busy_s = sum(busy_s for second, busy_s in list(self._busy) if now - _WINDOW_S <= second < now)
        return min(1.0, busy_s / _WINDOW_S)


class EngineMetrics:
    def __init__(self, engine: Engine, model: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine, model))
        self._utilization = Utilization()
        share = Gauge(
            "hotloop_device_utilization", "Share of the last 10 s that the device computed.", registry=self._registry
        )
        share.set_function(self._utilization.share)
        self._step = self._histogram("step_seconds", "One step of the engine.", _STEPS)
        overhead = "The part of a step that is not the backend."
        self._overhead = self._histogram("step_overhead_seconds", overhead, _OVERHEADS)
        self._step_requests = self._histogram("step_requests", "Requests in one step.", _SIZES)
        self._step_tokens = self._histogram("step_tokens", "Tokens computed in one step.", _TOKENS)
        engine.on_step = self._observe_step

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _observe_step(self, report: StepReport) -> None:
        """On the engine's thread, after each step."""
        self._step.observe(report.duration_s)
        self._overhead.observe(report.overhead_s)
        self._utilization.add(report.duration_s - report.overhead_s)
        self._step_requests.observe(report.num_requests)
        self._step_tokens.observe(report.num_tokens)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"hotloop_{name}", text, buckets=buckets, registry=self._registry)


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
