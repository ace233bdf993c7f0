"""What is prefilled once for everybody, and what a user sees first."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.claims.published import FIRST, PREFIX
from benchmarks.claims.result import Figure, Result
from benchmarks.serving import replay_child
from hotloop.bench.replay import Progress, ReplayedTurn
from hotloop.bench.workload import AgentJob, generate_jobs, read_jobs

_FLAGS = ("--disable", "drafts")
_NUM_OUTPUT = 8
_MAX_CHARS = 26_000


def measure_prefix(data: Path, runs: str, num_prompts: int, num_repeats: int) -> Result:
    """The last prompts of recorded runs, one run after the other: no two share more than what stands before the first
    turn. The first of all, which reads that, is left out."""
    num_jobs = 1 + num_prompts * num_repeats
    read = read_jobs(data, max_jobs=num_jobs, max_turns=100, max_output=_NUM_OUTPUT, max_chars=_MAX_CHARS)
    jobs = [AgentJob(job.id, job.turns[-1:]) for job in read]
    without, with_ = (_replay((*_FLAGS, *more), jobs)[1:] for more in (("--disable", "prefix_cache"), ()))
    parts = [slice(begin, begin + num_prompts) for begin in range(0, len(without), num_prompts)]
    times, tokens = (
        [[of(steps[part]) for part in parts] for steps in (with_, without)] for of in (_first_s, _prefilled)
    )
    return Result(
        claim=PREFIX,
        what=f"the last prompts of {len(without)} {runs}, which share a system prompt and tools",
        figures=[Figure("first token", "s", *times), Figure("prefilled", "tokens", *tokens)],
    )


def measure_streaming(num_repeats: int, num_output: int) -> Result:
    """Of the same answers, the whole and the first word."""
    jobs = generate_jobs(num_jobs=1, num_turns=num_repeats + 1, num_output=num_output, system_chars=4000)
    steps = _replay(_FLAGS, jobs)[1:]
    return Result(
        claim=FIRST,
        what=f"answers of {num_output} tokens, the second turn of an agent and those after it",
        figures=[Figure("first token", "s", [step.ttft_s for step in steps], [step.latency_s for step in steps])],
    )


def _first_s(steps: Sequence[ReplayedTurn]) -> float:
    return statistics.median(step.ttft_s for step in steps)


def _prefilled(steps: Sequence[ReplayedTurn]) -> float:
    return sum(step.usage.num_prompt - step.usage.num_cached for step in steps)


def _replay(flags: Sequence[str], jobs: Sequence[AgentJob]) -> list[ReplayedTurn]:
    steps: list[ReplayedTurn] = []

    def watch(progress: Progress) -> None:
        if progress.step:
            steps.append(progress.step)

    replay_child("", flags, jobs, num_agents=1, watch=watch)
    return steps
