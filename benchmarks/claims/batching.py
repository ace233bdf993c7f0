"""Requests of unequal length that come one by one, served in four ways; the engine is the same, the gate differs.

unbatched    one at a time
static       a batch begins when it is full and the last one is over
dynamic      a batch begins when it is full, or its first has waited 50 ms (or 10, or 500), and the last one is over
continuous   everybody begins on arrival, and whoever is done makes room
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from benchmarks.claims.bench import Bench
from benchmarks.claims.published import CONTINUOUS, DYNAMIC, STATIC
from benchmarks.claims.result import Figure, Result
from hotloop.bench.client import ChatClient

Way = Literal["unbatched", "static", "dynamic", "dynamic, 10 ms", "dynamic, 500 ms", "continuous"]
WAYS: tuple[Way, ...] = ("unbatched", "static", "dynamic", "dynamic, 10 ms", "dynamic, 500 ms", "continuous")
_CLAIMS: Mapping[Way, str] = {"static": STATIC, "dynamic": DYNAMIC, "continuous": CONTINUOUS}

_WAITS_S: Mapping[Way, float] = {"dynamic": 0.05, "dynamic, 10 ms": 0.01, "dynamic, 500 ms": 0.5}


class Arrival(NamedTuple):
    """A request: when it comes, and how many tokens it wants."""

    at_s: float
    num_output: int


class Served(NamedTuple):
    """Output tokens a second until the last of them, and the mean time from arrival to the last token."""

    tokens_per_s: float
    latency_s: float


Ask = Callable[[Arrival], Awaitable[None]]
"""Returns when all tokens of the request are there."""


def draw_arrivals(count: int, *, rate: float, outputs: Sequence[int], seed: int = 0) -> list[Arrival]:
    """Most are short and a few are long, as answers of agents are."""
    rng = random.Random(seed)
    at_s, arrivals = 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate)
        arrivals.append(Arrival(at_s, rng.choice(outputs)))
    return arrivals


async def serve_arrivals(ask: Ask, arrivals: Sequence[Arrival], way: Way, size: int = 8) -> Served:
    """All of them, one way; `size` is that of a full batch."""
    began_at = time.perf_counter()
    latencies_s: list[float] = []

    async def serve(arrival: Arrival) -> None:
        await ask(arrival)
        latencies_s.append(time.perf_counter() - began_at - arrival.at_s)

    queue: asyncio.Queue[Arrival] = asyncio.Queue()
    arriving = asyncio.create_task(_arrive(arrivals, queue, began_at))
    if way == "continuous":
        await asyncio.gather(*[asyncio.create_task(serve(await queue.get())) for _ in arrivals])
    else:
        num_left = len(arrivals)
        while num_left:
            batch = await _gather_batch(queue, min(1 if way == "unbatched" else size, num_left), way)
            num_left -= len(batch)
            await asyncio.gather(*map(serve, batch))
    await arriving
    num_tokens = sum(arrival.num_output for arrival in arrivals)
    return Served(num_tokens / (time.perf_counter() - began_at), sum(latencies_s) / len(latencies_s))


async def _arrive(arrivals: Sequence[Arrival], queue: "asyncio.Queue[Arrival]", began_at: float) -> None:
    for arrival in arrivals:
        await asyncio.sleep(arrival.at_s - (time.perf_counter() - began_at))
        queue.put_nowait(arrival)


async def _gather_batch(queue: "asyncio.Queue[Arrival]", size: int, way: Way) -> list[Arrival]:
    batch = [await queue.get()]
    until = asyncio.get_running_loop().time() + wait_s if (wait_s := _WAITS_S.get(way)) else None
    while len(batch) < size:
        try:
            async with asyncio.timeout_at(until):
                batch.append(await queue.get())
        except TimeoutError:
            break
    return batch


def results_of(served: Mapping[Way, Sequence[Served]], what: str) -> list[Result]:
    """One for each way against unbatched; of each way all repeats."""
    return [
        Result(
            claim=claim,
            what=what,
            figures=[
                figure
                for each in served
                if each.startswith(way)
                for figure in (
                    Figure(f"throughput{each.removeprefix(way)}", "tokens/s", *_columns(served, each, "tokens_per_s")),
                    Figure(f"mean latency{each.removeprefix(way)}", "s", *_columns(served, each, "latency_s")),
                )
            ],
        )
        for way, claim in _CLAIMS.items()
    ]


def _columns(served: Mapping[Way, Sequence[Served]], way: Way, name: str) -> tuple[list[float], list[float]]:
    ours, baseline = ([getattr(each, name) for each in served[which]] for which in (way, "unbatched"))
    return ours, baseline


def measure_batching(bench: Bench) -> list[Result]:
    scale = bench.scale

    async def run(url: str) -> dict[Way, list[Served]]:
        served: dict[Way, list[Served]] = {way: [] for way in WAYS}
        async with ChatClient(url) as client:
            await client.find_model()
            arrivals = draw_arrivals(scale.num_requests, rate=scale.rate, outputs=scale.outputs)
            for repeat in range(scale.repeats):
                for way in WAYS:
                    served[way].append(await serve_arrivals(asker(client, f"{way} {repeat}"), arrivals, way))
        return served

    served = asyncio.run(run(bench.serve()))
    tokens = f"{min(scale.outputs)} to {max(scale.outputs)} tokens"
    return results_of(served, f"{scale.num_requests} requests of {tokens}, {scale.rate:g} a second; batches of 8")


def asker(client: ChatClient, salt: str) -> Ask:
    async def ask(arrival: Arrival) -> None:
        messages = [{"role": "user", "content": f"Tell me about the number {arrival.at_s:.4f}."}]
        await client.ask(messages, max_tokens=arrival.num_output, ignore_eos=True, temperature=0, cache_salt=salt)

    return ask
