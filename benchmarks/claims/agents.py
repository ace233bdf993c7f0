"""What the agent runtime brings: tools at once, calls foreseen, nearly free calls, and everything together.

Runs come from recorded transcripts or, where none are given, from generated office workflows written out as such.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.agent.fleet import FleetRun, ablation, run_fleet
from benchmarks.agent.foresight import measure_foresight, read_runs
from benchmarks.agent.recorded import Latency, read_agent_jobs
from benchmarks.agent.tools import run_tools
from benchmarks.claims.published import CALLS, FORESIGHT, TOGETHER, TOOLS
from benchmarks.claims.row import Row
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.speculation import SpeculativeForesight
from hotloop.bench.client import ChatClient
from hotloop.bench.questions import AskOptions, ToolQuestion
from hotloop.bench.serving import ChildServer
from hotloop.bench.tools import Measured, learn, measure
from hotloop.bench.tools_report import figures_of
from hotloop.bench.workflows import CATEGORY, generate_workflows
from hotloop.core.errors import ConfigError, RemoteError

_NUM_LESSONS = 30
_MAX_CHARS = 26_000


def measure_tools(tool_s: float) -> Row:
    async def run() -> list[float]:
        return [(await run_tools(tool_s=tool_s, is_parallel=is_parallel)).wall_s for is_parallel in (False, True)]

    before, after = asyncio.run(run())
    return Row(name=TOOLS, what=f"three tools of {tool_s:g} s, to the end of the run", before=before, after=after)


def measure_calls(num_workflows: int) -> Row:
    """Workflows seen once, asked for again with other values."""

    async def run(url: str) -> Measured:
        lessons, questions = (generate_workflows(seed, num_workflows) for seed in (1, 2))
        async with ChatClient(url) as client:
            await learn(client, lessons, AskOptions())
            return await measure(client, questions, AskOptions())

    with ChildServer() as server:
        figures = figures_of(CATEGORY, asyncio.run(run(server.url)))
    return Row(
        name=CALLS,
        what=f"{figures.num_questions} tool calls of workflows that were seen with other values",
        unit="tokens/s",
        before=figures.slow_tokens_per_s,
        after=figures.tokens_per_s,
        note=f"{figures.forced_share:.0%} forced, {figures.acceptance:.0%} of the drafted accepted",
    )


def measure_speculation(data: Path) -> Row:
    """On a simulated clock: the tools' time that a run waits for, without and with foresight."""
    figures = measure_foresight(read_runs(data), num_learn=_NUM_LESSONS)
    if not figures.num_calls:
        raise ConfigError(f"{data} has no calls behind the first {_NUM_LESSONS} runs, which are learned from")
    return Row(
        name=FORESIGHT,
        what=f"{figures.num_runs} runs after {_NUM_LESSONS} learned from; tool time waited for, simulated",
        before=figures.tool_s,
        after=figures.tool_s - figures.hidden_s,
        note=f"{figures.hidden:.0%} of the tools' time hidden, {figures.precision:.0%} of the guesses right",
    )


def measure_together(data: Path, num_jobs: int, num_agents: int) -> Row:
    """A fleet with everything on, and the loop everybody starts with."""
    jobs = list(islice(read_agent_jobs(data, max_chars=_MAX_CHARS, skip=_NUM_LESSONS), num_jobs))
    if not jobs:
        raise ConfigError(f"{data} has no transcript of fewer than {_MAX_CHARS} characters to run")
    make = _foresight_maker(data)
    whole, *_, naive = ablation(num_agents)
    runs = [
        run_fleet(jobs, patterns, make_foresight=make, latency=Latency(), max_tokens=32) for patterns in (naive, whole)
    ]
    for run in runs:
        if run.failures:
            raise RemoteError(run.failures[0])
    before, after = (run.usage.num_output / run.wall_s for run in runs)
    return Row(
        name=TOGETHER,
        what=f"{len(jobs)} agents' jobs, {num_agents} at a time, against the naive loop",
        unit="tokens/s",
        before=before,
        after=after,
        note=_describe(*runs),
    )


def _describe(naive: FleetRun, whole: FleetRun) -> str:
    return f"p95 of a job {naive.p95_s:.1f} s, then {whole.p95_s:.1f} s"


def _foresight_maker(data: Path) -> Callable[[], SpeculativeForesight]:
    def make() -> SpeculativeForesight:
        predictor = Predictor()
        for lesson in read_runs(data)[:_NUM_LESSONS]:
            predictor.learn(lesson)
        return SpeculativeForesight(predictor)

    return make


def write_workflows(path: Path, num_rounds: int = 4) -> None:
    """The generated workflows as transcripts, each round with values of its own."""
    rows = [row for seed in range(num_rounds) for row in _transcripts(generate_workflows(seed))]
    path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))


def _transcripts(questions: Sequence[ToolQuestion]) -> Iterator[dict[str, Any]]:
    """A workflow's last question has all that went before it; behind that come its call, the result and an answer."""
    for question, following in zip(questions, [*questions[1:], None], strict=True):
        if following is None or len(following.messages) <= len(question.messages):
            system, *messages = question.messages
            yield {
                "system": system["content"],
                "tools": question.tools,
                "messages": [*messages, *_closing(question.expected[0])],
            }


def _closing(expected: Mapping[str, Mapping[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    ((name, possible),) = expected.items()
    arguments = msgspec.json.encode({key: values[0] for key, values in possible.items()}).decode()
    call = {"id": "call_last", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_last", "content": '{"status": "done"}'},
        {"role": "assistant", "content": "All of it is done."},
    ]
