"""What the router costs, what it survives, and what it saves."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import uvloop
from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveFloat, PositiveInt

from benchmarks.command import main, show_report
from benchmarks.route.chaos import run_chaos
from benchmarks.route.fleet import FleetSide, fleet_json, fleet_table, run_side, size_room
from benchmarks.route.hostile import TROUBLES, HostileProcess, HostileReport, measure_hostile
from benchmarks.route.memory import NUM_SAMPLES, measure_memory
from benchmarks.route.overhead import DIRECT, Lane, OverheadReport, measure_overhead
from benchmarks.route.peer import LiteLlmProcess
from benchmarks.route.processes import RouterProcess, StubProcess, cpu_s_of, rss_bytes_of
from benchmarks.route.prompts import agent_requests
from benchmarks.route.stub import Manner
from benchmarks.route.troubles import plan_troubles
from benchmarks.route.verdict import ChaosReport
from hotloop.bench.serving import exit_on_sigterm
from hotloop.cli.bench import WorkloadFlags
from hotloop.cli.exits import complain
from hotloop.cli.loading import pull_model
from hotloop.cli.output import advance_by_turn, progress, show
from hotloop.cli.settings import Json
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import HotloopError

Scenario = Literal["overhead", "memory", "chaos", "hostile", "fleet"]

_NUM_STUBS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFlags:
    """What is measured, and for how long."""

    scenario: Scenario = "overhead"
    """Time added, memory over many requests, replicas that fail, one that sends what none should, or real replicas by
    prefix against in turn."""
    rounds: PositiveInt = 6
    """overhead: how often each way is measured, in turn."""
    round_time: PositiveFloat = 10.0
    """overhead: seconds of a round."""
    litellm: Path | None = None
    """overhead: a `litellm` program to compare with (pip install "litellm[proxy]" in an environment of its own)."""
    requests: PositiveInt = 100_000
    """memory: how many, each of somebody new, after twice as many that fill what the router remembers by design."""
    minutes: PositiveFloat = 10.0
    """chaos: how long."""
    seed: int = 0
    """chaos: which troubles; overhead, memory: which prompts."""
    trouble_time: PositiveFloat = 15.0
    """hostile: seconds of each trouble."""


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
    stubs: Annotated[StubFlags, Parameter(name="*", group="Scenarios overhead and chaos")] = _STUBS,
    fleet: Annotated[FleetFlags, Parameter(name="*", group="Scenario fleet")] = _FLEET,
    as_json: Json = False,
) -> None:
    """Measure `hotloop route`: what it adds, whether it forgets, what it survives, and what it saves."""
    exit_on_sigterm()
    match flags.scenario:
        case "overhead":
            show_report(_measure_overhead(flags, stubs), as_json)
        case "memory":
            show_report(_measure_memory(flags), as_json)
        case "chaos":
            chaos = _run_chaos(flags, stubs)
            show_report(chaos, as_json)
            complain(*chaos.details)
            if not chaos.is_good:
                raise HotloopError("requests were lost, streams were cut, or recovery took too long")
        case "hostile":
            hostile = _measure_hostile(flags)
            show_report(hostile, as_json)
            if not hostile.is_good:
                raise HotloopError("a hostile replica slowed the router down, filled its memory or spoilt an answer")
        case "fleet":
            sides = _run_fleet(fleet)
            show(fleet_json(sides), fleet_table(sides), as_json, [error for side in sides for error in side.errors])


def _measure_overhead(flags: RouteFlags, stubs: StubFlags) -> OverheadReport:
    with ExitStack() as stack:
        stub = stack.enter_context(StubProcess("stub-1", stubs.manner))
        ways: dict[str, StubProcess | RouterProcess | LiteLlmProcess] = {DIRECT: stub}
        ways["hotloop"] = stack.enter_context(RouterProcess([stub.url]))
        if flags.litellm:
            ways["LiteLLM"] = stack.enter_context(LiteLlmProcess(flags.litellm, stub.url))
        lanes = [Lane(label, way.url, partial(cpu_s_of, way.pid)) for label, way in ways.items()]
        with progress() as bar:
            task = bar.add_task("overhead", total=len(lanes) * flags.rounds)
            return uvloop.run(
                measure_overhead(
                    lanes,
                    partial(agent_requests, seed=flags.seed),
                    rate=stubs.rate,
                    round_s=flags.round_time,
                    num_rounds=flags.rounds,
                    on_round=partial(bar.advance, task),
                )
            )


def _measure_memory(flags: RouteFlags) -> Any:
    with StubProcess("stub-1") as stub, RouterProcess([stub.url]) as router, progress() as bar:
        task = bar.add_task("memory", total=NUM_SAMPLES)
        return uvloop.run(
            measure_memory(
                router.url,
                partial(rss_bytes_of, router.pid),
                agent_requests(seed=flags.seed, num_turns=1),
                count=flags.requests,
                warm_up=2 * flags.requests,  # tables that are full are made anew once more before they keep their size
                on_sample=partial(bar.advance, task),
            )
        )


def _run_chaos(flags: RouteFlags, settings: StubFlags) -> ChaosReport:
    names = [f"stub-{number}" for number in range(1, _NUM_STUBS + 1)]
    duration_s = 60 * flags.minutes
    troubles = plan_troubles(names, duration_s, seed=flags.seed)
    with ExitStack() as stack:
        stubs = [stack.enter_context(StubProcess(name, settings.manner)) for name in names]
        router = stack.enter_context(RouterProcess([stub.url for stub in stubs]))
        bar = stack.enter_context(progress())
        task = bar.add_task("troubles", total=len(troubles))
        return uvloop.run(
            run_chaos(
                router,
                stubs,
                troubles,
                rate=settings.rate,
                duration_s=duration_s,
                seed=flags.seed,
                on_trouble=partial(bar.advance, task),
            )
        )


def _measure_hostile(flags: RouteFlags) -> HostileReport:
    with ExitStack() as stack:
        bad = stack.enter_context(HostileProcess())
        stubs = [stack.enter_context(StubProcess(f"stub-{number}")) for number in (1, 2)]
        router = stack.enter_context(RouterProcess([stub.url for stub in stubs], more=bad.table()))
        bar = stack.enter_context(progress())
        task = bar.add_task("troubles", total=len(TROUBLES))
        return uvloop.run(
            measure_hostile(
                router.url,
                bad.be,
                partial(rss_bytes_of, router.pid),
                each_s=flags.trouble_time,
                on_trouble=partial(bar.advance, task),
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
