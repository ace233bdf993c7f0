"""`hotloop bench route`: what the router costs, what it survives, and what it saves."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveFloat, PositiveInt

from hotloop.cli.bench_output import progress, show
from hotloop.cli.settings import Json
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import HotloopError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from hotloop.bench import replay as agents
    from hotloop.bench.route.fleet import FleetSide
    from hotloop.bench.route.overhead import OverheadReport
    from hotloop.bench.route.verdict import ChaosReport
    from hotloop.bench.workload import Job

Scenario = Literal["overhead", "memory", "chaos", "fleet"]

_NUM_STUBS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFlags:
    """What is measured, and for how long."""

    scenario: Scenario = "overhead"
    """Time added, memory over many requests, replicas that fail, or real replicas by prefix against in turn."""
    rate: PositiveFloat = 200.0
    """overhead, chaos: requests a second, whether or not others were answered."""
    rounds: PositiveInt = 6
    """overhead: how often each way is measured, in turn."""
    round_time: PositiveFloat = 10.0
    """overhead: seconds of a round."""
    events: PositiveInt = 8
    """overhead, chaos: events of a stub's stream."""
    event_gap: NonNegativeFloat = 0.01
    """overhead, chaos: seconds between two events."""
    litellm: Path | None = None
    """overhead: a `litellm` program to compare with (pip install "litellm[proxy]" in an environment of its own)."""
    requests: PositiveInt = 100_000
    """memory: how many, each of somebody new, after twice as many that fill what the router remembers by design."""
    minutes: PositiveFloat = 10.0
    """chaos: how long."""
    seed: int = 0
    """chaos: which troubles; overhead, memory: which prompts."""
    data: Path | None = None
    """fleet: recorded transcripts, .jsonl or .jsonl.gz; a generated workload if not given."""
    replicas: PositiveInt = 3
    """fleet: how many servers."""
    agents: PositiveInt = 12
    """fleet: how many jobs, all at once."""
    turns: PositiveInt = 6
    """fleet: most turns of a job."""
    max_out: PositiveInt = 24
    """fleet: most tokens asked for in a turn."""
    gap: NonNegativeFloat = 0.5
    """fleet: seconds between an answer and the next turn, as if a tool ran."""
    skip_chars: PositiveInt = 28_000
    """fleet: leave out transcripts whose last prompt has as many characters."""
    model: str = DEFAULT_MODEL
    """fleet: the model that is served."""


_DEFAULTS = RouteFlags()


def route(*, flags: Annotated[RouteFlags, Parameter(name="*")] = _DEFAULTS, as_json: Json = False) -> None:
    """Measure `hotloop route`: what it adds, whether it forgets, what it survives, and what it saves."""
    from hotloop.bench.serving import exit_on_sigterm

    exit_on_sigterm()
    match flags.scenario:
        case "overhead":
            overhead = _measure_overhead(flags)
            show(overhead.to_json(), overhead.to_table(), as_json)
        case "memory":
            memory = _measure_memory(flags)
            show(memory.to_json(), memory.to_table(), as_json)
        case "chaos":
            chaos = _run_chaos(flags)
            show(chaos.to_json(), chaos.to_table(), as_json)
            _complain(chaos.details)
            if not chaos.is_good:
                raise HotloopError("requests were lost, streams were cut, or recovery took too long")
        case "fleet":
            _show_fleet(_run_fleet(flags), as_json)


def _measure_overhead(flags: RouteFlags) -> "OverheadReport":
    import uvloop

    from hotloop.bench.route.overhead import DIRECT, Lane, measure_overhead
    from hotloop.bench.route.peer import LiteLlmProcess
    from hotloop.bench.route.processes import RouterProcess, StubProcess, cpu_s_of
    from hotloop.bench.route.prompts import agent_requests
    from hotloop.bench.route.stub import Manner

    with ExitStack() as stack:
        stub = stack.enter_context(StubProcess("stub-1", Manner(flags.events, flags.event_gap)))
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
                    rate=flags.rate,
                    round_s=flags.round_time,
                    num_rounds=flags.rounds,
                    on_round=partial(bar.advance, task),
                )
            )


def _measure_memory(flags: RouteFlags) -> Any:
    import uvloop

    from hotloop.bench.route.memory import NUM_SAMPLES, measure_memory
    from hotloop.bench.route.processes import RouterProcess, StubProcess, rss_bytes_of
    from hotloop.bench.route.prompts import agent_requests

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


def _run_chaos(flags: RouteFlags) -> "ChaosReport":
    import uvloop

    from hotloop.bench.route.chaos import run_chaos
    from hotloop.bench.route.processes import RouterProcess, StubProcess
    from hotloop.bench.route.stub import Manner
    from hotloop.bench.route.troubles import plan_troubles

    names = [f"stub-{number}" for number in range(1, _NUM_STUBS + 1)]
    duration_s = 60 * flags.minutes
    troubles = plan_troubles(names, duration_s, seed=flags.seed)
    with ExitStack() as stack:
        manner = Manner(flags.events, flags.event_gap)
        stubs = [stack.enter_context(StubProcess(name, manner)) for name in names]
        router = stack.enter_context(RouterProcess([stub.url for stub in stubs]))
        bar = stack.enter_context(progress())
        task = bar.add_task("troubles", total=len(troubles))
        return uvloop.run(
            run_chaos(
                router,
                stubs,
                troubles,
                rate=flags.rate,
                duration_s=duration_s,
                seed=flags.seed,
                on_trouble=partial(bar.advance, task),
            )
        )


def _run_fleet(flags: RouteFlags) -> "list[FleetSide]":
    """In turn and then by prefix, which so is compared with the first."""
    from hotloop.bench.route.fleet import run_side, size_room
    from hotloop.cli.loading import pull_model

    pull_model(flags.model)
    jobs = _load_jobs(flags)
    served = ("--model", flags.model)
    room = size_room(jobs, -(-flags.agents // flags.replicas), served)
    num_turns = sum(len(job.turns) for job in jobs)
    sides = []
    with progress() as bar:
        for policy in ("round_robin", "prefix"):
            watch = partial(_advance, bar, bar.add_task(policy, total=num_turns))
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


def _load_jobs(flags: RouteFlags) -> "list[Job]":
    from hotloop.bench.workload import generate_jobs, read_jobs

    if flags.data is None:
        return generate_jobs(num_jobs=flags.agents, num_turns=flags.turns, num_output=flags.max_out)
    limits = {"max_turns": flags.turns, "max_output": flags.max_out, "max_chars": flags.skip_chars}
    return read_jobs(flags.data, max_jobs=flags.agents, **limits)


def _advance(bar: "Progress", task: "TaskID", seen: "agents.Progress") -> None:
    if seen.step or seen.error:
        bar.advance(task)


def _show_fleet(sides: "list[FleetSide]", as_json: bool) -> None:
    from hotloop.bench.route.fleet import fleet_json, fleet_table

    show(fleet_json(sides), fleet_table(sides), as_json)
    _complain([error for side in sides for error in side.errors][:3])


def _complain(lines: "list[str] | tuple[str, ...]") -> None:
    for line in lines:
        print(f"hotloop: {line}", file=sys.stderr)
