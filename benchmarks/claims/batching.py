"""Requests of unequal length that come one by one, served in four ways; the server is the same, the gate differs.

single       one at a time
static       a batch begins when it is full and the last one is over
dynamic      a batch begins when it is full, or its first has waited long enough, and the last one is over
continuous   everybody begins on arrival, and whoever is done makes room
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.claims.published import BATCHING
from benchmarks.claims.row import Row
from benchmarks.claims.served import Served
from hotloop.bench.client import ChatClient
from hotloop.bench.serving import ChildServer

Way = Literal["single", "static", "dynamic", "continuous"]
WAYS: tuple[Way, ...] = ("single", "static", "dynamic", "continuous")

_FLAGS = ("--no-drafts",)  # drafts learn from answers: whoever comes last would be faster for it
_WINDOW_S = 0.1


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, and how many tokens it wants."""

    at_s: float
    num_output: int


def draw_arrivals(count: int, *, rate: float = 20.0, seed: int = 0) -> list[Arrival]:
    """Most are short and a few are long, as answers of agents are."""
    dice = random.Random(seed)
    at_s, arrivals = 0.0, []
    for _ in range(count):
        at_s += dice.expovariate(rate)
        arrivals.append(Arrival(at_s, dice.choice((8, 12, 16, 24, 96))))
    return arrivals


async def serve_arrivals(client: ChatClient, arrivals: Sequence[Arrival], way: Way, size: int = 8) -> Served:
    """All of them, one way; `size` is that of a full batch."""
    await client.find_model()
    run = _Run(client, way, time.perf_counter())
    queue: asyncio.Queue[Arrival] = asyncio.Queue()
    arriving = asyncio.create_task(_arrive(arrivals, queue, run.began_at))
    if way == "continuous":
        await asyncio.gather(*[asyncio.create_task(run.ask(await queue.get())) for _ in arrivals])
    else:
        num_left = len(arrivals)
        while num_left:
            batch = await _gather_batch(queue, min(1 if way == "single" else size, num_left), way)
            num_left -= len(batch)
            await asyncio.gather(*(run.ask(arrival) for arrival in batch))
    await arriving
    run.served.wall_s = time.perf_counter() - run.began_at
    return run.served


@dataclass(slots=True)
class _Run:
    client: ChatClient
    way: Way
    began_at: float
    served: Served = field(default_factory=Served)

    async def ask(self, arrival: Arrival) -> None:
        messages = [{"role": "user", "content": f"Tell me about the number {arrival.at_s:.4f}."}]
        answer = await self.client.ask(
            messages, max_tokens=arrival.num_output, ignore_eos=True, temperature=0, cache_salt=self.way
        )
        self.served.num_tokens += answer.usage.num_output
        self.served.latencies_s.append(time.perf_counter() - self.began_at - arrival.at_s)


async def _arrive(arrivals: Sequence[Arrival], queue: "asyncio.Queue[Arrival]", began_at: float) -> None:
    for arrival in arrivals:
        await asyncio.sleep(arrival.at_s - (time.perf_counter() - began_at))
        queue.put_nowait(arrival)


async def _gather_batch(queue: "asyncio.Queue[Arrival]", size: int, way: Way) -> list[Arrival]:
    batch = [await queue.get()]
    until = asyncio.get_running_loop().time() + _WINDOW_S
    while len(batch) < size:
        try:
            async with asyncio.timeout_at(until if way == "dynamic" else None):
                batch.append(await queue.get())
        except TimeoutError:
            break
    return batch


def measure_batching(count: int) -> list[Row]:
    """Continuous against each of the others."""

    async def run(url: str) -> dict[Way, Served]:
        async with ChatClient(url) as client:
            return {way: await serve_arrivals(client, draw_arrivals(count), way) for way in WAYS}

    with ChildServer(_FLAGS) as server:
        served = asyncio.run(run(server.url))
    whole = served["continuous"]
    return [
        Row(
            name=BATCHING,
            what=f"{count} requests of 8 to 96 tokens, against {_describe(way)}",
            unit="tokens/s",
            before=served[way].tokens_per_s,
            after=whole.tokens_per_s,
            note=f"mean latency {_mean(served[way]):.2f} s, then {_mean(whole):.2f} s",
        )
        for way in WAYS[:-1]
    ]


def _describe(way: Way) -> str:
    return "one at a time" if way == "single" else f"{way} batches of 8"


def _mean(served: Served) -> float:
    return sum(served.latencies_s) / max(1, len(served.latencies_s))
