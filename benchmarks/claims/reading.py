"""What is prefilled once for everybody, what a user sees first, and what one request and a batch take."""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.claims.bench import Bench
from benchmarks.claims.loop import fit_job, latency_s, prefilled, replay_turns, ttft_s
from benchmarks.claims.naive import SERVED, serve_naively
from benchmarks.claims.published import ALONE, FIRST, PREFIX, SERVING
from benchmarks.claims.result import Figure, Result, Unit
from hotloop.bench.client import ChatClient
from hotloop.bench.replay import ReplayedTurn
from hotloop.bench.workload import AgentJob, generate_jobs, read_jobs

_MAX_OUTPUT = 64


def measure_prefix(bench: Bench) -> list[Result]:
    """The last prompts of recorded runs, one run after the other: no two share more than what stands before the first
    turn. Ways in turn, prompt by prompt. The first of all, which reads what they share, is left out."""
    scale = bench.scale
    num_jobs = 1 + scale.num_prompts * scale.repeats
    read = read_jobs(bench.data, max_jobs=num_jobs, max_turns=100, max_output=_MAX_OUTPUT, max_chars=scale.max_chars)
    jobs = [AgentJob(job.id, job.turns[-1:]) for job in read]
    urls = bench.servers.urls([bench.flags(), bench.flags("prefix_cache")])
    turns = [[replay_turns(url, [job])[0] for url in urls] for job in jobs]
    ours, naive = zip(*turns[1:], strict=True)

    def values(way: Sequence[ReplayedTurn], of: Callable[[ReplayedTurn], float]) -> list[float]:
        parts = range(0, len(jobs) - 1, scale.num_prompts)
        return [statistics.fmean(map(of, way[i : i + scale.num_prompts])) for i in parts]

    def figure(name: str, unit: Unit, of: Callable[[ReplayedTurn], float]) -> Figure:
        return Figure(name, unit, values(ours, of), values(naive, of))

    what = f"the last prompts of {len(jobs) - 1} {bench.runs}, which share a system prompt and tools"
    return [
        Result(
            claim=PREFIX,
            what=what,
            figures=[figure("first token", "s", ttft_s), figure("prefilled", "tokens", prefilled)],
        ),
        Result(
            claim=ALONE,
            what=f"{what}, and answers as long as the recorded ones, {_MAX_OUTPUT} tokens at most",
            figures=[
                figure("whole answer", "s", latency_s),
                Figure(
                    "prefill of it without a cache", "share", values(naive, lambda turn: turn.ttft_s / turn.latency_s)
                ),
            ],
        ),
    ]


def measure_streaming(bench: Bench) -> Result:
    """Of the same answers, the whole and the first word."""
    num_turns, num_output = bench.scale.repeats + 1, bench.scale.num_output
    jobs = generate_jobs(num_jobs=1, num_turns=num_turns, num_output=num_output, system_chars=4000)
    turns = _replay(bench, jobs)[1:]
    return Result(
        claim=FIRST,
        what=f"answers of {num_output} tokens, the second turn of an agent and those after it",
        figures=[Figure("first token", "s", [turn.ttft_s for turn in turns], [turn.latency_s for turn in turns])],
    )


def measure_serving(bench: Bench) -> Result:
    """One request alone, then a batch at once; of a batch the median first token. Beside it transformers on a card."""
    count, num_in, num_out = bench.scale.batch
    num_prompt = bench.scale.prompt

    async def ask(client: ChatClient, job: AgentJob) -> tuple[float, float]:
        began_at, times = time.perf_counter(), list[float]()
        options: dict[str, Any] = {"max_tokens": num_out, "ignore_eos": True, "temperature": 0}
        async for delta in client.stream(job.turns[0].messages, **options):
            times.extend([time.perf_counter() - began_at] if delta.text else [])
        return times[0], times[-1]

    async def run(url: str) -> list[tuple[float, float, float, float]]:
        def fit(repeat: int) -> list[AgentJob]:
            sizes = [num_prompt, *[num_in] * count]
            return [fit_job(url, [size], 1000 * (repeat + 2) + i) for i, size in enumerate(sizes)]

        found = []
        async with ChatClient(url) as client:
            for repeat in range(-1, bench.scale.repeats):  # the first warms up
                alone, *jobs = await asyncio.to_thread(fit, repeat)
                first_s, last_s = await ask(client, alone)
                ends = await asyncio.gather(*(ask(client, job) for job in jobs))
                firsts, lasts = zip(*ends, strict=True)
                rate = count * num_out / max(lasts)
                found.append(((num_out - 1) / (last_s - first_s), first_s, rate, statistics.median(firsts)))
        return found[1:]

    naive = serve_naively(bench)
    rows = zip(*asyncio.run(run(bench.serve())), strict=True)
    return Result(
        claim=SERVING,
        what=f"one request at {num_prompt:,} tokens; {count} × ({num_in:,} in + {num_out} out) at once",
        figures=[
            Figure(name, "tokens/s" if "tokens" in name else "s", list(values), naive.get(name, ()))
            for name, values in zip(SERVED, rows, strict=True)
        ],
    )


def _replay(bench: Bench, jobs: Sequence[AgentJob], *disabled: str) -> list[ReplayedTurn]:
    return replay_turns(bench.serve(*disabled), jobs)
