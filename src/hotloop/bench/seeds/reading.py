"""A long beginning that all agents share, and answers word by word: what a user waits for before anything shows."""

from hotloop.bench.seeds.claims import PREFIX, STREAM
from hotloop.bench.seeds.row import Row
from hotloop.bench.serving import replay_child
from hotloop.bench.workload import generate_jobs

_NO_DRAFTS = "--no-drafts"


def measure_prefix(num_jobs: int, system_chars: int) -> Row:
    """The median first token of agents that come one after the other."""
    jobs = generate_jobs(num_jobs=num_jobs, num_turns=2, num_output=4, system_chars=system_chars)
    without, with_ = (
        replay_child("", flags, jobs, num_agents=1) for flags in ((_NO_DRAFTS, "--no-prefix-cache"), (_NO_DRAFTS,))
    )
    return Row(
        seed=PREFIX,
        what=f"{num_jobs} agents with one system prompt of {system_chars:,} characters; first token, median",
        before=without.ttft_p50_s,
        after=with_.ttft_p50_s,
        note=f"{without.num_read_tokens:,} prompt tokens computed, then {with_.num_read_tokens:,}",
    )


def measure_streaming(num_jobs: int, num_output: int) -> Row:
    """Of the same answers, the whole and the first word."""
    jobs = generate_jobs(num_jobs=num_jobs, num_turns=2, num_output=num_output, system_chars=4000)
    summary = replay_child("", (_NO_DRAFTS,), jobs, num_agents=1)
    what = f"answers of {num_output} tokens; the whole, and the first word"
    return Row(seed=STREAM, what=what, before=summary.step_p50_s, after=summary.ttft_p50_s)
