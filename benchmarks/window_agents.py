"""Recorded agents on a model whose layers have a sliding window in turns: how much of their prompts is cached, and how
many tokens fit, with the KV of windows dropped and kept, in the same memory.

    python -m benchmarks.window_agents --data TRANSCRIPTS.jsonl.gz [--agents 20] [--turns 6] [--tokens N ...] [--json]

Memory is reckoned on the shape of gpt-oss-20b; what is cached is up to the engine alone, so no model runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.command import main, show_report
from benchmarks.hybrid_agents import Fleet, Job, read_jobs
from hotloop.backends.null import NullBackend
from hotloop.core.config import DEFAULT_MODEL, EngineConfig
from hotloop.core.request import Usage
from hotloop.engine.engine import Engine
from hotloop.models.memory import kv_token_bytes, split_kv
from hotloop.models.model import Model, load_model
from hotloop.models.spec import ModelSpec

BLOCK_SIZE = 64
WINDOW = 128
STEP_TOKENS = 512
_SPEC = ModelSpec(
    "gptoss", 24, 2880, 2880, 64, 8, 64, 201_088, 1 << 17, 1e-5, 1.5e5, windows=(WINDOW, None) * 12
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    num_tokens: int
    num_window_tokens: int
    cached: float
    """Share of the prompts' tokens."""


@dataclass(frozen=True, slots=True)
class Figures:
    rows: list[Row]
    num_prompt: int

    def to_json(self) -> dict[str, Any]:
        names = ("what", "num_tokens", "num_window_tokens", "cached")
        return {"rows": [{name: getattr(row, name) for name in names} for row in self.rows]}

    def to_table(self) -> Table:
        table = Table("memory", "tokens", "of windows", "cached share", title=f"{self.num_prompt:,} prompt tokens")
        for row in self.rows:
            table.add_row(row.what, f"{row.num_tokens:,}", f"{row.num_window_tokens:,}", f"{row.cached:.4f}")
        return table


def measure(base: Model, jobs: Sequence[Job], kv_bytes: int, *, drops_windows: bool) -> tuple[Row, int]:
    num_blocks, num_own = kv_bytes // (BLOCK_SIZE * kv_token_bytes(_SPEC)), 0
    if drops_windows:
        num_blocks, num_own = split_kv(_SPEC, kv_bytes, 2, BLOCK_SIZE, STEP_TOKENS)
    backend = NullBackend(
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        vocab_size=base.spec.vocab_size,
        num_window_blocks=num_own,
    )
    backend.window = WINDOW
    with Engine(base.tokenizer, backend, EngineConfig(drafts=False)) as engine:
        fleet = Fleet(base, engine)
        fleet.run(jobs)
    total = Usage.total(*fleet.usages)
    what = f"{kv_bytes / (1 << 30):.2f} GiB, windows {'dropped' if drops_windows else 'kept'}"
    num_window = (num_own or num_blocks) * BLOCK_SIZE
    return Row(what, num_blocks * BLOCK_SIZE, num_window, total.num_cached / total.num_prompt), total.num_prompt


def window_agents(
    data: Path,
    *,
    agents: int = 20,
    turns: int = 6,
    tokens: tuple[int, ...] = (400_000, 60_000, 30_000),
    as_json: bool = False,
) -> int:
    """Cached share and room of recorded agents with the KV of windows dropped and kept.

    Parameters
    ----------
    data: a file of transcripts, JSON lines, perhaps compressed
    agents: how many agents
    turns: how many answers each
    tokens: memory, as tokens that fit where nothing is dropped
    as_json: print JSON
    """
    base, jobs = load_model(DEFAULT_MODEL), read_jobs(data, agents, turns)
    found = [
        measure(base, jobs, num * kv_token_bytes(_SPEC), drops_windows=drops)
        for num in tokens
        for drops in (False, True)
    ]
    show_report(Figures([row for row, _ in found], found[0][1]), as_json)
    return 0


if __name__ == "__main__":
    main(window_agents)
