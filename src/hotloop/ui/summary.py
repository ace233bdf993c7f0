"""Many runs as a few figures: what each agent, model, key or replica took, and how that went over time. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from hotloop.trace.runs import AnsweredRequest, RunSummary
from hotloop.ui.source import GroupBy
from hotloop.wire.field import Json

Timed = TypeVar("Timed", RunSummary, AnsweredRequest)

_NAMES: Mapping[GroupBy, Callable[[RunSummary], Sequence[str]]] = {
    "agent": lambda run: (run.agent,),
    "model": lambda run: (run.model,),
    "session": lambda run: (run.session,),
    "key": lambda run: (run.tenant[:8],),
    "tag": lambda run: run.tags.split() or ("",),
    "replica": lambda run: (run.replica,),
}
_NUM_BUCKETS = 48
_MAX_GROUPS = 50
_BAD = frozenset({"failed", "cancelled"})


def summarise(
    runs: Sequence[RunSummary], answered: Sequence[AnsweredRequest], by: GroupBy, since_ns: int, until_ns: int
) -> Json:
    """The groups with most runs first; of many, the others are one. Runs that go on count for tokens, not for times."""
    names_of = _NAMES[by]
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        for name in names_of(run):
            groups.setdefault(name, []).append(run)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = [_figures(members) | {"name": name} for name, members in ordered[:_MAX_GROUPS]]
    rest = [run for _, members in ordered[_MAX_GROUPS:] for run in members]
    if rest:
        rows.append(_figures(rest) | {"name": f"{len(ordered) - _MAX_GROUPS} others"})
    length_ns = max(1, math.ceil((until_ns - since_ns) / _NUM_BUCKETS))
    times = [
        _figures(members) | _waits(asked) | {"start_ms": (since_ns + i * length_ns) / 1e6, "length_ms": length_ns / 1e6}
        for i, (members, asked) in enumerate(
            zip(_by_time(runs, since_ns, length_ns), _by_time(answered, since_ns, length_ns), strict=True)
        )
    ]
    return {"groups": rows, "buckets": times, "num_runs": len(runs)}


def _by_time(each: Iterable[Timed], since_ns: int, length_ns: int) -> list[list[Timed]]:
    """Before and after that time there are none, but for requests of a run that went on after it."""
    buckets: list[list[Timed]] = [[] for _ in range(_NUM_BUCKETS)]
    for one in each:
        buckets[min(max((one.start_ns - since_ns) // length_ns, 0), _NUM_BUCKETS - 1)].append(one)
    return buckets


def _waits(asked: Sequence[AnsweredRequest]) -> Json:
    """The p95 of what requests waited for, by class for their turn."""
    first = sorted(each.first_token_ms for each in asked if each.first_token_ms is not None)
    queued: dict[str, list[float]] = {}
    for each in asked:
        if each.queue_ms is not None:
            queued.setdefault(each.priority or "unknown", []).append(each.queue_ms)
    queue = {priority: quantile(sorted(waits), 0.95) for priority, waits in queued.items()}
    return {"num_requests": len(asked), "first_token_p95_ms": quantile(first, 0.95), "queue_p95_ms": queue}


def _figures(runs: Sequence[RunSummary]) -> Json:
    walls = sorted(run.wall_s * 1e3 for run in runs if not run.is_running)
    return {
        "num_runs": len(runs),
        "num_bad": sum(run.num_errors > 0 or run.end in _BAD for run in runs),
        "wall_p50_ms": quantile(walls, 0.5),
        "wall_p95_ms": quantile(walls, 0.95),
        **{
            name: _total(runs, name)
            for name in ("num_turns", "num_prompt", "num_cached", "num_recomputed", "num_output")
        },
        "money": sum(run.money for run in runs),
    }


def _total(runs: Iterable[RunSummary], name: str) -> int:
    return sum(getattr(run, name) for run in runs)


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest that there is; None of nothing."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
