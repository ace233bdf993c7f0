"""Read-only calls that run before the model has asked for them. The predictor is the real one; the clock is simulated,
so the figures are the same on every machine (`benchmarks.agent.speculation`)."""

import random
from pathlib import Path

from benchmarks.agent.speculation import Taken, measure_predictions, read_runs
from benchmarks.claims.bench import Bench, Scale
from benchmarks.claims.published import SPECULATION
from benchmarks.claims.result import Figure, Result
from hotloop.core.errors import ConfigError


def measure_speculation(bench: Bench) -> Result:
    """Of generated workflows, which are well defined, and of the runs that were given, which are not."""
    recorded = bench.supplies.data
    kinds = {"workflows": bench.workflows} | ({"recorded runs": recorded} if recorded else {})
    lessons = bench.scale.num_lessons
    return Result(
        claim=SPECULATION,
        what=(
            f"{' and '.join(['generated office workflows', *([bench.runs] if recorded else [])])}, {lessons} of each "
            f"learned from, on a simulated clock: 60 tokens a second, tools of 0.4 s in the median"
        ),
        figures=[figure for kind, path in kinds.items() for figure in _figures(kind, path, bench.scale)],
    )


def _figures(kind: str, path: Path, scale: Scale) -> list[Figure]:
    """Each repeat learns from other runs of the same agents, and is tried on the rest."""
    read = read_runs(path)
    if len(read) <= scale.num_lessons:
        raise ConfigError(
            f"{path} has {len(read)} runs: more than the {scale.num_lessons} that are learned from are needed"
        )
    splits = [random.Random(seed).sample(read, len(read)) for seed in range(scale.num_splits)]
    found = [measure_predictions(split, num_learn=scale.num_lessons, taken=Taken(threshold=0.8)) for split in splits]
    waited = [(each.tool_s - each.hidden_s) / each.num_calls for each in found]
    return [
        Figure(f"{kind}: predicted right", "share", [each.precision for each in found]),
        Figure(f"{kind}: off a predicted step", "s", [each.hidden_s / max(1, each.guesses.num_hits) for each in found]),
        Figure(f"{kind}: read-only calls run ahead", "share", [each.coverage for each in found]),
        Figure(f"{kind}: waited for a tool", "s", waited, [each.tool_s / each.num_calls for each in found]),
    ]
