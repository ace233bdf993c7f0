"""What guessing calls gains, and what all patterns of the agent runtime gain together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.types import PositiveFloat, PositiveInt
from rich.console import Group
from rich.table import Table

from benchmarks.agent.fleet import FleetRun, Work, ablation, run_fleet
from benchmarks.agent.recorded import AgentJob, Latency, read_agent_jobs
from benchmarks.agent.speculation import read_runs, speculation_row
from benchmarks.command import main
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.speculation import SpeculativeTools
from hotloop.bench.serving import exit_on_sigterm
from hotloop.cli.loading import pull_model
from hotloop.cli.output import progress, show
from hotloop.cli.settings import Json, pick_names
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import ConfigError

PATTERNS = ("speculation", "fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFlags:
    """Which patterns are measured, and on what."""

    data: Path | None = None
    """Recorded transcripts with tool calls, .jsonl or .jsonl.gz."""
    pattern: str = "speculation,fleet"
    """What is measured, separated by commas."""
    learn: PositiveInt = 30
    """How many transcripts speculation learns from before; the fleet's jobs are taken from those behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFlags:
    """How the fleet works."""

    agents: PositiveInt = 8
    """How many jobs run at a time."""
    jobs: PositiveInt = 12
    """How many jobs there are."""
    tool_time: PositiveFloat = 0.4
    """Seconds a tool takes, in the median."""
    max_out: PositiveInt = 64
    """Most tokens of an answer."""
    max_chars: PositiveInt = 26_000
    """Leave out transcripts with as many characters."""
    ablation: bool = False
    """Whether it is also run with one pattern off at a time, which takes many minutes."""


_DEFAULTS, _FLEET = AgentFlags(), FleetFlags()


def agent(
    *,
    flags: Annotated[AgentFlags, Parameter(name="*")] = _DEFAULTS,
    fleet: Annotated[FleetFlags, Parameter(name="*", group="Pattern fleet")] = _FLEET,
    as_json: Json = False,
) -> None:
    """Run recorded agents with and without what the runtime does to be fast."""
    wanted = pick_names(flags.pattern, PATTERNS, "pattern")
    if flags.data is None:
        raise ConfigError(f"{wanted[0]} needs --data: transcripts to learn from and to run again")
    speculation = speculation_row(flags.data, flags.learn) if "speculation" in wanted else {}
    runs = _measure_fleet(flags.data, flags, fleet) if "fleet" in wanted else []
    failures = [failure for run in runs for failure in run.failures]
    show(report_json(speculation, runs), report_tables(speculation, runs), as_json, failures)


def _measure_fleet(data: Path, flags: AgentFlags, fleet: FleetFlags) -> list[FleetRun]:
    exit_on_sigterm()
    pull_model(DEFAULT_MODEL)
    jobs, make_speculation = _load_jobs(data, flags.learn, fleet)
    rows = ablation(fleet.agents)
    rows = rows if fleet.ablation else [rows[0], rows[-1]]
    runs = []
    with progress() as bar:
        for patterns in rows:
            task = bar.add_task(patterns.label, total=len(jobs))
            latency, on_job = Latency(fleet.tool_time), partial(bar.advance, task)
            work = Work(jobs=jobs, latency=latency, max_tokens=fleet.max_out, on_job=on_job)
            runs.append(run_fleet(work, patterns, make_speculation()))
    return runs


def _load_jobs(
    data: Path, num_learn: int, fleet: FleetFlags
) -> tuple[Sequence[AgentJob], Callable[[], SpeculativeTools]]:
    """The jobs, and speculation that has seen what came before them; a new one for every row."""
    jobs = list(islice(read_agent_jobs(data, max_chars=fleet.max_chars, skip=num_learn), fleet.jobs))
    if not jobs:
        raise ConfigError(f"{data} has no transcript of fewer than {fleet.max_chars} characters to run")
    lessons = read_runs(data)[:num_learn]

    def make() -> SpeculativeTools:
        predictor = Predictor()
        for lesson in lessons:
            predictor.learn(lesson)
        return SpeculativeTools(predictor)

    return jobs, make


def report_json(speculation: dict[str, float], fleet: Sequence[FleetRun]) -> dict[str, Any]:
    return {
        "speculation": speculation,
        "fleet": [_fleet_json(run, fleet) for run in fleet],
    }


def report_tables(speculation: dict[str, float], fleet: Sequence[FleetRun]) -> Any:
    tables = []
    if speculation:
        table = Table("speculation", "", box=None)
        for name, value in speculation.items():
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


if __name__ == "__main__":
    main(agent)
