"""Read-only calls that run before the model has asked for them. The predictor is the real one; the clock is simulated,
so the figures are the same on every machine (`benchmarks.agent.speculation`)."""

import random
from pathlib import Path

from benchmarks.agent.speculation import Taken, measure_predictions, read_runs
from benchmarks.claims.bench import Bench
from benchmarks.claims.published import SPECULATION
from benchmarks.claims.result import Figure, Result
from hotloop.core.errors import ConfigError


def measure_speculation(bench: Bench) -> Result:
    """Of generated workflows, which are well defined and have tools of one's own, and of runs that were given, which
    are neither."""
    recorded, num_splits = bench.supplies.data, bench.scale.num_splits
    figures = _figures("workflows", bench.workflows, num_splits, Taken(threshold=0.8, trusted=True))
    figures += _figures("recorded runs", recorded, num_splits, Taken(threshold=0.8)) if recorded else []
    others = f", and {bench.runs}, without" if recorded else ""
    runs = f"generated office workflows, with tools marked `trusted`{others}; half of them learned from"
    return Result(
        claim=SPECULATION,
        what=f"{runs}, on a simulated clock: 60 tokens a second, tools of 0.4 s in the median",
        figures=figures,
    )


def _figures(kind: str, path: Path, num_splits: int, taken: Taken) -> list[Figure]:
    """Each repeat learns from other runs of the same agents, and is tried on the rest."""
    read = read_runs(path)
    if len(read) < 2:
        raise ConfigError(f"{path} has {len(read)} runs: half of them are learned from, so there must be two or more")
    splits = [random.Random(seed).sample(read, len(read)) for seed in range(num_splits)]
    found = [measure_predictions(split, num_learn=len(read) // 2, taken=taken) for split in splits]
    waited = [(each.tool_s - each.hidden_s) / each.num_calls for each in found]
    return [
        Figure(f"{kind}: predicted right", "share", [each.precision for each in found]),
        Figure(f"{kind}: off a predicted step", "s", [each.hidden_s / max(1, each.guesses.num_hits) for each in found]),
        Figure(f"{kind}: off each step", "s", [each.hidden_s / each.num_calls for each in found]),
        Figure(f"{kind}: read-only calls run ahead", "share", [each.coverage for each in found]),
        Figure(f"{kind}: waited for a tool", "s", waited, [each.tool_s / each.num_calls for each in found]),
    ]
