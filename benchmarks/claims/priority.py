"""One user who waits, and a fleet that does not: how much more gets done on the machine, and what the user feels of it.

Compared are a machine kept free for the user, one shared in classes, and one shared without.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.claims.published import PRIORITY
from benchmarks.claims.row import Row
from benchmarks.claims.served import Served
from hotloop.bench.client import ChatClient
from hotloop.bench.serving import ChildServer
from hotloop.bench.workload import AgentJob, generate_jobs
from hotloop.core.errors import RemoteError

_FLAGS = ("--no-drafts",)
_OPTIONS: Mapping[str, Any] = {"temperature": 0, "ignore_eos": True}


async def share(client: ChatClient, user: AgentJob, fleet: Sequence[AgentJob], priority: str, way: str = "") -> Served:
    """The user's turns one after the other, while the fleet, in this class, works without end. What was read the same
    way need not be recomputed; what others have read is not found. Tokens are everybody's, latencies the user's alone.
    """
    await client.find_model()
    shared = Served()
    options = {**_OPTIONS, "cache_salt": way} if way else _OPTIONS
    workers = [asyncio.create_task(_work(client, job, priority, options, shared)) for job in fleet]
    began_at = time.perf_counter()
    try:
        for turn in user.turns:
            asked_at = time.perf_counter()
            asked: dict[str, Any] = {"session_id": user.id, "priority": "interactive", "max_tokens": turn.num_output}
            answer = await client.ask(turn.messages, **asked, **options)
            shared.latencies_s.append(time.perf_counter() - asked_at)
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


async def _work(client: ChatClient, job: AgentJob, priority: str, options: Mapping[str, Any], shared: Served) -> None:
    """Counted piece by piece: the last answer is not waited for."""
    while True:
        for turn in job.turns:
            asked: dict[str, Any] = {"session_id": job.id, "priority": priority, "max_tokens": turn.num_output}
            async for delta in client.stream(turn.messages, **asked, **options):
                shared.num_tokens += bool(delta.text)


def measure_priority(num_turns: int, num_workers: int) -> Row:
    user, *fleet = generate_jobs(num_jobs=num_workers + 1, num_turns=num_turns, num_output=16, system_chars=3000)

    async def run(url: str) -> list[Served]:
        async with ChatClient(url) as client:
            ways: Sequence[tuple[Sequence[AgentJob], str]] = (
                ((), "alone"),
                (fleet, "background"),
                (fleet, "interactive"),
            )
            seen = []
            for jobs, name in ways:
                await share(client, user, [], name, name)  # reads what all of them share
                seen.append(await share(client, user, jobs, name, name))
            return seen

    with ChildServer(_FLAGS) as server:
        alone, in_classes, in_one = asyncio.run(run(server.url))
    return Row(
        name=PRIORITY,
        what=f"a user's turns of 16 tokens, alone and with {num_workers} background agents",
        unit="tokens/s",
        before=alone.tokens_per_s,
        after=in_classes.tokens_per_s,
        note=(
            f"the user's median turn {alone.latency_s:.2f} s, then {in_classes.latency_s:.2f} s; "
            f"{in_one.latency_s:.2f} s if all are of one class"
        ),
    )
