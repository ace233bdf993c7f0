"""Read-only calls that run before the model has asked for them, on recorded runs. The predictor is the real one; the
clock is simulated, so the figures are the same on every machine (`benchmarks.agent.speculation`)."""

import random
from pathlib import Path

from benchmarks.agent.speculation import Taken, measure_predictions, read_runs
from benchmarks.claims.published import SPECULATION
from benchmarks.claims.result import Figure, Result
from hotloop.core.errors import ConfigError


def measure_speculation(data: Path, runs: str, num_learn: int, num_repeats: int) -> Result:
    """Each repeat learns from other runs of the same agents, and is tried on the rest."""
    read = read_runs(data)
    if len(read) <= num_learn:
        raise ConfigError(f"{data} has {len(read)} runs: more than the {num_learn} that are learned from are needed")
    splits = [random.Random(seed).sample(read, len(read)) for seed in range(num_repeats)]
    found = [measure_predictions(split, num_learn=num_learn, taken=Taken(threshold=0.8)) for split in splits]
    waited = [(each.tool_s - each.hidden_s) / each.num_calls for each in found]
    return Result(
        claim=SPECULATION,
        what=(
            f"{len(read) - num_learn} {runs} after {num_learn} learned from, on a simulated clock: 60 tokens a "
            f"second, tools of 0.4 s in the median"
        ),
        figures=[
            Figure("predicted right", "share", [each.precision for each in found]),
            Figure("off a step", "s", [each.hidden_s / max(1, each.guesses.num_hits) for each in found]),
            Figure("read-only calls speculative", "share", [each.coverage for each in found]),
            Figure("waited for a tool", "s", waited, [each.tool_s / each.num_calls for each in found]),
        ],
    )
