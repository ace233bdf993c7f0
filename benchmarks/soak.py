"""Does it stay as it was, and right? An engine under random load, watched for creeping memory and step time.

The load is what wears an engine: conversations that grow and are given up, aborts in the middle of answers, three
priorities, and a pool too small for all of them, so that blocks are evicted and requests preempted all the time. Some
answers follow a grammar, of more shapes than are kept; many have sampling parameters of their own. Every request must
end in one terminal event and hear nothing after it, and its answer must be what was asked for.

Watched from when the pool has been filled and emptied some times: before, ever longer conversations compete for ever
less room, so that a step costs ever more, which is the load's doing and not the engine's.
"""

import json
import math
import os
import random
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from cyclopts.types import PositiveFloat
from rich.table import Table

from benchmarks.command import main, show_report
from benchmarks.vocabularies import filled_tokenizer, write_filled_tokenizer
from hotloop.backends.backend import Backend
from hotloop.backends.null import NullBackend
from hotloop.bench.report import figures_table
from hotloop.cli.output import console
from hotloop.cli.settings import JsonOutput
from hotloop.core.config import EngineConfig
from hotloop.core.errors import HotloopError
from hotloop.core.grammar import Grammar
from hotloop.core.request import FinishReason, Priority, Request, SamplingParams, TokenEvent, TokenLogprob
from hotloop.engine.core import StepReport
from hotloop.engine.engine import Engine
from hotloop.engine.grammar.matcher import estimate_bytes
from hotloop.engine.snapshot import EngineStats
from hotloop.models.tokenizer import Tokenizer

_VOCAB_SIZE = 1000
_NUM_KV_TOKENS = 16_384
_NUM_OPEN = 48
_NUM_SESSIONS = 64
_MAX_SESSION_TOKENS = 2000
_NUM_SAMPLES = 120
_WARMING_S = 0.5
_BANNED_ID = 40
_MAX_DEVICE_GROWTH_BYTES = 4 << 20
_NUM_FAULTS_KEPT = 20
_GRAMMARS = [Grammar("lark", f"start: {'WORD ' * count}\nWORD: /w[0-9][0-9]/") for count in range(1, 41)]
_CONFIG = EngineConfig(
    max_running=32,
    max_step_tokens=256,
    max_waiting=_NUM_OPEN,
    grammar_memory=f"{sum(map(estimate_bytes, _GRAMMARS)) // 2}B",
    draft_history_tokens=20_000,
    debug_checks=True,
)
_CUDA_MODEL = {
    "model_type": "llama", "vocab_size": _VOCAB_SIZE, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """The process at one moment, and the mean step since the moment before: by the clock, what of it was not the
    backend's, and the processor time the engine's thread had for it, which a busy machine does not change."""

    rss_bytes: float
    device_bytes: float
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
    num_faults: int
    faults: tuple[str, ...]
    first: Sample
    last: Sample

    @property
    def is_good(self) -> bool:
        growth_bytes = self.last.device_bytes - self.first.device_bytes
        is_flat = growth_bytes <= _MAX_DEVICE_GROWTH_BYTES
        return is_flat and not (self.num_failed or self.num_leaked_blocks or self.num_faults)

    def to_json(self) -> dict[str, Any]:
        return {"is_good": self.is_good, **asdict(self)}

    def to_table(self) -> Table:
        table = figures_table("", ("first quarter", "last quarter", "ratio"))
        for title, name, unit, scale in (
            ("memory", "rss_bytes", "MB", 1e-6),
            ("memory of the device", "device_bytes", "MB", 1e-6),
            ("a step", "step_ms", "ms", 1),
            ("a step beside the model", "overhead_ms", "ms", 1),
            ("a step in processor time", "cpu_ms", "ms", 1),
        ):
            first, last = scale * getattr(self.first, name), scale * getattr(self.last, name)
            if first:
                table.add_row(title, f"{first:.2f} {unit}", f"{last:.2f} {unit}", f"{last / first:.3f}")
        table.caption = (
            f"{self.duration_s:.0f} s, {self.num_steps:,} steps, {self.num_finished:,} finished, "
            f"{self.num_aborted:,} aborted, {self.num_failed:,} failed, {self.num_preemptions:,} preemptions, "
            f"{self.num_evicted_blocks:,} blocks evicted, {self.num_leaked_blocks} leaked, {self.num_faults} faults"
        )
        table.caption_justify = "left"
        return table


def open_null() -> tuple[Tokenizer, Backend]:
    backend = NullBackend(block_size=16, num_blocks=_NUM_KV_TOKENS // 16, vocab_size=_VOCAB_SIZE)
    return Tokenizer(filled_tokenizer(_VOCAB_SIZE)), backend


def open_card() -> tuple[Tokenizer, Backend]:
    """A tiny model of random weights on this machine's card, with as little room."""
    import torch  # noqa: PLC0415 - not on every machine

    from hotloop.backends.cuda.parallel.workers import Plan  # noqa: PLC0415
    from hotloop.backends.cuda.runner import CudaBackend  # noqa: PLC0415
    from hotloop.models.memory import kv_token_bytes  # noqa: PLC0415
    from hotloop.models.model import load_model  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="hotloop-soak-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(_CUDA_MODEL))
        write_filled_tokenizer(folder, _VOCAB_SIZE)
        model = load_model(str(folder), load_format="dummy")
    kv_bytes = _NUM_KV_TOKENS * kv_token_bytes(model.spec, torch.bfloat16.itemsize)
    return model.tokenizer, CudaBackend(model, kv_bytes, Plan(_CONFIG, torch.bfloat16, has_graphs=True), device="cuda")


def run_soak(
    tokenizer: Tokenizer, backend: Backend, duration_s: float, seed: int = 0, num_warming_blocks: int | None = None
) -> SoakReport:
    """The load for so long, after it has had so many blocks evicted; closes the backend."""
    with Engine(tokenizer, backend, _CONFIG) as engine:
        watch = _Watch()
        engine.on_step = watch.on_step
        load = _Load(engine, random.Random(seed))
        num_warming = 8 * backend.num_blocks if num_warming_blocks is None else num_warming_blocks
        while engine.stats().num_evicted_blocks < num_warming:
            load.run_until(time.monotonic() + _WARMING_S)
        watch.begin()
        began_at = time.monotonic()
        for number in range(1, _NUM_SAMPLES + 1):
            load.run_until(began_at + duration_s * number / _NUM_SAMPLES)
            watch.take_sample()
            engine._post(engine._core.check)  # what is wrong then fails whoever runs, and is counted
        load.finish()
        return _report(time.monotonic() - began_at, engine.stats(), watch.samples, load.faults)


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
        self.samples.append(Sample(rss_bytes(), _device_bytes(), step_ms, overhead_ms, cpu_ms))
        self.begin()


@dataclass(slots=True)
class Asked:
    """A request as its caller sees it, and after how many tokens it is given up."""

    request: Request
    abort_after: int | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text: str = ""
    last: TokenEvent | None = None


class _Load:
    """Keeps a number of requests open: when one ends, another conversation takes its next turn."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self.faults: list[str] = []
        self._engine = engine
        self._rng = rng
        self._ended: SimpleQueue[Asked] = SimpleQueue()
        lengths = [rng.randint(64, _MAX_SESSION_TOKENS) for _ in range(_NUM_SESSIONS)]
        self._sessions: list[list[int]] = [self._random_tokens(length) for length in lengths]
        self._num_open = 0
        self._num_asked = 0

    def run_until(self, deadline: float) -> None:
        while (left_s := deadline - time.monotonic()) > 0:
            while self._num_open < _NUM_OPEN:
                self._ask()
            try:
                self._take(self._ended.get(timeout=left_s))
            except Empty:
                return

    def finish(self) -> None:
        """Wait for what is still open."""
        while self._num_open:
            self._take(self._ended.get())

    def _take(self, asked: Asked) -> None:
        self._num_open -= 1
        self.faults += (f"request {asked.request.id} {fault}" for fault in find_faults(asked))

    def _ask(self) -> None:
        rng = self._rng
        number = rng.randrange(_NUM_SESSIONS)
        if len(self._sessions[number]) > _MAX_SESSION_TOKENS or rng.random() < 0.02:
            self._sessions[number] = self._random_tokens(64)
        session = self._sessions[number]
        session += self._random_tokens(rng.randint(1, 200))
        self._num_asked += 1
        grammar = rng.choice(_GRAMMARS) if rng.random() < 0.2 else None
        request = Request(
            str(self._num_asked), tuple(session), self._sampling(), rng.choice(list(Priority)), str(number), grammar
        )
        self._num_open += 1
        asked = Asked(request, rng.randint(1, 32) if rng.random() < 0.15 else None)
        self._engine.submit([request], lambda events: self._hear(asked, events))

    def _sampling(self) -> SamplingParams:
        """Two thirds are plain; the others have each of these now and then."""
        rng = self._rng
        max_tokens = rng.randint(1, 64)
        changes: dict[str, Callable[[], Any]] = {
            "top_p": lambda: rng.choice([0.1, 0.5, 0.9]),
            "top_k": lambda: rng.choice([1, 5, 50]),
            "min_p": lambda: rng.choice([0.05, 0.5]),
            "repetition_penalty": lambda: rng.choice([0.8, 1.1, 2.0]),
            "presence_penalty": lambda: rng.uniform(-2, 2),
            "frequency_penalty": lambda: rng.uniform(-2, 2),
            "logit_bias": lambda: {_BANNED_ID: -100.0, rng.randrange(100, 200): 3.0},
            "min_tokens": lambda: rng.randrange(max_tokens + 1),
            "stop": lambda: tuple(rng.sample(["a", "w3", "e", "9 ", "zz"], rng.randrange(1, 3))),
            "stop_token_ids": lambda: frozenset(rng.sample(range(300), 3)),
            "include_stop": lambda: True,
            "ignore_eos": lambda: True,
            "logprobs": lambda: rng.choice([0, 1, 5, 20]),
            "shortcuts": lambda: False,
        }
        chosen = {} if rng.random() < 0.67 else {name: make() for name, make in changes.items() if rng.random() < 0.15}
        return SamplingParams(temperature=0 if rng.random() < 0.7 else 0.8, max_tokens=max_tokens, **chosen)

    def _hear(self, asked: Asked, events: Sequence[TokenEvent]) -> None:
        """On the engine's thread."""
        for event in events:
            self._hear_one(asked, event)

    def _hear_one(self, asked: Asked, event: TokenEvent) -> None:
        if asked.last:
            self.faults.append(f"request {asked.request.id} heard of something after its end")
            return
        asked.token_ids += event.token_ids
        asked.logprobs += event.logprobs
        asked.text += event.text
        if event.finish_reason:
            asked.last = event
            self._ended.put(asked)
        elif asked.abort_after is not None and event.usage.num_output >= asked.abort_after:
            self._engine.abort(asked.request.id)

    def _random_tokens(self, count: int) -> list[int]:
        return self._rng.choices(range(_VOCAB_SIZE), k=count)


def find_faults(asked: Asked) -> Iterator[str]:
    """Whatever of an answer is not as it was asked for."""
    request, params, last, count = asked.request, asked.request.sampling, asked.last, len(asked.token_ids)
    assert last
    if last.error:
        yield f"failed: {last.error!r}"
        return
    if last.finish_reason is FinishReason.ABORT and asked.abort_after is None:
        yield "was aborted by nobody"
    if last.usage.num_output != count or count > (params.max_tokens or 0):
        yield f"has {count} tokens, {last.usage.num_output} by its usage, of at most {params.max_tokens}"
    if params.logit_bias and request.grammar is None and _BANNED_ID in asked.token_ids:
        yield "has a token that its bias forbids"
    if params.logprobs is not None and not _are_logprobs(asked, params.logprobs):
        yield "has logprobs of something else"
    if last.finish_reason is FinishReason.STOP and last.stop_match is None and request.grammar:
        num_words = request.grammar.text.count("WORD ")
        if not re.fullmatch(rf"(w\d\d){{{num_words}}}", asked.text):
            yield f"does not obey its grammar: {asked.text!r}"
    if last.finish_reason is FinishReason.STOP and request.grammar is None and count < params.min_tokens:
        yield "ended before it was long enough"


def _are_logprobs(asked: Asked, num_top: int) -> bool:
    for found in asked.logprobs:
        values = [value for _, value in found.top]
        if len(values) != num_top or values != sorted(values, reverse=True):
            return False
        if not all(math.isfinite(value) and value <= 1e-3 for value in [found.logprob, *values]):
            return False
    return [found.token_id for found in asked.logprobs] == asked.token_ids


def _report(duration_s: float, stats: EngineStats, samples: Sequence[Sample], faults: Sequence[str]) -> SoakReport:
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
        num_faults=len(faults),
        faults=tuple(faults[:_NUM_FAULTS_KEPT]),
        first=_mean(samples[:quarter]),
        last=_mean(samples[-quarter:]),
    )


def _mean(samples: Sequence[Sample]) -> Sample:
    return Sample(*map(statistics.fmean, zip(*(asdict(sample).values() for sample in samples), strict=True)))


def rss_bytes() -> int:
    """Memory this process has now; where the system does not say, the most it ever had."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def _device_bytes() -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.memory_allocated()) if torch and torch.cuda.is_available() else 0


def soak(*, minutes: PositiveFloat = 20.0, cuda: bool = False, seed: int = 0, as_json: JsonOutput = False) -> None:
    """Run the engine under random load, and see whether answers stay right, and memory and step time flat.

    Parameters
    ----------
    minutes
        How long.
    cuda
        On this machine's card with a tiny model, instead of the null backend.
    seed
        Which random load.
    """
    with console.status(f"soaking for {minutes:g} minutes ..."):
        report = run_soak(*(open_card() if cuda else open_null()), minutes * 60, seed)
    show_report(report, as_json)
    for fault in report.faults:
        console.print(fault, markup=False)
    if not report.is_good:
        raise HotloopError("answers were wrong, requests failed, or something was left behind")


if __name__ == "__main__":
    main(soak)
