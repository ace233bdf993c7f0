"""Does it stay as it was? The engine on the null backend under random load, watched for creeping memory and step time.

The load is what wears an engine: conversations that grow and are given up, aborts in the middle of answers, three
priorities, and a pool too small for all of them, so that blocks are evicted and requests preempted all the time. Some
answers follow a grammar, of more shapes than are kept; what was said before is drafted again.

Watched from when the pool has been filled and emptied some times: before, ever longer conversations compete for ever
less room, so that a step costs ever more, which is the load's doing and not the engine's.
"""

import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from cyclopts.types import PositiveFloat
from rich.table import Table

from benchmarks.command import main, show_report
from benchmarks.overhead import words_tokenizer
from hotloop.backends.null import NullBackend
from hotloop.bench.report import figures_table
from hotloop.cli.loading import console
from hotloop.cli.settings import Json
from hotloop.core.config import EngineConfig
from hotloop.core.grammar import Grammar
from hotloop.core.request import FinishReason, Priority, Request, SamplingParams, TokenEvent
from hotloop.engine.core import StepReport
from hotloop.engine.engine import Engine
from hotloop.engine.grammar.matcher import estimate_bytes
from hotloop.engine.snapshot import EngineStats

_VOCAB_SIZE = 1000
_BLOCK_SIZE = 16
_NUM_BLOCKS = 1024
_NUM_OPEN = 48
_NUM_SESSIONS = 64
_MAX_SESSION_TOKENS = 2000
_NUM_SAMPLES = 120
_WARMING_S = 0.5
_GRAMMARS = [Grammar("lark", f"start: {'WORD ' * count}\nWORD: /w[0-9][0-9]/") for count in range(1, 41)]


@dataclass(frozen=True, slots=True)
class Sample:
    """The process at one moment, and the mean step since the moment before: by the clock, what of it was not the
    backend's, and the processor time the engine's thread had for it, which a busy machine does not change."""

    rss_bytes: int
    step_ms: float
    overhead_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class SoakReport:
    """How it began and how it ended, each the mean of a quarter of the samples."""

    duration_s: float
    num_steps: int
    num_finished: int
    num_aborted: int
    num_failed: int
    num_preemptions: int
    num_evicted_blocks: int
    num_leaked_blocks: int
    first: Sample
    last: Sample

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_table(self) -> Table:
        table = figures_table("", ("first quarter", "last quarter", "ratio"))
        for title, name, unit, scale in (
            ("memory", "rss_bytes", "MB", 1e-6),
            ("a step", "step_ms", "ms", 1),
            ("a step beside the model", "overhead_ms", "ms", 1),
            ("a step in processor time", "cpu_ms", "ms", 1),
        ):
            first, last = scale * getattr(self.first, name), scale * getattr(self.last, name)
            table.add_row(title, f"{first:.2f} {unit}", f"{last:.2f} {unit}", f"{last / first:.3f}")
        table.caption = (
            f"{self.duration_s:.0f} s, {self.num_steps:,} steps, {self.num_finished:,} finished, "
            f"{self.num_aborted:,} aborted, {self.num_failed:,} failed, {self.num_preemptions:,} preemptions, "
            f"{self.num_evicted_blocks:,} blocks evicted, {self.num_leaked_blocks} leaked"
        )
        table.caption_justify = "left"
        return table


def run_soak(duration_s: float, seed: int = 0, num_warming_blocks: int = 8 * _NUM_BLOCKS) -> SoakReport:
    """The load for so long, after it has had so many blocks evicted."""
    backend = NullBackend(block_size=_BLOCK_SIZE, num_blocks=_NUM_BLOCKS, vocab_size=_VOCAB_SIZE)
    config = EngineConfig(
        max_running=32,
        max_step_tokens=256,
        max_waiting=_NUM_OPEN,
        grammar_memory=f"{sum(map(estimate_bytes, _GRAMMARS)) // 2}B",
        draft_history_tokens=20_000,
        debug_checks=True,
    )
    words = [*"w0123456789", *(f"w{i}" for i in range(_VOCAB_SIZE - 12))]
    with Engine(words_tokenizer(words, "</s>"), backend, config) as engine:
        watch = _Watch()
        engine.on_step = watch.on_step
        load = _Load(engine, random.Random(seed))
        while engine.stats().num_evicted_blocks < num_warming_blocks:
            load.run_until(time.monotonic() + _WARMING_S)
        watch.begin()
        began_at = time.monotonic()
        for number in range(1, _NUM_SAMPLES + 1):
            load.run_until(began_at + duration_s * number / _NUM_SAMPLES)
            watch.take_sample()
        load.finish()
        return _report(time.monotonic() - began_at, engine.stats(), watch.samples)


@dataclass(slots=True)
class _Watch:
    """Sums up steps between two samples. `on_step` runs on the engine's thread; a step may fall into either sample."""

    samples: list[Sample] = field(default_factory=list)
    num_steps: int = 0
    steps_s: float = 0.0
    overhead_s: float = 0.0
    cpu_s: float = 0.0
    last_cpu_s: float = 0.0

    def on_step(self, report: StepReport) -> None:
        self.num_steps += 1
        self.steps_s += report.duration_s
        self.overhead_s += report.overhead_s
        self.cpu_s = time.thread_time()

    def begin(self) -> None:
        """Forget what was before."""
        self.num_steps, self.steps_s, self.overhead_s, self.last_cpu_s = 0, 0.0, 0.0, self.cpu_s

    def take_sample(self) -> None:
        sums = (self.steps_s, self.overhead_s, self.cpu_s - self.last_cpu_s)
        step_ms, overhead_ms, cpu_ms = (1000 * total / max(1, self.num_steps) for total in sums)
        self.samples.append(Sample(rss_bytes(), step_ms, overhead_ms, cpu_ms))
        self.begin()


class _Load:
    """Keeps a number of requests open: when one ends, another conversation takes its next turn."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self._engine = engine
        self._rng = rng
        self._ended: SimpleQueue[str] = SimpleQueue()
        lengths = [rng.randint(64, _MAX_SESSION_TOKENS) for _ in range(_NUM_SESSIONS)]
        self._sessions: list[list[int]] = [self._random_tokens(length) for length in lengths]
        self._num_open = 0
        self._num_asked = 0

    def run_until(self, deadline: float) -> None:
        while (left_s := deadline - time.monotonic()) > 0:
            while self._num_open < _NUM_OPEN:
                self._ask()
            try:
                self._ended.get(timeout=left_s)
            except Empty:
                return
            self._num_open -= 1

    def finish(self) -> None:
        """Wait for what is still open."""
        while self._num_open:
            self._ended.get()
            self._num_open -= 1

    def _ask(self) -> None:
        rng = self._rng
        number = rng.randrange(_NUM_SESSIONS)
        if len(self._sessions[number]) > _MAX_SESSION_TOKENS or rng.random() < 0.02:
            self._sessions[number] = self._random_tokens(64)
        session = self._sessions[number]
        session += self._random_tokens(rng.randint(1, 200))
        is_greedy = rng.random() < 0.7
        sampling = SamplingParams(
            temperature=0 if is_greedy else 0.8, top_p=1 if is_greedy else 0.9, max_tokens=rng.randint(1, 64)
        )
        self._num_asked += 1
        grammar = rng.choice(_GRAMMARS) if rng.random() < 0.2 else None
        request = Request(
            str(self._num_asked), tuple(session), sampling, rng.choice(list(Priority)), str(number), grammar
        )
        self._num_open += 1
        abort_after = rng.randint(1, 32) if rng.random() < 0.15 else None
        self._engine.submit([request], _Listener(self._engine, self._ended, abort_after))

    def _random_tokens(self, count: int) -> list[int]:
        return self._rng.choices(range(_VOCAB_SIZE), k=count)


@dataclass(slots=True)
class _Listener:
    """Hears of one request, and gives it up after some tokens if it is one of those."""

    engine: Engine
    ended: "SimpleQueue[str]"
    abort_after: int | None

    def __call__(self, event: TokenEvent) -> None:
        if event.finish_reason:
            self.ended.put(event.request_id)
        elif self.abort_after is not None and event.usage.num_output >= self.abort_after:
            self.engine.abort(event.request_id)


def _report(duration_s: float, stats: EngineStats, samples: Sequence[Sample]) -> SoakReport:
    quarter = len(samples) // 4
    finished = stats.num_finished
    return SoakReport(
        duration_s=duration_s,
        num_steps=stats.num_steps,
        num_finished=finished[FinishReason.STOP] + finished[FinishReason.LENGTH],
        num_aborted=finished[FinishReason.ABORT],
        num_failed=finished[FinishReason.ERROR],
        num_preemptions=stats.num_preemptions,
        num_evicted_blocks=stats.num_evicted_blocks,
        num_leaked_blocks=stats.num_blocks_used,
        first=_mean(samples[:quarter]),
        last=_mean(samples[-quarter:]),
    )


def _mean(samples: Sequence[Sample]) -> Sample:
    return Sample(
        rss_bytes=round(statistics.fmean(sample.rss_bytes for sample in samples)),
        step_ms=statistics.fmean(sample.step_ms for sample in samples),
        overhead_ms=statistics.fmean(sample.overhead_ms for sample in samples),
        cpu_ms=statistics.fmean(sample.cpu_ms for sample in samples),
    )


def rss_bytes() -> int:
    """Memory this process has now; where the system does not say, the most it ever had."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def soak(*, minutes: PositiveFloat = 20.0, seed: int = 0, as_json: Json = False) -> None:
    """Run the engine on the null backend under random load, and see whether memory and step time stay flat.

    Parameters
    ----------
    minutes
        How long.
    seed
        Which random load.
    """
    with console.status(f"soaking for {minutes:g} minutes ..."):
        report = run_soak(minutes * 60, seed)
    show_report(report, as_json)


if __name__ == "__main__":
    main(soak)
