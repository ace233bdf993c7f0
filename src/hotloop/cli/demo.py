"""`hotloop demo`: A few agents on the naive loop and then on hotloop, as it happens; then tool calls."""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hotloop.bench.questions import AskOptions
from hotloop.bench.workflows import CATEGORY, generate_workflows
from hotloop.cli.loading import pull_missing
from hotloop.cli.models import ModelName
from hotloop.cli.output import shorten
from hotloop.core.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from hotloop.bench.replay import Progress
    from hotloop.bench.report import Summary
    from hotloop.bench.tools_report import ToolFigures
    from hotloop.bench.workload import AgentJob

_OUTPUT_TOKENS = 24
_SYSTEM_CHARS = 8_000
_GAP_S = 0.1
_LAST_CHARS = 40
_NUM_WORKFLOWS = 1
_MAX_CALL_TOKENS = 96
_FIGURES = (
    "num_prefilled_tokens",
    "num_recomputed_tokens",
    "ttft_p50_s",
    "ttft_p95_s",
    "job_mean_s",
    "output_tokens_per_s",
    "wall_s",
)


def demo(
    *,
    model: ModelName = DEFAULT_MODEL,
    agents: Annotated[PositiveInt, Parameter(help="Number of concurrent agents.")] = 4,
    turns: Annotated[PositiveInt, Parameter(help="Turns per agent.")] = 4,
) -> int:
    """Run a few agents without and with prefix reuse and batching, then tool calls without and with shortcuts."""
    from hotloop.bench.report import table_of
    from hotloop.bench.serving import NAIVE, ChildServer, exit_on_sigterm
    from hotloop.bench.tools_report import shortcuts_table
    from hotloop.bench.workload import generate_jobs

    exit_on_sigterm()
    pull_missing(model)
    jobs = generate_jobs(num_jobs=agents, num_turns=turns, num_output=_OUTPUT_TOKENS, system_chars=_SYSTEM_CHARS)
    console = Console(highlight=False)
    console.print(
        f"{agents} agents of {turns} turns each. Every turn resends all that was said so far, as agents do.\n"
    )
    with ChildServer(("--model", model, *NAIVE)) as server:
        naive = _run(console, "naive", "nothing reused, one request at a time", server.url, jobs)
    with ChildServer(("--model", model)) as server:
        ours = _run(console, "hotloop", "prefix reuse and continuous batching", server.url, jobs)
        console.print(table_of([naive, ours], _FIGURES))
        console.print("\nRecomputed: computed although an earlier request of the run had computed it already.\n")
        console.print("[bold]tool calls[/bold]: every token sampled in turn, and with forced tokens and drafts")
        calls = _call_tools(server.url)
    console.print(shortcuts_table(calls))
    console.print(f"\n{calls.num_identical} of {calls.num_questions} answers are the same, word for word.")
    if calls.num_identical < calls.num_questions:
        console.print(
            "Rounding can tip the balance between two equally likely tokens; `serve --precision exact` rules that out."
        )
    return 1 if naive.num_errors or ours.num_errors or calls.num_errors else 0


def _run(console: Console, label: str, what: str, url: str, jobs: "list[AgentJob]") -> "Summary":
    from hotloop.bench.serving import replay_server

    console.print(f"[bold]{label}[/bold]: {what}")
    agents = AgentTable.of(jobs, None if console.is_terminal else console)
    with Live(agents, console=console, refresh_per_second=8) if console.is_terminal else nullcontext():
        summary = replay_server(label, url, jobs, num_agents=len(jobs), gap_s=_GAP_S, watch=agents.update)
    console.print(f"done in {summary.wall_s:.1f} s\n")
    return summary


def _call_tools(url: str) -> "ToolFigures":
    from hotloop.bench.client import ChatClient
    from hotloop.bench.tools import measure
    from hotloop.bench.tools_report import figures_of

    async def run() -> "ToolFigures":
        async with ChatClient(url) as client:
            questions = generate_workflows(seed=0, num_workflows=_NUM_WORKFLOWS)
            return figures_of(CATEGORY, await measure(client, questions, AskOptions(max_tokens=_MAX_CALL_TOKENS)))

    return asyncio.run(run())


@dataclass(slots=True)
class AgentRow:
    num_turns: int
    turn: int = 0
    num_prefilled: int = 0
    num_cached: int = 0
    ttft_s: float | None = None
    words: str = ""


@dataclass(slots=True)
class AgentTable:
    """The agents at this moment, as a table; given a console, prints a line for every turn instead."""

    rows: dict[str, AgentRow]
    console: Console | None = None

    @classmethod
    def of(cls, jobs: "list[AgentJob]", console: Console | None = None) -> "AgentTable":
        return cls({job.id: AgentRow(len(job.turns)) for job in jobs}, console)

    def update(self, progress: "Progress") -> None:
        row = self.rows[progress.job_id]
        row.turn = progress.turn + 1
        if progress.text:
            row.words = (row.words + progress.text)[-_LAST_CHARS:]
        elif progress.step:
            row.num_prefilled += progress.step.usage.num_prompt - progress.step.usage.num_cached
            row.num_cached += progress.step.usage.num_cached
            row.ttft_s = progress.step.ttft_s
        else:
            row.words = progress.error
        if self.console and (progress.step or progress.error):
            self.console.print(_line(progress, row), markup=False, soft_wrap=True)

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
        for title in ("agent", "turn", "prefilled", "cached", "first word"):
            table.add_column(title, justify="left" if title == "agent" else "right", no_wrap=True)
        table.add_column("", no_wrap=True, ratio=1)
        for job_id, row in self.rows.items():
            ttft = "" if row.ttft_s is None else f"{row.ttft_s:.2f} s"
            numbers = (f"{row.turn}/{row.num_turns}", f"{row.num_prefilled:,}", f"{row.num_cached:,}", ttft)
            table.add_row(job_id, *numbers, Text(shorten(row.words, _LAST_CHARS) or "prefilling ..."))
        return table


def _line(progress: "Progress", row: AgentRow) -> str:
    turn = f"  {progress.job_id} turn {row.turn}/{row.num_turns}"
    if progress.step is None:
        return f"{turn}: {progress.error}"
    usage = progress.step.usage
    work = f"prefilled {usage.num_prompt - usage.num_cached:,} of {usage.num_prompt:,} tokens"
    return f"{turn}: {work}, first word after {progress.step.ttft_s:.2f} s: ...{shorten(row.words, _LAST_CHARS)}"
