"""All scenarios in order, one after the other. One that fails is a row that says so, and the others go on."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claims.agents import (
    measure_calls,
    measure_speculation,
    measure_together,
    measure_tools,
    write_workflows,
)
from benchmarks.claims.batching import measure_batching
from benchmarks.claims.loop_tokens import measure_loop
from benchmarks.claims.priority import measure_priority
from benchmarks.claims.published import (
    BATCHING,
    CALLS,
    CLAIMS,
    FORESIGHT,
    LOOP,
    PREFIX,
    PRIORITY,
    STREAM,
    TIERS,
    TOGETHER,
    TOOLS,
)
from benchmarks.claims.reading import measure_prefix, measure_streaming
from benchmarks.claims.row import Row
from benchmarks.claims.tiers import measure_cost
from hotloop.core.errors import HotloopError

WITHOUT_MODEL = frozenset({TOOLS, FORESIGHT})
"""Claims that start no server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    loops: tuple[int, ...] = (5, 20)
    num_prompts: int = 12
    num_jobs: int = 4
    num_output: int = 96
    tool_s: float = 2.0
    num_requests: int = 32
    num_user_turns: int = 12
    num_workers: int = 6
    num_workflows: int = 6
    num_fleet_jobs: int = 8
    num_agents: int = 8
    num_questions: int = 4
    """Of each of six kinds, of two models."""


FULL = Scale()
QUICK = Scale(
    loops=(2,),
    num_prompts=2,
    num_jobs=2,
    num_output=16,
    tool_s=0.2,
    num_requests=8,
    num_user_turns=2,
    num_workers=2,
    num_workflows=1,
    num_fleet_jobs=2,
    num_agents=2,
    num_questions=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplies:
    """What is not generated: without them something else is taken, or a claim is skipped."""

    data: Path | None = None
    """Recorded transcripts with tool calls, .jsonl or .jsonl.gz; generated workflows if not given."""
    questions: Path | None = None
    """A folder of questions for tiers, such as simple_python.jsonl.gz; downloaded if not given."""
    small: str | None = None
    """A small model for tiers: a name `hotloop models` lists, or a path."""
    large: str | None = None
    """A large one."""


def run_claims(
    scale: Scale,
    supplies: Supplies,
    *,
    only: Collection[str] = tuple(CLAIMS),
    watch: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Each row as soon as it is there; `watch` hears what is about to be measured."""
    with _transcripts(supplies.data) as data:
        for name, measure in _scenarios(scale, supplies, data).items():
            if name in only:
                watch(name)
                yield from _measured(name, measure)


def _measured(name: str, measure: Callable[[], Row | Sequence[Row]]) -> Sequence[Row]:
    try:
        found = measure()
    except HotloopError as error:
        return [Row(name=name, error=" ".join(str(error).split()))]
    return [found] if isinstance(found, Row) else found


def _scenarios(scale: Scale, supplies: Supplies, data: Path) -> Mapping[str, Callable[[], Row | Sequence[Row]]]:
    return {
        LOOP: lambda: [measure_loop(num_steps) for num_steps in scale.loops],
        PREFIX: lambda: measure_prefix(data, scale.num_prompts),
        TOOLS: lambda: measure_tools(scale.tool_s),
        STREAM: lambda: measure_streaming(scale.num_jobs, scale.num_output),
        PRIORITY: lambda: measure_priority(scale.num_user_turns, scale.num_workers),
        BATCHING: lambda: measure_batching(scale.num_requests),
        CALLS: lambda: measure_calls(scale.num_workflows),
        FORESIGHT: lambda: measure_speculation(data),
        TIERS: lambda: _measure_tiers(scale, supplies),
        TOGETHER: lambda: measure_together(data, scale.num_fleet_jobs, scale.num_agents),
    }


def _measure_tiers(scale: Scale, supplies: Supplies) -> Row:
    if supplies.small is None or supplies.large is None:
        return Row(name=TIERS, skipped="it needs two models, --small and --large")
    return measure_cost(supplies.small, supplies.large, supplies.questions, scale.num_questions)


@contextmanager
def _transcripts(given: Path | None) -> Iterator[Path]:
    """Those given, or generated ones that live as long as the context."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workflows.jsonl"
        write_workflows(path)
        yield path
