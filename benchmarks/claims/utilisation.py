"""How busy the device is with work of four shapes, by what its gauge `hotloop_device_utilization` is made of."""

import re
import time
from collections.abc import Mapping
from typing import NamedTuple

import httpx

from benchmarks.claims.bench import Bench
from benchmarks.claims.published import UTILISATION
from benchmarks.claims.result import Figure, Result
from hotloop.bench.serving import replay_server
from hotloop.bench.workload import AgentJob, generate_jobs
from hotloop.core.errors import RemoteError

_MAX_OUTPUT = 64


class Shape(NamedTuple):
    num_agents: int
    gap_s: float
    """Between an answer and the next turn."""


SHAPES: Mapping[str, Shape] = {
    "a user who reads": Shape(1, 2.0),
    "an agent and its tools": Shape(1, 0.4),
    "a fleet of agents": Shape(8, 0.4),
    "a batch": Shape(16, 0.0),
}


def measure_utilisation(bench: Bench) -> Result:
    """Each repeat all shapes, with prompts of its own."""
    url = bench.serve()
    num_turns, num_output = bench.scale.num_user_turns, min(_MAX_OUTPUT, bench.scale.num_output)
    found: dict[str, list[float]] = {name: [] for name in SHAPES}
    for repeat in range(bench.scale.repeats):
        for i, (name, shape) in enumerate(SHAPES.items()):
            size = {"num_jobs": shape.num_agents, "num_turns": num_turns, "num_output": num_output}
            jobs = generate_jobs(system_chars=3000, seed=len(SHAPES) * repeat + i + 1, **size)
            found[name].append(busy_share(url, jobs, shape))
    shapes = (f"{name} ({each.num_agents} at a time, {each.gap_s:g} s between turns)" for name, each in SHAPES.items())
    return Result(
        claim=UTILISATION,
        what=f"{num_turns} turns of {num_output} tokens each: {', '.join(shapes)}",
        figures=[Figure(name, "share", shares) for name, shares in found.items()],
    )


def busy_share(url: str, jobs: list[AgentJob], shape: Shape) -> float:
    before_s, began_at = _computed_s(url), time.perf_counter()
    replay_server("", url, jobs, num_agents=shape.num_agents, gap_s=shape.gap_s)
    return min(1.0, (_computed_s(url) - before_s) / (time.perf_counter() - began_at))


def _computed_s(url: str) -> float:
    """So far, in steps but for what is not the backend's."""
    try:
        page = httpx.get(f"{url}/metrics").text
    except httpx.HTTPError as error:
        raise RemoteError(f"{url} tells no metrics: {str(error) or type(error).__name__}") from None
    step_s, overhead_s = (
        sum(map(float, re.findall(rf"^hotloop_{name}_sum(?:{{.*}})? (\S+)$", page, re.M)))
        for name in ("step_seconds", "step_overhead_seconds")
    )
    return step_s - overhead_s
