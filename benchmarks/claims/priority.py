"""One user who waits, beside background agents and sub-agents: what gets done on the machine, and what the user feels.

Compared are a machine kept free for the user, one shared in the classes that agents have, and one shared without.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.claims.published import PRIORITY
from benchmarks.claims.result import Figure, Result
from hotloop.bench.client import ChatClient
from hotloop.bench.report import percentile
from hotloop.bench.serving import ChildServer
from hotloop.bench.workload import AgentJob, generate_jobs
from hotloop.core.errors import RemoteError

_FLAGS = ("--disable", "drafts")
_OPTIONS: Mapping[str, Any] = {"temperature": 0, "ignore_eos": True}
_NUM_ROUNDS = 5  # of the user's turns, so that there is a p95


@dataclass(slots=True)
class Shared:
    """Tokens are everybody's, turns the user's alone."""

    wall_s: float = 0.0
    num_tokens: int = 0
    turns_s: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s if self.wall_s else 0.0


Fleet = Sequence[tuple[AgentJob, str]]  # and their classes


async def share(client: ChatClient, user: AgentJob, fleet: Fleet, salt: str = "") -> Shared:
    """The user's turns one after the other, while the fleet works without end. What was read with the same salt need
    not be recomputed; what others have read is not found."""
    await client.find_model()
    shared = Shared()
    options = {**_OPTIONS, "cache_salt": salt} if salt else _OPTIONS
    workers = [asyncio.create_task(_work(client, *each, options, shared)) for each in fleet]
    began_at = time.perf_counter()
    try:
        for turn in user.turns * _NUM_ROUNDS:
            asked_at = time.perf_counter()
            asked: dict[str, Any] = {"session_id": user.id, "priority": "interactive", "max_tokens": turn.num_output}
            answer = await client.ask(turn.messages, **asked, **options)
            shared.turns_s.append(time.perf_counter() - asked_at)
            shared.num_tokens += answer.usage.num_output
        shared.wall_s = time.perf_counter() - began_at
    finally:
        for worker in workers:
            worker.cancel()
        ended = await asyncio.gather(*workers, return_exceptions=True)
    for each in ended:
        if isinstance(each, RemoteError):
            raise each
    return shared


async def _work(client: ChatClient, job: AgentJob, priority: str, options: Mapping[str, Any], shared: Shared) -> None:
    """Counted piece by piece: the last answer is not waited for."""
    while True:
        for turn in job.turns:
            asked: dict[str, Any] = {"session_id": job.id, "priority": priority, "max_tokens": turn.num_output}
            async for delta in client.stream(turn.messages, **asked, **options):
                shared.num_tokens += bool(delta.text)


def measure_priority(num_turns: int, num_workers: int, num_sub_agents: int, num_repeats: int) -> Result:
    """Ways in turn; the first of each way reads what all of it share, and is not counted."""
    num_jobs = 1 + num_workers + num_sub_agents
    user, *jobs = generate_jobs(num_jobs=num_jobs, num_turns=num_turns, num_output=16, system_chars=3000)
    classes = ["background"] * num_workers + ["workflow"] * num_sub_agents
    ways: Mapping[str, Fleet] = {
        "alone": [],
        "classes": list(zip(jobs, classes, strict=True)),
        "one class": [(job, "interactive") for job in jobs],
    }

    async def run(url: str) -> dict[str, list[Shared]]:
        found: dict[str, list[Shared]] = {way: [] for way in ways}
        async with ChatClient(url) as client:
            for way in ways:
                await share(client, user, [], way)
            for _ in range(num_repeats):
                for way, fleet in ways.items():
                    found[way].append(await share(client, user, fleet, way))
        return found

    with ChildServer(_FLAGS) as server:
        found = asyncio.run(run(server.url))
    rates = [[each.tokens_per_s for each in found[way]] for way in ("classes", "alone")]
    figures = [Figure("throughput", "tokens/s", *rates)]
    for way, suffix in (("classes", ""), ("one class", " if all are of one class")):
        for name, rank in (("interactive turn", 0.5), ("its p95", 0.95)):
            times = [[percentile(each.turns_s, rank) for each in found[kind]] for kind in (way, "alone")]
            figures.append(Figure(f"{name}{suffix}", "s", *times))
    beside = f"{num_workers} background agents and {num_sub_agents} sub-agents"
    what = f"a user's turns of 16 tokens beside {beside}; target: at most 1.25 times as long, at p95 too"
    return Result(claim=PRIORITY, what=what, figures=figures)
