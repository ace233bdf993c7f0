"""Figures out of a run, and how they are shown: a table for people, plain values for programs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rich.table import Table

from hotloop.bench.replay import Replay
from hotloop.bench.workload import AgentJob

_MORE_IS_BETTER = {"output_tokens_per_s"}


def figures_table(title: str, columns: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def figure(title: str, form: str = "{:,d}") -> Any:
    """A field of a dataclass that tables show: under which title, and how it is written."""
    return field(metadata={"title": title, "form": form})


def shown(kind: type) -> dict[str, Mapping[str, str]]:
    """The titles and forms of what is shown, by field."""
    return {each.name: each.metadata for each in fields(kind) if each.metadata}


def table_of_figures(columns: Sequence[Any]) -> Table:
    """A row for each figure that is shown of these, which are all of one dataclass and have labels."""
    table = figures_table("", (column.label for column in columns))
    for name, row in shown(type(columns[0])).items():
        table.add_row(row["title"], *(row["form"].format(getattr(column, name)) for column in columns))
    return table


def rounded(values: Mapping[str, Any], digits: int = 4) -> dict[str, Any]:
    return {name: round(value, digits) if isinstance(value, float) else value for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run in figures.

    Tokens "recomputed" are prompt tokens computed although an earlier request of the run had computed them: prompt
    less cached less new, where a turn's new tokens are what it adds to the turn before (a first turn: to the system
    prompt that others have sent, whose share of the tokens is taken to be its share of the characters).
    """

    label: str
    num_jobs: int = figure("jobs")
    num_steps: int = figure("turns")
    num_errors: int = figure("errors")
    num_prompt_tokens: int = figure("prompt tokens")
    num_prefilled_tokens: int = figure("tokens prefilled")
    num_recomputed_tokens: int = figure("tokens recomputed")
    cached_share: float = figure("cached share", "{:.1%}")
    ttft_p50_s: float = figure("TTFT p50", "{:.3f} s")
    ttft_p95_s: float = figure("TTFT p95", "{:.3f} s")
    step_p50_s: float = figure("turn p50", "{:.3f} s")
    step_p95_s: float = figure("turn p95", "{:.3f} s")
    job_mean_s: float = figure("job mean", "{:.2f} s")
    job_p50_s: float = figure("job p50", "{:.2f} s")
    job_p95_s: float = figure("job p95", "{:.2f} s")
    output_tokens_per_s: float = figure("output tokens/s", "{:.1f}")
    wall_s: float = figure("wall time", "{:.1f} s")
    num_output_tokens: int

    def to_json(self) -> dict[str, Any]:
        return rounded(asdict(self))


_SHOWN = shown(Summary)
_COMPARED = ("num_prefilled_tokens", *(name for name in _SHOWN if name.endswith("_s")))
"""What can be better; recomputed tokens are an estimate of next to nothing."""


def summarise(label: str, run: Replay, jobs: Sequence[AgentJob]) -> Summary:
    ttfts = [step.ttft_s for step in run.steps]
    latencies = [step.latency_s for step in run.steps]
    num_prompt = sum(step.usage.num_prompt for step in run.steps)
    num_cached = sum(step.usage.num_cached for step in run.steps)
    num_output = sum(step.usage.num_output for step in run.steps)
    num_prefilled = num_prompt - num_cached
    return Summary(
        label=label,
        num_jobs=len(run.job_times_s),
        num_steps=len(run.steps),
        num_errors=len(run.errors),
        wall_s=run.wall_s,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p95_s=percentile(ttfts, 0.95),
        step_p50_s=percentile(latencies, 0.5),
        step_p95_s=percentile(latencies, 0.95),
        job_mean_s=statistics.fmean(run.job_times_s) if run.job_times_s else 0.0,
        job_p50_s=percentile(run.job_times_s, 0.5),
        job_p95_s=percentile(run.job_times_s, 0.95),
        num_prompt_tokens=num_prompt,
        num_prefilled_tokens=num_prefilled,
        num_recomputed_tokens=max(0, num_prefilled - count_new_tokens(run, jobs)),
        cached_share=num_cached / num_prompt if num_prompt else 0.0,
        num_output_tokens=num_output,
        output_tokens_per_s=num_output / run.wall_s if run.wall_s else 0.0,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The median for 0.5, else the value below which `share` of the others lie; 0 of nothing."""
    if not values:
        return 0.0
    if share == 0.5:
        return statistics.median(values)
    return sorted(values)[int(share * (len(values) - 1))]


def count_new_tokens(run: Replay, jobs: Sequence[AgentJob]) -> int:
    """Prompt tokens that no earlier request of the run had: see `Summary`."""
    by_id = {job.id: job for job in jobs}
    num_prefilled_of: dict[str, int] = {}
    shared_seen: set[str] = set()
    num_new = 0
    for step in run.steps:
        turn = by_id[step.job_id].turns[step.turn]
        system = turn.messages[0]["content"]
        num_known = num_prefilled_of.get(step.job_id)
        if num_known is None:
            num_system = step.usage.num_prompt * len(system) // max(1, turn.num_chars)
            num_known = num_system if system in shared_seen else 0
        num_new += max(0, step.usage.num_prompt - num_known)
        num_prefilled_of[step.job_id] = max(num_known, step.usage.num_prompt)
        shared_seen.add(system)
    return num_new


def ratios(first: Summary, second: Summary) -> dict[str, float | None]:
    """How many times better the second is, for every figure that can be better; None where one of both is zero."""
    result: dict[str, float | None] = {}
    for name in _COMPARED:
        a, b = getattr(first, name), getattr(second, name)
        above, below = (b, a) if name in _MORE_IS_BETTER else (a, b)
        result[name] = round(above / below, 2) if above and below else None
    return result


def table_of(summaries: Sequence[Summary], names: Iterable[str] = _SHOWN) -> Table:
    """Figures down, all or those named, and runs across; for two runs, how many times better the second is."""
    table = figures_table("", (summary.label for summary in summaries))
    times = ratios(*summaries) if len(summaries) == 2 else {}
    if times:
        table.add_column("times better", justify="right")
    for name in names:
        cells = [_SHOWN[name]["form"].format(getattr(summary, name)) for summary in summaries]
        time = times.get(name)
        table.add_row(_SHOWN[name]["title"], *cells, *([f"{time:.2f}x" if time else ""] if times else []))
    return table


def json_of(summaries: Sequence[Summary]) -> dict[str, Any]:
    runs = [summary.to_json() for summary in summaries]
    return {"runs": runs, "times_better": ratios(*summaries)} if len(summaries) == 2 else {"runs": runs}
