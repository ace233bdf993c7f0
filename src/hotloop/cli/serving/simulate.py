"""`hotloop simulate`: recorded traffic against simulated replicas, placed by the router's own code."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, PositiveFloat, PositiveInt
from rich.progress import Progress, TaskID
from rich.table import Table

from hotloop.cli.output import progress, show
from hotloop.cli.settings import JsonOutput, pick_names

if TYPE_CHECKING:
    from hotloop.router.simulation.simulate import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateFlags:
    """What is replayed, and on what."""

    policy: str = "prefix,session,least_load,round_robin,random,consistent_hash,cache_aware"
    """Policies, separated by commas; the last two are for comparison only."""
    replicas: PositiveInt = 64
    """Number of replicas."""
    requests: PositiveInt | None = None
    """Number of requests, repeating the trace's sessions as needed; the whole trace once if not given."""
    sessions_per_s: PositiveFloat = 0.25
    """Sessions started per second."""
    capacity: PositiveInt = 8_000_000
    """Tokens that one replica can cache."""
    prefill_speed: PositiveFloat = 20_000.0
    """Prefill speed of a replica, tokens/s."""
    decode_speed: PositiveFloat = 60.0
    """Decode speed of one answer, tokens/s."""
    seed: NonNegativeInt = 0
    """Random seed; the same seed gives the same figures."""
    svg: Path | None = None
    """Write a chart to this SVG file."""


def simulate(
    trace: Annotated[Path, Parameter(help="Recorded traffic, .jsonl or .jsonl.gz: sessions of agents, or requests.")],
    *,
    flags: Annotated[SimulateFlags, Parameter(name="*")] = SimulateFlags(),
    as_json: JsonOutput = False,
) -> None:
    """Replay recorded traffic against simulated replicas and compare routing policies."""
    from hotloop.router.simulation.plot import draw
    from hotloop.router.simulation.simulate import SIMULATED, SimulatedReplicas, Simulation
    from hotloop.router.simulation.trace import read_trace

    policies = pick_names(flags.policy, SIMULATED, "policy")
    recorded = read_trace(trace)
    num_requests = flags.requests or recorded.num_requests
    replicas = SimulatedReplicas(
        num_replicas=flags.replicas,
        capacity_tokens=flags.capacity,
        prefill_tokens_per_s=flags.prefill_speed,
        decode_tokens_per_s=flags.decode_speed,
        sessions_per_s=flags.sessions_per_s,
    )
    figures: list[Figures] = []
    with progress() as bar:
        for name in policies:
            task = bar.add_task(name, total=num_requests)
            simulation = Simulation(recorded, replicas, name, seed=flags.seed)
            figures.append(simulation.run(num_requests, partial(_advance, bar, task)))
    if flags.svg:
        flags.svg.write_text(draw(figures, f"{figures[0].num_requests:,} requests, {flags.replicas} replicas"))
    show({"policies": [_as_json(each) for each in figures]}, _table(figures), as_json)


def _advance(bar: Progress, task: TaskID, num_done: int) -> None:
    bar.update(task, completed=num_done)


def _as_json(figures: "Figures") -> dict[str, Any]:
    return {
        "policy": figures.policy,
        "requests": figures.num_requests,
        "hit_rate": round(figures.hit_rate, 5),
        "ideal_hit_rate": round(figures.ideal_rate, 5),
        "imbalance": round(figures.imbalance, 4),
        "ttft_p50_s": round(figures.ttft_s(50), 4),
        "ttft_p95_s": round(figures.ttft_s(95), 4),
        "reasons": figures.reasons,
    }


def _table(figures: "list[Figures]") -> Table:
    table = Table("policy", "hit rate", "ideal", "busiest / mean", "TTFT p50", "TTFT p95", "why", box=None)
    for each in figures:
        total = max(1, each.num_requests)
        why = ", ".join(f"{name} {count / total:.0%}" for name, count in each.reasons.items())
        rates = (f"{each.hit_rate:.2%}", f"{each.ideal_rate:.2%}", f"{each.imbalance:.2f}")
        table.add_row(each.policy, *rates, f"{each.ttft_s(50):.2f} s", f"{each.ttft_s(95):.2f} s", why)
    return table
