"""A long beginning that all agents share, and answers word by word: what a user waits for before anything shows."""

from pathlib import Path

from benchmarks.claims.published import PREFIX, STREAM
from benchmarks.claims.row import Row
from benchmarks.serving import replay_child
from hotloop.bench.workload import AgentJob, generate_jobs, read_jobs

_NO_DRAFTS = "--no-drafts"
_NUM_OUTPUT = 8
_MAX_CHARS = 26_000


def measure_prefix(data: Path, num_jobs: int) -> list[Row]:
    """The last prompts of recorded runs, one run after the other: no two share more than what stands before the first
    turn. The first of them is read whole, with and without."""
    read = read_jobs(data, max_jobs=num_jobs, max_turns=100, max_output=_NUM_OUTPUT, max_chars=_MAX_CHARS)
    jobs = [AgentJob(job.id, job.turns[-1:]) for job in read]
    without, with_ = (
        replay_child("", flags, jobs, num_agents=1) for flags in ((_NO_DRAFTS, "--no-prefix-cache"), (_NO_DRAFTS,))
    )
    saved = 1 - with_.num_prefilled_tokens / without.num_prefilled_tokens
    what = f"the last prompts of {len(jobs)} runs, which share a system prompt and tools"
    return [
        Row(
            name=PREFIX,
            what=f"{what}; prompt tokens computed",
            unit="tokens",
            before=without.num_prefilled_tokens,
            after=with_.num_prefilled_tokens,
            note=f"{saved:.0%} of the prefill saved",
        ),
        Row(name=PREFIX, what=f"{what}; first token, median", before=without.ttft_p50_s, after=with_.ttft_p50_s),
    ]


def measure_streaming(num_jobs: int, num_output: int) -> Row:
    """Of the same answers, the whole and the first word."""
    jobs = generate_jobs(num_jobs=num_jobs, num_turns=2, num_output=num_output, system_chars=4000)
    summary = replay_child("", (_NO_DRAFTS,), jobs, num_agents=1)
    what = f"answers of {num_output} tokens; the whole, and the first word"
    return Row(name=STREAM, what=what, before=summary.step_p50_s, after=summary.ttft_p50_s)
