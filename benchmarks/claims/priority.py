"""One user who waits, and a fleet that does not: how much more gets done on the machine, and what the user feels of it.

unbatched    one request at a time, in the order they come
alone        the machine is kept free for the user
classes      all at once, the user before the fleet
one class    all at once, and nobody before anybody
"""

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from benchmarks.claims.bench import Bench
from benchmarks.claims.published import PRIORITY
from benchmarks.claims.result import Figure, Result
from hotloop.bench.client import ChatClient
from hotloop.bench.workload import AgentJob, generate_jobs
from hotloop.core.errors import RemoteError

Gate = AbstractAsyncContextManager[Any]
"""What a request passes through; the whole of it."""

_OPTIONS: Mapping[str, Any] = {"temperature": 0, "ignore_eos": True}


@dataclass(slots=True)
class Shared:
    """Tokens are everybody's, turns the user's alone."""

    wall_s: float = 0.0
    num_tokens: int = 0
    turns_s: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s if self.wall_s else 0.0

    @property
    def turn_s(self) -> float:
        return statistics.median(self.turns_s)


async def share(
    client: ChatClient,
    user: AgentJob,
    fleet: Sequence[AgentJob],
    priority: str,
    salt: str = "",
    *,
    gate: Gate | None = None,
) -> Shared:
    """The user's turns one after the other, while the fleet, in this class, works without end. What was read with the
    same salt need not be recomputed; what others have read is not found."""
    await client.find_model()
    shared = Shared()
    options = {**_OPTIONS, "cache_salt": salt} if salt else _OPTIONS
    gate = gate or nullcontext()
    workers = [asyncio.create_task(_work(client, job, priority, options, shared, gate)) for job in fleet]
    began_at = time.perf_counter()
    try:
        for turn in user.turns:
            asked_at = time.perf_counter()
            asked: dict[str, Any] = {"session_id": user.id, "priority": "interactive", "max_tokens": turn.num_output}
            async with gate:
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


async def _work(
    client: ChatClient, job: AgentJob, priority: str, options: Mapping[str, Any], shared: Shared, gate: Gate
) -> None:
    """Counted piece by piece: the last answer is not waited for."""
    while True:
        for turn in job.turns:
            asked: dict[str, Any] = {"session_id": job.id, "priority": priority, "max_tokens": turn.num_output}
            async with gate:
                async for delta in client.stream(turn.messages, **asked, **options):
                    shared.num_tokens += bool(delta.text)


def measure_priority(bench: Bench) -> Result:
    """Ways in turn; the first of each way reads what all of it share, and is not counted."""
    num_turns, num_workers = bench.scale.num_user_turns, bench.scale.num_workers
    user, *fleet = generate_jobs(num_jobs=num_workers + 1, num_turns=num_turns, num_output=16, system_chars=3000)
    ways = {
        "unbatched": (fleet, "interactive"),
        "alone": ((), "background"),
        "classes": (fleet, "background"),
        "one class": (fleet, "interactive"),
    }

    async def run(url: str) -> dict[str, list[Shared]]:
        found: dict[str, list[Shared]] = {way: [] for way in ways}
        async with ChatClient(url) as client:
            for way, (_, priority) in ways.items():
                await share(client, user, [], priority, way)
            for _ in range(bench.scale.repeats):
                for way, (jobs, priority) in ways.items():
                    gate = asyncio.Lock() if way == "unbatched" else None  # whose queue is first in, first out
                    found[way].append(await share(client, user, jobs, priority, way, gate=gate))
        return found

    with bench.serve() as server:
        found = asyncio.run(run(server.url))
    return result_of(found, f"a user's turns of 16 tokens beside {num_workers} background agents")


def result_of(found: Mapping[str, Sequence[Shared]], what: str) -> Result:
    turns = {way: [each.turn_s for each in shared] for way, shared in found.items()}
    rates = {way: [each.tokens_per_s for each in shared] for way, shared in found.items()}
    return Result(
        claim=PRIORITY,
        what=f"{what}; target: the user's turn at most 1.25 times as long",
        figures=[
            Figure("throughput", "tokens/s", rates["classes"], rates["unbatched"]),
            Figure("interactive turn", "s", turns["classes"], turns["unbatched"]),
            Figure("throughput beside the user alone", "tokens/s", rates["classes"], rates["alone"]),
            Figure("interactive turn beside the user alone", "s", turns["classes"], turns["alone"]),
            Figure("that turn if all are of one class", "s", turns["one class"], turns["alone"]),
        ],
    )
