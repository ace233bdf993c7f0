"""What a step costs beside the model: the engine on the null backend, and the prefix tree alone.

Scheduling, the prefix tree, building the batch, sampling, detokenising and telling everybody are measured, on the
engine's own thread; what the backend takes is left out.
"""

import random
import statistics
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cyclopts.types import PositiveInt
from rich.table import Table

from benchmarks.command import main, show_report
from benchmarks.vocabularies import null_tokenizer
from hotloop.backends.null import NullBackend
from hotloop.bench.report import figures_table, percentile
from hotloop.cli.settings import JsonOutput
from hotloop.core.config import EngineConfig
from hotloop.core.request import Request, SamplingParams, TokenEvent
from hotloop.engine.core import StepReport
from hotloop.engine.engine import Engine
from hotloop.engine.kvcache.blocks import BlockPool
from hotloop.engine.kvcache.radix import RadixTree

VOCAB_SIZE = 49_152
NUM_RUNNING = (16, 64, 256)

_BLOCK_SIZE = 32
_SHARED_TOKENS = 1024
_OWN_TOKENS = _OUTPUT_TOKENS = 128
_TREE_TOKENS = _TREE_BLOCKS = 100_000
_NUM_MATCHES = 50


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds a step, beside the backend, with that many requests each getting a token."""

    num_running: int
    num_steps: int
    mean_ms: float
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class MatchCost:
    """Milliseconds to find the longest known prefix of a prompt."""

    num_tokens: int
    num_blocks: int
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class OverheadReport:
    vocab_size: int
    steps: tuple[StepCost, ...]
    match: MatchCost

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_table(self) -> Table:
        table = figures_table("beside the model", ("p50", "p95"))
        for cost in self.steps:
            table.add_row(f"a step of {cost.num_running} requests", f"{cost.p50_ms:.2f} ms", f"{cost.p95_ms:.2f} ms")
        match = self.match
        what = f"matching {match.num_tokens:,} tokens in {match.num_blocks:,} blocks"
        table.add_row(what, f"{match.p50_ms:.2f} ms", f"{match.p95_ms:.2f} ms")
        return table


def measure_overhead(*, vocab_size: int = VOCAB_SIZE) -> OverheadReport:
    steps = tuple(measure_steps(num_running, vocab_size) for num_running in NUM_RUNNING)
    return OverheadReport(vocab_size, steps, measure_match())


def measure_steps(num_running: int, vocab_size: int, num_output: int = _OUTPUT_TOKENS) -> StepCost:
    """Requests that share a prompt's beginning, as a fleet of agents does, decoding together."""
    num_tokens = _SHARED_TOKENS + _OWN_TOKENS + num_output
    num_blocks = (num_tokens // _BLOCK_SIZE + 2) * num_running
    backend = NullBackend(block_size=_BLOCK_SIZE, num_blocks=num_blocks, vocab_size=vocab_size)
    config = EngineConfig(max_running=num_running, max_step_tokens=4096, drafts=False)
    rng = random.Random(0)
    shared = _random_tokens(rng, _SHARED_TOKENS, vocab_size)
    sampling = SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True)
    requests = [
        Request(str(i), shared + _random_tokens(rng, _OWN_TOKENS, vocab_size), sampling) for i in range(num_running)
    ]
    reports: list[StepReport] = []
    with Engine(null_tokenizer(vocab_size), backend, config) as engine:
        engine.on_step = reports.append
        _wait_for_all(engine, requests)
    level = [1000 * report.overhead_s for report in reports if report.num_output == report.num_tokens == num_running]
    return StepCost(num_running, len(level), statistics.fmean(level), percentile(level, 0.5), percentile(level, 0.95))


def _wait_for_all(engine: Engine, requests: list[Request]) -> None:
    all_over = threading.Event()
    num_open = len(requests)

    def on_events(events: Sequence[TokenEvent]) -> None:
        nonlocal num_open
        num_open -= sum(event.finish_reason is not None for event in events)
        if not num_open:
            all_over.set()

    engine.submit(requests, on_events)
    all_over.wait()


def measure_match(num_tokens: int = _TREE_TOKENS, num_blocks: int = _TREE_BLOCKS) -> MatchCost:
    """A long prompt, all of it known, in a tree where other conversations leave it at a hundred places."""
    rng = random.Random(0)
    num_prompt_blocks = num_tokens // _BLOCK_SIZE
    prompt = array("i", _random_tokens(rng, num_tokens, VOCAB_SIZE))
    pool = BlockPool(num_blocks)
    tree = RadixTree(pool, _BLOCK_SIZE)
    known = _insert(pool, tree, prompt[: num_prompt_blocks * _BLOCK_SIZE], [])
    num_branches = 100
    for i in range(num_branches):
        num_common = num_prompt_blocks * i // num_branches
        num_own = (num_blocks - pool.num_kept) // (num_branches - i)
        own = array("i", _random_tokens(rng, num_own * _BLOCK_SIZE, VOCAB_SIZE))
        _insert(pool, tree, prompt[: num_common * _BLOCK_SIZE] + own, known[:num_common])
    times_ms: list[float] = []
    for _ in range(_NUM_MATCHES):
        began_at = time.perf_counter()
        matched = tree.match(prompt)
        times_ms.append(1000 * (time.perf_counter() - began_at))
        assert len(matched) == num_prompt_blocks
    return MatchCost(num_tokens, pool.num_kept, percentile(times_ms, 0.5), percentile(times_ms, 0.95))


def _insert(pool: BlockPool, tree: RadixTree, token_ids: "array[int]", known: list[int]) -> list[int]:
    block_ids = pool.allocate(len(token_ids) // _BLOCK_SIZE - len(known))
    assert block_ids is not None
    return tree.insert(token_ids, known + block_ids)


def _random_tokens(rng: random.Random, count: int, vocab_size: int) -> list[int]:
    return rng.choices(range(vocab_size), k=count)


def overhead(*, vocab: PositiveInt = 49_152, as_json: JsonOutput = False) -> None:
    """Measure what a step costs beside the model: scheduler, radix tree and sampler, with the null backend.

    Parameters
    ----------
    vocab
        Tokens in the vocabulary, over which the sampler looks.
    """
    show_report(measure_overhead(vocab_size=vocab), as_json)


if __name__ == "__main__":
    main(overhead)
