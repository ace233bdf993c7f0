"""All scenarios in order, one after the other. One that fails is a row that says so, and the others go on."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from benchmarks.claims.batching import measure_batching
from benchmarks.claims.bench import Bench
from benchmarks.claims.drafting import measure_drafting
from benchmarks.claims.gathering import measure_gathering, measure_many
from benchmarks.claims.loop import measure_loop, measure_tokens
from benchmarks.claims.priority import measure_priority
from benchmarks.claims.published import (
    DRAFT,
    FIRST,
    LINEAR,
    PREFIX,
    PRIORITY,
    SERVING,
    SPECULATION,
    TIERS,
    TOGETHER,
    TOOLS,
    UTILISATION,
)
from benchmarks.claims.reading import measure_prefix, measure_serving, measure_streaming
from benchmarks.claims.result import Result
from benchmarks.claims.speculation import measure_speculation
from benchmarks.claims.tiers import measure_cost
from benchmarks.claims.together import measure_together
from benchmarks.claims.utilisation import measure_utilisation
from hotloop.core.errors import HotloopError

GROUPS: Mapping[str, Callable[[Bench], Result | Sequence[Result]]] = {
    "tokens": measure_tokens,
    "loop": measure_loop,
    PREFIX: measure_prefix,
    FIRST: measure_streaming,
    TOOLS: measure_gathering,
    LINEAR: measure_many,
    SPECULATION: measure_speculation,
    "batching": measure_batching,
    PRIORITY: measure_priority,
    UTILISATION: measure_utilisation,
    DRAFT: measure_drafting,
    TIERS: measure_cost,
    SERVING: measure_serving,
    TOGETHER: measure_together,
}
"""What can be measured on its own: some of it gives several claims."""


def run_claims(
    bench: Bench, *, only: Collection[str] = tuple(GROUPS), watch: Callable[[str], None] = lambda _: None
) -> Iterator[Result]:
    """Each result as soon as it is there; `watch` hears what is about to be measured."""
    for name, measure in GROUPS.items():
        if name in only:
            watch(name)
            try:
                found = measure(bench)
            except HotloopError as error:
                found = Result(claim=name, missing=f"failed: {' '.join(str(error).split())}")
            yield from [found] if isinstance(found, Result) else found
