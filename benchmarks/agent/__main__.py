"""What each pattern of the agent runtime gains, and all of them together."""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveFloat, PositiveInt

from benchmarks.agent.fleet import FleetRun, ablation, run_fleet
from benchmarks.agent.foresight import foresight_row, read_runs
from benchmarks.agent.plan import run_plan
from benchmarks.agent.reading import run_reading
from benchmarks.agent.recorded import AgentJob, Latency, read_agent_jobs
from benchmarks.agent.report import PatternRow, report_json, report_tables
from benchmarks.agent.tools import run_tools
from benchmarks.command import main
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.speculation import SpeculativeForesight
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.bench.serving import ChildServer, exit_on_sigterm
from hotloop.cli.loading import pull_model
from hotloop.cli.output import progress, show
from hotloop.cli.settings import Json, pick_names
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import ConfigError

PATTERNS = ("tools", "plan", "prefill-ahead", "foresight", "fleet")
_NEEDS_DATA = ("foresight", "fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFlags:
    """Which patterns are measured, and on what."""

    data: Path | None = None
    """Recorded transcripts with tool calls, .jsonl or .jsonl.gz; foresight and fleet need them."""
    pattern: str = "tools,plan,prefill-ahead"
    """What is measured, separated by commas: tools, plan, prefill-ahead, foresight, fleet."""
    learn: PositiveInt = 30
    """How many transcripts foresight learns from before; the fleet's jobs are taken from those behind them."""
    rounds: PositiveInt = 3
    """How often prefill-ahead is tried, each way; the median counts."""


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
    """Run agents with and without what the runtime does to be fast: parallel tools, plans, prefill-ahead, foresight."""
    wanted = _parse_patterns(flags)
    rows: list[PatternRow] = []
    if "tools" in wanted:
        rows.append(asyncio.run(_measure_tools()))
    if "plan" in wanted:
        rows += asyncio.run(_measure_plan())
    if "prefill-ahead" in wanted:
        rows.append(_measure_reading(flags))
    foresight = _measure_foresight(flags) if "foresight" in wanted else {}
    runs = _measure_fleet(flags, fleet) if "fleet" in wanted else []
    failures = [failure for run in runs for failure in run.failures]
    show(report_json(rows, foresight, runs), report_tables(rows, foresight, runs), as_json, failures)


def _parse_patterns(flags: AgentFlags) -> list[str]:
    names = pick_names(flags.pattern, PATTERNS, "pattern")
    for name in names:
        if name in _NEEDS_DATA and flags.data is None:
            raise ConfigError(f"{name} needs --data: transcripts to learn from and to run again")
    return names


async def _measure_tools() -> PatternRow:
    with_s, without_s = [(await run_tools(is_parallel=is_parallel)).wall_s for is_parallel in (True, False)]
    return PatternRow("parallel tools", "three tools of 2 s, from the first's start to the answer", without_s, with_s)


async def _measure_plan() -> list[PatternRow]:
    times = {way: (await run_plan(way)).wall_s for way in ("chained", "levels", "plan")}
    what = "six calls in three levels, 1 s each, against "
    return [
        PatternRow("plan", what + "a call a turn", times["chained"], times["plan"]),
        PatternRow("plan", what + "parallel calls", times["levels"], times["plan"]),
    ]


def _measure_reading(flags: AgentFlags) -> PatternRow:
    async def measure(url: str) -> tuple[float, float]:
        model = OpenAIModel(f"{url}/v1")
        times: dict[bool, list[float]] = {True: [], False: []}
        await run_reading(model, can_prefill_ahead=False, seed=0)  # the first answer tells that it is a hotloop
        for number in range(flags.rounds):
            for is_on, seen in times.items():
                run = await run_reading(model, can_prefill_ahead=is_on, seed=2 * number + 1 + is_on)
                seen.append(run.ttft_s)
        await model.close()
        return statistics.median(times[False]), statistics.median(times[True])

    pull_model(DEFAULT_MODEL)
    with ChildServer() as server:
        without_s, with_s = asyncio.run(measure(server.url))
    return PatternRow("prefill-ahead", "first word after three results 0.3 s apart", without_s, with_s)


def _measure_foresight(flags: AgentFlags) -> dict[str, float]:
    assert flags.data
    return foresight_row(flags.data, flags.learn)


def _measure_fleet(flags: AgentFlags, fleet: FleetFlags) -> list[FleetRun]:
    exit_on_sigterm()
    pull_model(DEFAULT_MODEL)
    jobs, make_foresight = _load_jobs(flags, fleet)
    rows = ablation(fleet.agents)
    rows = rows if fleet.ablation else [rows[0], rows[-1]]
    runs = []
    with progress() as bar:
        for patterns in rows:
            task = bar.add_task(patterns.label, total=len(jobs))
            runs.append(
                run_fleet(
                    jobs,
                    patterns,
                    make_foresight=make_foresight,
                    latency=Latency(fleet.tool_time),
                    max_tokens=fleet.max_out,
                    on_job=partial(bar.advance, task),
                )
            )
    return runs


def _load_jobs(flags: AgentFlags, fleet: FleetFlags) -> tuple[Sequence[AgentJob], Callable[[], SpeculativeForesight]]:
    """The jobs, and foresight that has seen what came before them; a new one for every row."""
    assert flags.data
    jobs = list(islice(read_agent_jobs(flags.data, max_chars=fleet.max_chars, skip=flags.learn), fleet.jobs))
    if not jobs:
        raise ConfigError(f"{flags.data} has no transcript of fewer than {fleet.max_chars} characters to run")
    lessons = read_runs(flags.data)[: flags.learn]

    def make() -> SpeculativeForesight:
        predictor = Predictor()
        for lesson in lessons:
            predictor.learn(lesson)
        return SpeculativeForesight(predictor)

    return jobs, make


if __name__ == "__main__":
    main(agent)
