"""All scenarios in order, one after the other. One that fails is a row that says so, and the others go on."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claims.batching import measure_batching
from benchmarks.claims.drafting import measure_drafting
from benchmarks.claims.gathering import measure_gathering
from benchmarks.claims.loop import measure_loop
from benchmarks.claims.priority import measure_priority
from benchmarks.claims.published import DRAFT, FIRST, PREFIX, PRIORITY, SPECULATION, TIERS, TOGETHER
from benchmarks.claims.reading import measure_prefix, measure_streaming
from benchmarks.claims.result import Result
from benchmarks.claims.speculation import measure_speculation
from benchmarks.claims.tiers import measure_cost
from benchmarks.claims.together import measure_together
from benchmarks.claims.workflows import write_workflows
from hotloop.core.errors import HotloopError

LOOP, TOOLS, BATCHING = "loop", "parallel tools", "batching"
GROUPS = (LOOP, PREFIX, FIRST, TOOLS, SPECULATION, BATCHING, PRIORITY, DRAFT, TIERS, TOGETHER)
"""What can be measured on its own: some of it gives several claims."""
WITHOUT_MODEL = frozenset({SPECULATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    repeats: int = 3
    steps: tuple[int, ...] = (1, 2, 3, 4, 5, 10, 18, 26)
    num_prompts: int = 3
    num_output: int = 192
    tool_s: float = 2.0
    num_splits: int = 5
    num_lessons: int = 30
    num_requests: int = 16
    num_user_turns: int = 4
    num_workers: int = 6
    num_sub_agents: int = 4
    num_drafted: int = 64
    num_questions: int = 34
    """Of each of six kinds."""
    num_jobs: int = 4


FULL = Scale()
QUICK = Scale(
    repeats=1,
    steps=(1, 2, 3, 4, 5),
    num_prompts=1,
    num_output=8,
    tool_s=0.1,
    num_splits=1,
    num_requests=4,
    num_user_turns=1,
    num_workers=1,
    num_sub_agents=1,
    num_drafted=4,
    num_questions=1,
    num_jobs=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplies:
    """What is not generated: without them something else is taken, or a claim is left out."""

    data: Path | None = None
    """Recorded transcripts with tool calls, .jsonl or .jsonl.gz; generated workflows if not given."""
    questions: Path | None = None
    """A folder of questions for tiers, such as simple_python.jsonl.gz; downloaded if not given."""
    small: str | None = None
    """A small model, by name or path; as a draft model it must have the large one's vocabulary."""
    large: str | None = None
    """A large one."""


def run_claims(
    scale: Scale,
    supplies: Supplies,
    *,
    only: Collection[str] = GROUPS,
    watch: Callable[[str], None] = lambda _: None,
) -> Iterator[Result]:
    """Each result as soon as it is there; `watch` hears what is about to be measured."""
    with _transcripts(supplies.data) as data:
        for name, measure in _scenarios(scale, supplies, data).items():
            if name in only:
                watch(name)
                yield from _measured(name, measure)


def _measured(name: str, measure: Callable[[], Result | Sequence[Result]]) -> Sequence[Result]:
    try:
        found = measure()
    except HotloopError as error:
        return [Result(claim=name, missing=f"failed: {' '.join(str(error).split())}")]
    return [found] if isinstance(found, Result) else found


def _scenarios(scale: Scale, supplies: Supplies, data: Path) -> Mapping[str, Callable[[], Result | Sequence[Result]]]:
    repeats = scale.repeats
    runs = f"runs of {supplies.data.name.partition('.')[0]}" if supplies.data else "generated office workflows"
    return {
        LOOP: lambda: measure_loop(scale.steps, repeats),
        PREFIX: lambda: measure_prefix(data, runs, scale.num_prompts, repeats),
        FIRST: lambda: measure_streaming(repeats, scale.num_output),
        TOOLS: lambda: measure_gathering(scale.tool_s, repeats),
        SPECULATION: lambda: measure_speculation(data, runs, scale.num_lessons, scale.num_splits),
        BATCHING: lambda: measure_batching(scale.num_requests, repeats),
        PRIORITY: lambda: measure_priority(scale.num_user_turns, scale.num_workers, scale.num_sub_agents, repeats),
        DRAFT: _paired(
            DRAFT, supplies, lambda small, large: measure_drafting(large, small, repeats, scale.num_drafted)
        ),
        TIERS: _paired(
            TIERS,
            supplies,
            lambda small, large: measure_cost(small, large, supplies.questions, scale.num_questions, repeats),
        ),
        TOGETHER: _paired(
            TOGETHER, supplies, lambda small, large: measure_together(small, large, scale.num_jobs, repeats)
        ),
    }


def _paired(name: str, supplies: Supplies, measure: Callable[[str, str], Result]) -> Callable[[], Result]:
    small, large = supplies.small, supplies.large
    if small is None or large is None:
        return lambda: Result(claim=name, missing="it needs two models, --small and --large")
    return lambda: measure(small, large)


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
