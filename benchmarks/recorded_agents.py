"""Recorded coding agents at a server: what their users see, and how much of their prompts was found in its cache.

    python -m benchmarks.recorded_agents --url http://127.0.0.1:8700 --data TRACES.jsonl.gz [--sessions 16]
                                         [--requests 8] [--stagger 0.5] [--limit S] [--vocab 120000] [--salt TEXT]

A closed loop: each session asks, waits as long as its tool took (6 s at most), and asks again with a longer prompt.
Traces have prompts as names of 64-token blocks; tokens are made from the names, so every server gets the same ones.
Works with any server that takes token ids at /v1/completions.
"""

import asyncio
import gzip
import json
import random
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx

from hotloop.bench.report import percentile
from hotloop.wire.sse import EventReader

TRACE_BLOCK = 64  # tokens that a name in a trace stands for
MAX_PROMPT, MAX_GAP_S, MIN_OUTPUT, MAX_OUTPUT = 120_000, 6.0, 8, 160


def read_sessions(path: Path, num_requests: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            asks = [each for each in row["requests"] if each.get("type", "n") == "n" and each.get("hash_ids_rle")]
            asks = asks[:num_requests]
            if len(asks) == num_requests and max(each["in"] for each in asks) <= MAX_PROMPT:
                yield row, asks


async def stream_ids(
    http: httpx.AsyncClient, body: dict[str, Any], session: str = ""
) -> tuple[list[float], dict[str, Any]]:
    """When a prompt of token ids was asked, when each piece of its answer came, and what the server counted."""
    body |= {"ignore_eos": True, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    usage: dict[str, Any] = {}
    times, reader = [time.perf_counter()], EventReader()
    headers = {"X-Session-ID": session} if session else {}
    async with http.stream("POST", "/v1/completions", json=body, headers=headers) as got:
        if got.status_code != 200:
            raise RuntimeError(f"{got.status_code}: {(await got.aread())[:300]!r}")
        async for data in got.aiter_bytes():
            for event in reader.push(data):
                chunk = {} if event.data == b"[DONE]" else json.loads(event.data)
                usage = chunk.get("usage") or usage
                if chunk.get("choices"):
                    times.append(time.perf_counter())
    if len(times) == 1:
        raise RuntimeError("an answer ended without a token")
    return times, usage


@dataclass(frozen=True)
class Answered:
    turn: int
    num_prompt: int
    num_cached: int
    num_ideal: int
    """Tokens that an earlier request of the session, or the head that all share, had already brought."""
    num_output: int
    ttft_s: float
    decode_s: float


class Session:
    def __init__(self, http: httpx.AsyncClient, row: dict[str, Any], asks: list[dict[str, Any]], options: Namespace):
        self._http, self._asks, self._options = http, asks, options
        self._name = f"{row['id']}{options.salt}"
        self._num_head = (row.get("tool_tokens", 0) + row.get("system_tokens", 0)) // TRACE_BLOCK
        self._seen = set(range(1, self._num_head + 1))
        self.answers: list[Answered] = []
        self.took_s: float | None = None

    async def run(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        began_at = time.perf_counter()
        for turn, recorded in enumerate(self._asks):
            if turn:
                await asyncio.sleep(min(MAX_GAP_S, recorded.get("think_time") or 0.0))
            self.answers.append(await self._ask(turn, recorded))
        self.took_s = time.perf_counter() - began_at

    async def _ask(self, turn: int, recorded: dict[str, Any]) -> Answered:
        names = [name for start, num in recorded["hash_ids_rle"] for name in range(start, start + num)]
        num_known = next((i for i, name in enumerate(names) if name not in self._seen), len(names))
        self._seen |= set(names)
        owners = ("head" if name <= self._num_head else self._name for name in names)
        prompt = [
            token_id
            for name, owner in zip(names, owners, strict=True)
            for token_id in block_tokens(f"{owner}:{name}", self._options.vocab)
        ]
        num_output = max(MIN_OUTPUT, min(MAX_OUTPUT, recorded["out"]))
        body = {"model": self._options.model, "prompt": prompt, "max_tokens": num_output, "min_tokens": num_output}
        times, usage = await stream_ids(self._http, body, self._name)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        num_ideal = min(num_known * TRACE_BLOCK, len(prompt) - 1)
        return Answered(turn, len(prompt), cached, num_ideal, num_output, times[1] - times[0], times[-1] - times[1])


@lru_cache(maxsize=200_000)  # half a gigabyte: of the agents that are under way
def block_tokens(name: str, vocab_size: int) -> list[int]:
    return random.Random(name).choices(range(min(1000, vocab_size // 2), vocab_size), k=TRACE_BLOCK)


async def measure(options: Namespace) -> str:
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
    async with httpx.AsyncClient(base_url=options.url, timeout=1200, limits=limits) as http:
        options.model = (await http.get("/v1/models")).json()["data"][0]["id"]
        recorded = zip(range(options.sessions), read_sessions(options.data, options.requests), strict=False)
        sessions = [Session(http, row, asks, options) for _, (row, asks) in recorded]
        began_at = time.perf_counter()
        work = asyncio.gather(*(session.run(options.stagger * i) for i, session in enumerate(sessions)))
        try:
            await asyncio.wait_for(work, options.limit)
        except TimeoutError:
            print(f"stopped after {options.limit:.0f} s", flush=True)
        return told(sessions, time.perf_counter() - began_at)


def told(sessions: list[Session], wall_s: float) -> str:
    """Sessions that are not over count with the time they have had."""
    answers = [each for session in sessions for each in session.answers]
    later = [each for each in answers if each.turn]
    if not later:
        return f"no session has come back in {wall_s:.0f} s"
    num_prompt = sum(each.num_prompt for each in later)
    rates = [(each.num_output - 1) / max(each.decode_s, 1e-6) for each in answers]
    return (
        f"{len(sessions)} at once: {sum(each.took_s is not None for each in sessions)} done in {wall_s:.0f} s; "
        f"TTFT p50/p90 {percentile([each.ttft_s for each in later], 0.5):.2f}/"
        f"{percentile([each.ttft_s for each in later], 0.9):.2f} s, "
        f"{statistics.median(rates):.1f} tokens/s a user, "
        f"{sum(each.num_output for each in answers) / wall_s:.0f} in all; "
        f"mean session {statistics.fmean(each.took_s or wall_s for each in sessions):.1f} s; later turns cached "
        f"{sum(each.num_cached for each in later) / num_prompt:.3f} "
        f"({sum(each.num_ideal for each in later) / num_prompt:.3f} at best)"
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--url", required=True)
    parser.add_argument("--data", type=Path, required=True, help="recorded sessions, with names of 64-token blocks")
    parser.add_argument("--sessions", type=int, default=8, help="all at once")
    parser.add_argument("--requests", type=int, default=8, help="of each")
    parser.add_argument("--stagger", type=float, default=0.5, help="seconds between the starts of sessions")
    parser.add_argument("--limit", type=float, help="seconds after which to say what there is")
    parser.add_argument("--vocab", type=int, default=120_000)
    parser.add_argument("--salt", default="", help="another one for prompts that the server has not seen")
    try:
        print(asyncio.run(measure(parser.parse_args())))
    except (RuntimeError, httpx.HTTPError) as error:
        raise SystemExit(str(error) or repr(error)) from None


if __name__ == "__main__":
    main()
