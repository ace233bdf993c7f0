"""What the router costs, and what it saves."""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import uvloop
from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveFloat, PositiveInt

from benchmarks.command import main, show_report
from benchmarks.route.fleet import FleetSide, fleet_json, fleet_table, run_side, size_room
from benchmarks.route.overhead import DIRECT, Lane, OverheadReport, measure_overhead
from benchmarks.route.processes import RouterProcess, StubProcess, cpu_s_of
from benchmarks.route.prompts import agent_requests
from benchmarks.route.stub import Manner
from hotloop.bench.serving import exit_on_sigterm
from hotloop.cli.bench import WorkloadFlags
from hotloop.cli.loading import pull_model
from hotloop.cli.output import advance_by_turn, progress, show
from hotloop.cli.settings import JsonOutput
from hotloop.core.config import DEFAULT_MODEL

Scenario = Literal["overhead", "fleet"]

_KEY, _OPERATOR = "sk-bench", "sk-operator"
_KEYS = f"""
[[keys]]
name = "bench"
key = "{_KEY}"
requests_per_minute = 1_000_000
tokens_per_minute = 1_000_000_000
money_per_month = 1e9

[[keys]]
name = "operator"
key = "{_OPERATOR}"
role = "admin"
"""
"""Limits that no request reaches: all are counted against them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFlags:
    """What is measured, and for how long."""

    scenario: Scenario = "overhead"
    """Time added, or real replicas by prefix against in turn."""
    rounds: PositiveInt = 6
    """overhead: how often each way is measured, in turn."""
    round_time: PositiveFloat = 10.0
    """overhead: seconds of a round."""
    seed: int = 0
    """overhead: which prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StubFlags:
    """What stubs are asked, and how they answer."""

    rate: PositiveFloat = 200.0
    """Requests a second, whether or not others were answered."""
    events: PositiveInt = 8
    """Events of a stub's stream."""
    event_gap: NonNegativeFloat = 0.01
    """Seconds between two events."""

    @property
    def manner(self) -> Manner:
        return Manner(self.events, self.event_gap)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFlags(WorkloadFlags):
    """What the fleet serves: all jobs at once, one an agent."""

    agents: PositiveInt = 12
    max_out: PositiveInt = 24
    replicas: PositiveInt = 3
    """How many servers."""
    gap: NonNegativeFloat = 0.5
    """Seconds between an answer and the next turn, as if a tool ran."""
    model: str = DEFAULT_MODEL
    """The model that is served."""


_DEFAULTS, _STUBS, _FLEET = RouteFlags(), StubFlags(), FleetFlags()


def route(
    *,
    flags: Annotated[RouteFlags, Parameter(name="*")] = _DEFAULTS,
    stubs: Annotated[StubFlags, Parameter(name="*", group="Scenario overhead")] = _STUBS,
    fleet: Annotated[FleetFlags, Parameter(name="*", group="Scenario fleet")] = _FLEET,
    as_json: JsonOutput = False,
) -> None:
    """Measure `hotloop route`: what it adds, and what it saves."""
    exit_on_sigterm()
    if flags.scenario == "overhead":
        show_report(_measure_overhead(flags, stubs), as_json)
        return
    sides = _run_fleet(fleet)
    show(fleet_json(sides), fleet_table(sides), as_json, [error for side in sides for error in side.errors])


def _measure_overhead(flags: RouteFlags, stubs: StubFlags) -> OverheadReport:
    with ExitStack() as stack:
        stub = stack.enter_context(StubProcess("stub-1", stubs.manner))
        ways: dict[str, StubProcess | RouterProcess] = {DIRECT: stub}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hotloop-bench-")))
        (folder / "keys.toml").write_text(_KEYS, encoding="utf-8")
        ways["hotloop"] = stack.enter_context(RouterProcess([stub.url], ("--log-level", "warning")))
        stable = ("--stabilise", "--tell-late-tools")
        for label, more in (("with logs and limits", ()), ("with everything", stable)):
            counted = ("--api-key-file", str(folder / "keys.toml"), "--spend-file", str(folder / f"{len(ways)}.json"))
            logged = ("--log-format", "json", *counted, *more)
            ways[label] = stack.enter_context(RouterProcess([stub.url], logged, key=_OPERATOR))
        lanes = [Lane(label, way.url, partial(cpu_s_of, way.pid)) for label, way in ways.items()]
        with progress() as bar:
            task = bar.add_task("overhead", total=len(lanes) * flags.rounds)
            return uvloop.run(
                measure_overhead(
                    lanes,
                    partial(agent_requests, seed=flags.seed, key=_KEY),
                    rate=stubs.rate,
                    round_s=flags.round_time,
                    num_rounds=flags.rounds,
                    on_round=partial(bar.advance, task),
                )
            )


def _run_fleet(flags: FleetFlags) -> list[FleetSide]:
    """In turn and then by prefix, which so is compared with the first."""
    pull_model(flags.model)
    jobs = flags.load_jobs(flags.agents)
    served = ("--model", flags.model)
    room = size_room(jobs, -(-flags.agents // flags.replicas), served)
    num_turns = sum(len(job.turns) for job in jobs)
    sides = []
    with progress() as bar:
        for policy in ("round_robin", "prefix"):
            watch = advance_by_turn(bar, bar.add_task(policy, total=num_turns))
            sides.append(
                run_side(
                    policy,
                    jobs,
                    num_replicas=flags.replicas,
                    num_agents=flags.agents,
                    gap_s=flags.gap,
                    flags=(*served, "--kv-memory", room),
                    watch=watch,
                )
            )
    return sides


if __name__ == "__main__":
    main(route)
