"""Do long prompts hold up short ones? Requests of 100 tokens alone and beside three prompts of 8,000, at a server.

    python -m benchmarks.short_beside_long --url http://127.0.0.1:8700 [--rounds 5] [--every 0.1] [--vocab 32000]

Each round sends three long prompts at once and, from then until the last of them has its first token, a short one every
`--every` seconds. Prompts are random token ids, new every time, so nothing is found in a cache.
"""

import asyncio
import random
import statistics
import time
from argparse import ArgumentParser, Namespace

import httpx

from benchmarks.agentic import stream_ids
from hotloop.bench.report import percentile

NUM_OUTPUT = 8


class Client:
    def __init__(self, http: httpx.AsyncClient, model: str, options: Namespace) -> None:
        self._http = http
        self._model = model
        self._options = options
        self._rng = random.Random(time.time_ns())

    async def ttft_s(self, num_tokens: int) -> float:
        """Of a prompt of that length; its answer is read to its end."""
        prompt = self._rng.choices(range(100, self._options.vocab), k=num_tokens)
        body = {"model": self._model, "prompt": prompt, "max_tokens": NUM_OUTPUT}
        (asked_at, first_at, *_), _ = await stream_ids(self._http, body)
        return first_at - asked_at

    async def longs(self) -> list[float]:
        return list(await asyncio.gather(*(self.ttft_s(self._options.long) for _ in range(3))))

    async def both(self) -> tuple[list[float], list[float]]:
        """Three long ones, and short ones as long as they are read."""
        long, shorts = asyncio.create_task(self.longs()), []
        while not long.done():
            shorts.append(asyncio.create_task(self.ttft_s(self._options.short)))
            await asyncio.sleep(self._options.every * 2 * self._rng.random())
        return await long, list(await asyncio.gather(*shorts))


async def measure(options: Namespace) -> None:
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
    async with httpx.AsyncClient(base_url=options.url, timeout=600, limits=limits) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        client = Client(http, model, options)
        await client.both()  # what steps take is learnt
        alone = [await client.ttft_s(options.short) for _ in range(40)]
        long, long_beside, beside = [], [], []
        for i in range(options.rounds):
            long += await client.longs()
            longs, shorts = await client.both()
            long_beside += longs
            beside += shorts
            short_ms = [1000 * percentile(times, 0.95) for times in (alone, beside)]
            long_s = [statistics.fmean(times) for times in (long, long_beside)]
            print(
                f"round {i + 1}: TTFT p95 of {options.short} tokens {short_ms[0]:.1f} ms alone, "
                f"{short_ms[1]:.1f} beside ({short_ms[1] / short_ms[0]:.2f} times, of {len(beside)}); "
                f"mean of {options.long} tokens "
                f"{long_s[0]:.2f} s alone, {long_s[1]:.2f} beside ({long_s[1] / long_s[0]:.2f} times)",
                flush=True,
            )


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--url", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", type=int, default=8000)
    parser.add_argument("--short", type=int, default=100)
    parser.add_argument("--every", type=float, default=0.1, help="seconds between short ones, on average")
    parser.add_argument("--vocab", type=int, default=32_000)
    try:
        asyncio.run(measure(parser.parse_args()))
    except (RuntimeError, httpx.HTTPError) as error:
        raise SystemExit(str(error) or repr(error)) from None


if __name__ == "__main__":
    main()
