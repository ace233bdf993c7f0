"""One user who waits, and a fleet that does not: how much more gets done on the machine, and what the user feels of it.

unbatched    one request at a time, in the order they come
alone        the machine is kept free for the user
classes      all at once, background agents and sub-agents in the classes that they have
half         the same where an interactive request leaves others half of the time, which is not the default
one class    all at once, and nobody before anybody
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from benchmarks.claims.bench import Bench
from benchmarks.claims.published import PRIORITY
from benchmarks.claims.result import Figure, Result
from hotloop.bench.client import ChatClient
from hotloop.bench.report import percentile
from hotloop.bench.workload import AgentJob, generate_jobs
from hotloop.core.errors import RemoteError

Gate = AbstractAsyncContextManager[Any]
"""What a request passes through; the whole of it."""

_OPTIONS: Mapping[str, Any] = {"temperature": 0, "ignore_eos": True}
_HALF = ("--interactive-share", "0.5")
_NUM_ROUNDS = {"alone": 5, "classes": 5}  # of the user's turns, so that there is a p95; of the others there is none

Fleet = Sequence[tuple[AgentJob, str]]  # and their classes


@dataclass(slots=True)
class Shared:
    """Tokens are everybody's, turns the user's alone."""

    wall_s: float = 0.0
    num_tokens: int = 0
    turns_s: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s if self.wall_s else 0.0


async def share(
    client: ChatClient, user: AgentJob, fleet: Fleet, salt: str = "", *, gate: Gate | None = None, num_rounds: int = 1
) -> Shared:
    """The user's turns one after the other, while the fleet works without end. What was read with the same salt need
    not be recomputed; what others have read is not found."""
    await client.find_model()
    shared = Shared()
    options = {**_OPTIONS, "cache_salt": salt} if salt else _OPTIONS
    gate = gate or nullcontext()
    workers = [asyncio.create_task(_work(client, *each, options, shared, gate)) for each in fleet]
    began_at = time.perf_counter()
    try:
        for turn in user.turns * num_rounds:
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
    scale = bench.scale
    classes = ["background"] * scale.num_workers + ["workflow"] * scale.num_sub_agents
    kind = {"num_turns": scale.num_user_turns, "num_output": 16, "system_chars": 3000}
    user, *jobs = generate_jobs(num_jobs=len(classes) + 1, **kind)
    ways: Mapping[str, Fleet] = {
        "unbatched": [(job, "interactive") for job in jobs],
        "alone": [],
        "classes": list(zip(jobs, classes, strict=True)),
        "half": list(zip(jobs, classes, strict=True)),
        "one class": [(job, "interactive") for job in jobs],
    }

    async def run(url: str, half_url: str) -> dict[str, list[Shared]]:
        found: dict[str, list[Shared]] = {way: [] for way in ways}
        async with ChatClient(url) as default, ChatClient(half_url) as half:
            clients = {way: half if way == "half" else default for way in ways}
            for way, client in clients.items():
                await share(client, user, [], way)
            for _ in range(bench.scale.repeats):
                for way, fleet in ways.items():
                    gate = asyncio.Lock() if way == "unbatched" else None  # whose queue is first in, first out
                    num_rounds = _NUM_ROUNDS.get(way, 1)
                    found[way].append(await share(clients[way], user, fleet, way, gate=gate, num_rounds=num_rounds))
        return found

    found = asyncio.run(run(*bench.servers.urls([bench.flags(), (*bench.flags(), *_HALF)])))
    beside = f"{scale.num_workers} background agents and {scale.num_sub_agents} sub-agents"
    return result_of(found, f"a user's turns of 16 tokens beside {beside}")


def result_of(found: Mapping[str, Sequence[Shared]], what: str) -> Result:
    turns = {way: [percentile(each.turns_s, 0.5) for each in shared] for way, shared in found.items()}
    p95s = {way: [percentile(each.turns_s, 0.95) for each in shared] for way, shared in found.items()}
    rates = {way: [each.tokens_per_s for each in shared] for way, shared in found.items()}
    return Result(
        claim=PRIORITY,
        what=f"{what}; target: the user's turn at most 1.25 times as long",
        figures=[
            Figure("throughput", "tokens/s", rates["classes"], rates["unbatched"]),
            Figure("interactive turn", "s", turns["classes"], turns["unbatched"]),
            Figure("throughput, half the time for others", "tokens/s", rates["half"], rates["unbatched"]),
            Figure("interactive turn, half the time for others", "s", turns["half"], turns["unbatched"]),
            Figure("throughput beside the user alone", "tokens/s", rates["classes"], rates["alone"]),
            Figure("interactive turn beside the user alone", "s", turns["classes"], turns["alone"]),
            Figure("its p95", "s", p95s["classes"], p95s["alone"]),
            Figure("that turn if all are of one class", "s", turns["one class"], turns["alone"]),
        ],
    )
