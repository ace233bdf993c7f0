"""`hotloop demo`: A few agents on the naive loop and then on hotloop, as it happens; then tool calls."""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

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
    from hotloop.bench.replay import Progress, ReplayedTurn
    from hotloop.bench.report import Summary
    from hotloop.bench.tools_report import ToolFigures
    from hotloop.bench.workload import AgentJob

_OUTPUT_TOKENS = 24
_NAIVE_S = 40.0
"""How long the naive half may take: with it the whole demo stays below two minutes."""
_SHORTEST_S = 1e-3
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


class Size(NamedTuple):
    agents: int
    turns: int
    system_chars: int

    def jobs(self) -> "list[AgentJob]":
        from hotloop.bench.workload import generate_jobs

        return generate_jobs(
            num_jobs=self.agents, num_turns=self.turns, num_output=_OUTPUT_TOKENS, system_chars=self.system_chars
        )


SIZES = (
    Size(4, 4, 8_000), Size(4, 4, 4_000), Size(4, 3, 4_000), Size(3, 3, 4_000), Size(3, 2, 4_000), Size(2, 2, 2_000)
)  # fmt: skip
"""The first for which this machine is fast enough is run, or else the last."""
_CALIBRATION = Size(1, 2, 2_000)


def demo(
    *,
    model: ModelName = DEFAULT_MODEL,
    agents: Annotated[
        PositiveInt | None, Parameter(help="Number of concurrent agents; 4 if not given, fewer on a slow machine.")
    ] = None,
    turns: Annotated[
        PositiveInt | None, Parameter(help="Turns per agent; 4 if not given, fewer on a slow machine.")
    ] = None,
) -> int:
    """Run a few agents without and with prefix reuse and batching, then tool calls without and with shortcuts.

    The machine is measured first, and the work is chosen so that all of it takes at most two minutes.
    """
    from hotloop.bench.report import table_of
    from hotloop.bench.serving import NAIVE, ChildServer, exit_on_sigterm
    from hotloop.bench.tools_report import shortcuts_table

    exit_on_sigterm()
    pull_missing(model)
    console = Console(highlight=False)
    with ChildServer(("--model", model, *NAIVE)) as server:
        console.print("Measuring this machine ...")
        speed = _measure_speed(server.url)
        jobs, text = choose_jobs(speed, agents, turns)
        console.print(text, soft_wrap=True)
        naive = _run(console, "naive", "nothing reused, one request at a time", server.url, jobs)
    with ChildServer(("--model", model)) as server:
        ours = _run(console, "hotloop", "prefix reuse and continuous batching", server.url, jobs)
        console.print(table_of([naive, ours], _FIGURES))
        console.print("\nRecomputed: computed although an earlier request of the run had computed it already.\n")
        console.print("[bold]tool calls[/bold]: every token sampled in turn, and with forced tokens and drafts ...")
        calls = _call_tools(server.url)
    console.print(shortcuts_table(calls))
    console.print(f"\n{calls.num_identical} of {calls.num_questions} answers are the same, word for word.")
    if calls.num_identical < calls.num_questions:
        console.print(
            "Rounding can tip the balance between two equally likely tokens; `serve --precision exact` rules that out."
        )
    return 1 if naive.num_errors or ours.num_errors or calls.num_errors else 0


@dataclass(frozen=True, slots=True)
class Speed:
    """What a machine takes when nothing is reused, one request at a time."""

    prefill_s: float
    """For a character of a prompt: how many of them are a token is the model's affair."""
    decode_s: float
    """For a token of an answer."""
    chars_per_token: float

    @classmethod
    def of(cls, num_chars: int, turn: "ReplayedTurn") -> "Speed":
        usage = turn.usage
        return cls(
            max(turn.ttft_s, _SHORTEST_S) / num_chars,
            max(turn.latency_s - turn.ttft_s, _SHORTEST_S) / max(1, usage.num_output - 1),
            num_chars / max(1, usage.num_prompt),
        )

    def seconds(self, jobs: "Sequence[AgentJob]") -> float:
        turns = [turn for job in jobs for turn in job.turns]
        return sum(turn.num_chars * self.prefill_s + turn.num_output * self.decode_s for turn in turns)


def _measure_speed(url: str) -> Speed:
    """By the second of two turns: with the first, the server may have things to load."""
    from hotloop.bench.client import ChatClient
    from hotloop.bench.replay import replay
    from hotloop.core.errors import RemoteError

    jobs = _CALIBRATION.jobs()

    async def run() -> Speed:
        async with ChatClient(url) as client:
            result = await replay(client, jobs, num_agents=1)
        if result.errors:
            raise RemoteError(result.errors[0])
        return Speed.of(jobs[0].turns[-1].num_chars, result.steps[-1])

    return asyncio.run(run())


def choose_jobs(speed: Speed, agents: int | None = None, turns: int | None = None) -> "tuple[list[AgentJob], str]":
    """As much work as this machine does in good time, and a text that says what was chosen and why."""
    sizes = [Size(agents or size.agents, turns or size.turns, size.system_chars) for size in SIZES]
    size = next((size for size in sizes if speed.seconds(size.jobs()) <= _NAIVE_S), sizes[-1])
    jobs = size.jobs()
    num_tokens = max(turn.num_chars for job in jobs for turn in job.turns) / speed.chars_per_token
    return jobs, (
        f"It prefills {1 / (speed.prefill_s * speed.chars_per_token):,.0f} tokens per second, "
        f"and decodes {1 / speed.decode_s:,.0f}. Chosen for that:\n"
        f"{size.agents} agents of {size.turns} turns each, prompts of up to {num_tokens:,.0f} tokens; "
        f"the naive half takes some {speed.seconds(jobs):.0f} s.\n"
        "Every turn resends all that was said so far, as agents do.\n"
    )


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
    num_done: int = 0

    @property
    def _progress(self) -> str:
        return f"{self.num_done}/{sum(row.num_turns for row in self.rows.values())}"

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
        if progress.step or progress.error:
            self.num_done += 1
            if self.console:
                self.console.print(f"  {self._progress}  {_line(progress, row)}", markup=False, soft_wrap=True)

    def __rich__(self) -> Table:
        caption = f"{self._progress} turns done"
        table = Table(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, caption=caption, caption_justify="left"
        )
        for title in ("agent", "turn", "prefilled", "cached", "first word"):
            table.add_column(title, justify="left" if title == "agent" else "right", no_wrap=True)
        table.add_column("", no_wrap=True, ratio=1)
        for job_id, row in self.rows.items():
            ttft = "" if row.ttft_s is None else f"{row.ttft_s:.2f} s"
            numbers = (f"{row.turn}/{row.num_turns}", f"{row.num_prefilled:,}", f"{row.num_cached:,}", ttft)
            table.add_row(job_id, *numbers, Text(shorten(row.words, _LAST_CHARS) or "prefilling ..."))
        return table


def _line(progress: "Progress", row: AgentRow) -> str:
    turn = f"{progress.job_id} turn {row.turn}/{row.num_turns}"
    if progress.step is None:
        return f"{turn}: {progress.error}"
    usage = progress.step.usage
    work = f"prefilled {usage.num_prompt - usage.num_cached:,} of {usage.num_prompt:,} tokens"
    return f"{turn}: {work}, first word after {progress.step.ttft_s:.2f} s: ...{shorten(row.words, _LAST_CHARS)}"
