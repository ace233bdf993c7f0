"""The patterns of the agent runtime as rows: with, without, and how many times better."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.agent.fleet import FleetRun


@dataclass(frozen=True, slots=True)
class PatternRow:
    """One pattern against the same loop without it, in seconds."""

    pattern: str
    what: str
    without_s: float
    with_s: float

    @property
    def ratio(self) -> float:
        return self.without_s / self.with_s if self.with_s else 0.0


def report_json(rows: Sequence[PatternRow], foresight: dict[str, float], fleet: Sequence[FleetRun]) -> dict[str, Any]:
    return {
        "patterns": [asdict(row) | {"ratio": round(row.ratio, 3)} for row in rows],
        "foresight": foresight,
        "fleet": [_fleet_json(run, fleet) for run in fleet],
    }


def report_tables(rows: Sequence[PatternRow], foresight: dict[str, float], fleet: Sequence[FleetRun]) -> Any:
    from rich.console import Group  # noqa: PLC0415 - only for who looks
    from rich.table import Table  # noqa: PLC0415

    tables = []
    if rows:
        table = Table("pattern", "what is timed", "without", "with", "ratio", box=None)
        for row in rows:
            table.add_row(row.pattern, row.what, f"{row.without_s:.2f} s", f"{row.with_s:.2f} s", f"{row.ratio:.2f}x")
        tables.append(table)
    if foresight:
        table = Table("foresight", "", box=None)
        for name, value in foresight.items():
            table.add_row(name, f"{value:g}")
        tables.append(table)
    if fleet:
        table = Table("fleet", "jobs/min", "to everything", "p95 job", "mean run", "cached", box=None)
        for run in fleet:
            share = (run.usage.num_cached or 0) / max(1, run.usage.num_prompt)
            times = (f"{run.p95_s:.1f} s", f"{run.mean_run_s:.1f} s", f"{share:.0%}")
            table.add_row(run.label, f"{run.jobs_per_min:.1f}", f"{_relative(run, fleet):.2f}", *times)
        tables.append(table)
    return Group(*tables)


def _fleet_json(run: FleetRun, fleet: Sequence[FleetRun]) -> dict[str, Any]:
    return {
        "label": run.label,
        "jobs_per_min": round(run.jobs_per_min, 3),
        "relative": round(_relative(run, fleet), 3),
        "p95_s": round(run.p95_s, 3),
        "mean_run_s": round(run.mean_run_s, 3),
        "prompt_tokens": run.usage.num_prompt,
        "cached_tokens": run.usage.num_cached or 0,
        "jobs": len(run.job_times_s),
        "failures": run.failures,
    }


def _relative(run: FleetRun, fleet: Sequence[FleetRun]) -> float:
    """Its throughput as a share of that with everything on, which is the first row."""
    return run.jobs_per_min / fleet[0].jobs_per_min if fleet[0].jobs_per_min else 0.0
