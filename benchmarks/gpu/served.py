"""Many agents at once at a server on a card: the figures of docs/figures/agents-gpu.json, one server after the other.

    python -m benchmarks.gpu.served --url http://127.0.0.1:8700 --name hotloop --out run.json --coding A --service B ...
    python -m benchmarks.gpu.served --url http://127.0.0.1:8800 --name vLLM --out run.json --coding A --service B ...

Prompts are token ids, and as long as recorded ones: sessions are a closed loop, in which each asks, waits as long as
its tool took, and asks again with a longer prompt. What is recorded names blocks of 64 tokens; those of tools and
system prompt are the same in all sessions, all others a session's own and new in each run. The client is several
processes, so that no server waits for it. `--out` has all servers of one machine; what is there already is kept. Put in
that place, `python -m benchmarks.claims.page` writes the tables and the picture of README and docs from it.
"""

import asyncio
import gzip
import json
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
from cyclopts.types import PositiveFloat, PositiveInt

from benchmarks.agentic import TRACE_BLOCK, block_tokens, stream_ids
from benchmarks.claims.result import rounded, taken_here
from benchmarks.command import main
from hotloop.bench.report import percentile
from hotloop.cli.settings import pick_names
from hotloop.core.errors import ConfigError, RemoteError

_NUM_PROCESSES = 8
_MAX_GAP_S, _MAX_OUTPUT, _MAX_PROMPT = 6.0, 160, 120_000
_NUM_TURNS = {"service": 8, "coding": 5}
PARTS = ("alone", "batch", "prompts", "short", *_NUM_TURNS)
_START_GAP_S = {"service": 0.05, "coding": 0.5}  # between the beginnings of two sessions

_WATCH_S = 0.5

Times = list[float]
"""When a request was asked and each piece of its answer came, by one clock for all processes."""


@dataclass(frozen=True, slots=True)
class Play:
    """A session as it is played: the blocks of its prompts, how long each answer is, and what comes before it."""

    name: str
    begins_at: float
    num_head: int
    turns: tuple[tuple[float, tuple[tuple[int, int], ...], int], ...]

    def names(self, turn: int) -> list[str]:
        """Of the blocks of that turn's prompt."""
        blocks = chain.from_iterable(range(first, first + count) for first, count in self.turns[turn][1])
        return [f"{'head' if block <= self.num_head else self.name}:{block}" for block in blocks]

    def found(self, turn: int) -> int:
        """So many tokens of a later turn can be in a cache: those that the turn before it begins with, too."""
        own, before = self.names(turn), self.names(turn - 1)
        pairs = enumerate(zip(own, before, strict=False))
        return TRACE_BLOCK * next((i for i, (one, other) in pairs if one != other), min(len(own), len(before)))


@dataclass(frozen=True, slots=True)
class Answer:
    times: Times
    num_prompt: int
    num_cached: int


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    model: str
    vocab: int


async def _ask(http: httpx.AsyncClient, server: Server, prompt: list[int], num: int, session: str = "") -> Answer:
    body = {"model": server.model, "prompt": prompt, "max_tokens": num, "min_tokens": num}
    times, usage = await stream_ids(http, body, session)
    return Answer(times, len(prompt), (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


async def _play(http: httpx.AsyncClient, server: Server, play: Play) -> list[Answer]:
    asked: list[Answer] = []
    await asyncio.sleep(play.begins_at - time.perf_counter())
    for turn, (gap_s, _, num) in enumerate(play.turns):
        prompt = [token_id for name in play.names(turn) for token_id in block_tokens(name, server.vocab)]
        await asyncio.sleep(gap_s if asked else 0)
        asked.append(await _ask(http, server, prompt, num, play.name))
    return asked


async def _prompts(http: httpx.AsyncClient, server: Server, at: float, sizes: Sequence[int], num: int) -> list[Times]:
    """New ones, all at once."""
    rng = random.Random(time.perf_counter_ns())
    prompts = [rng.choices(range(1000, server.vocab), k=size) for size in sizes]
    await asyncio.sleep(at - time.perf_counter())
    answers = await asyncio.gather(*(_ask(http, server, prompt, num) for prompt in prompts))
    return [answer.times for answer in answers]


def _in_process(server: Server, act: Callable[..., Awaitable[Any]], parts: Sequence[Any], limit_s: float) -> list[Any]:
    """What came of each part, or nothing of those that took too long."""

    async def run() -> list[Any]:
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
        async with httpx.AsyncClient(base_url=server.url, timeout=1200, limits=limits) as http:
            await _ask(http, server, [server.vocab - 1] * 8, 1)  # what only a first request takes: connecting, imports
            tasks = [asyncio.ensure_future(act(http, server, *part)) for part in parts]
            await asyncio.wait(tasks, timeout=limit_s)
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [each for each in done if isinstance(each, Exception)]
        if failed:
            raise RuntimeError(str(failed[0]) or repr(failed[0]))
        return [None if isinstance(each, asyncio.CancelledError) else each for each in done]

    return asyncio.run(run())


def _spread(server: Server, act: Callable[..., Awaitable[Any]], parts: Sequence[Any], limit_s: float) -> list[Any]:
    """The same, over all processes."""
    with ProcessPoolExecutor(_NUM_PROCESSES, get_context("fork")) as pool:
        own = [parts[i::_NUM_PROCESSES] for i in range(_NUM_PROCESSES)]
        found = pool.map(_in_process, *zip(*((server, act, each, limit_s) for each in own if each), strict=True))
        return list(chain.from_iterable(found))


def plays(path: Path, kind: str, num: int, begins_at: float) -> list[Play]:
    """The first so many sessions whose first turns are short enough."""
    found: list[Play] = []
    num_turns = _NUM_TURNS[kind]
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            asks = [each for each in row["requests"] if each.get("type", "n") == "n" and each.get("hash_ids_rle")]
            asks = asks[:num_turns]
            if len(asks) < num_turns or max(each["in"] for each in asks) > _MAX_PROMPT:
                continue
            turns = tuple(
                (
                    min(_MAX_GAP_S, each.get("think_time") or 0.0),
                    tuple((first, count) for first, count in each["hash_ids_rle"]),
                    max(8, min(_MAX_OUTPUT, each["out"])),
                )
                for each in asks
            )
            num_head = (row.get("tool_tokens", 0) + row.get("system_tokens", 0)) // TRACE_BLOCK
            at = begins_at + _START_GAP_S[kind] * len(found)
            found.append(Play(f"{row['id']}-{begins_at}", at, num_head, turns))
            if len(found) == num:
                return found
    raise ConfigError(f"{path} has {len(found)} sessions of {num_turns} turns, not {num}")


def sessions(server: Server, path: Path, kind: str, num: int, limit_s: float) -> dict[str, Any]:
    """`ends_s` is when each session was done, and `seconds` when the last was, or when they were stopped."""
    began_at = time.perf_counter() + 2
    todo = plays(path, kind, num, began_at)
    with _watched() as watched:
        idle_s = began_at - time.perf_counter()
        found = _spread(server, _play, [(each,) for each in todo], limit_s)
    order = [play for i in range(_NUM_PROCESSES) for play in todo[i::_NUM_PROCESSES]]
    done = [(play, asked) for play, asked in zip(order, found, strict=True) if asked]
    ends_s = sorted(asked[-1].times[-1] - began_at for _, asked in done)
    told = {"done": len(done), "seconds": ends_s[-1] if len(done) == num else limit_s, "ends_s": ends_s}
    if not done:
        return told
    later = [answer.times[1] - answer.times[0] for _, asked in done for answer in asked[1:]]
    answers = [each for play, asked in done for each in zip(play.turns, asked, strict=True)]
    rates = [(num - 1) / (a.times[-1] - a.times[1]) for (_, _, num), a in answers if len(a.times) > 2]
    num_prompt = sum(answer.num_prompt for _, asked in done for answer in asked[1:])
    return told | {
        "mean_session_s": statistics.fmean(asked[-1].times[-1] - play.begins_at for play, asked in done),
        "ttft_p50_s": percentile(later, 0.5),
        "ttft_p90_s": percentile(later, 0.9),
        "tokens_s_user": statistics.median(rates),
        "cached": sum(answer.num_cached for _, asked in done for answer in asked[1:]) / num_prompt,
        "cacheable": sum(play.found(turn) for play, _ in done for turn in range(1, len(play.turns))) / num_prompt,
        **busy_share(watched, idle_s),
    }


def busy_share(watched: Sequence[float], idle_s: float) -> dict[str, float]:
    """From when the first session began; nothing without a card."""
    busy = watched[max(0, round(idle_s / _WATCH_S)) :]
    return {"busy": statistics.fmean(busy) / 100} if busy else {}


@contextmanager
def _watched() -> Iterator[list[float]]:
    """Afterwards, what share of each half second the card had something to do, in percent; nothing without a card."""
    busy: list[float] = []
    if not shutil.which("nvidia-smi"):
        yield busy
        return
    ask = [
        "nvidia-smi",
        "--query-gpu=utilization.gpu",
        "--format=csv,noheader,nounits",
        f"--loop-ms={1000 * _WATCH_S:.0f}",
    ]
    with subprocess.Popen(ask, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield busy
        finally:
            process.terminate()
            lines = process.communicate()[0].split()
            busy.extend(float(line) for line in lines if line.isdecimal())


def at_once(server: Server, sizes: Sequence[int], num_output: int, repeats: int) -> list[list[Times]]:
    """Each repeat's requests, asked at the same moment by all processes."""
    found = []
    for _ in range(repeats):
        at = time.perf_counter() + 1.5
        own = [(at, each, num_output) for each in (sizes[i::_NUM_PROCESSES] for i in range(_NUM_PROCESSES)) if each]
        found.append([times for part in _spread(server, _prompts, own, 600) for times in part])
    return found


def alone(server: Server, size: int) -> dict[str, Any]:
    found = at_once(server, [size], 129, 3)
    firsts_s = [times[1] - times[0] for [times] in found]
    return {"output_tokens_s": [128 / (times[-1] - times[1]) for [times] in found], "ttft_s": firsts_s}


def batches(server: Server, num: int, repeats: int) -> dict[str, Any]:
    found = at_once(server, [1024] * num, 128, repeats)
    rates = [num * 128 / (max(each[-1] for each in asked) - min(each[0] for each in asked)) for asked in found]
    firsts_s = [statistics.median(each[1] - each[0] for each in asked) for asked in found]
    return {"output_tokens_s": rates, "ttft_s": firsts_s}


def long_prompts(server: Server) -> dict[str, Any]:
    return {
        "mean_ttft_s": [statistics.fmean(each[1] - each[0] for each in a) for a in at_once(server, [8000] * 3, 8, 6)]
    }


def short_beside_long(server: Server) -> dict[str, Any]:
    """100 tokens one after the other, then every 0.1 s on average beside three prompts of 8,000."""
    rng = random.Random(time.perf_counter_ns())

    def new(size: int) -> list[int]:
        return rng.choices(range(1000, server.vocab), k=size)

    async def measure(http: httpx.AsyncClient, server: Server) -> dict[str, Any]:
        async def soon(prompt: list[int]) -> Times:
            return (await asyncio.wait_for(_ask(http, server, prompt, 8), 600)).times

        alone = [await soon(new(100)) for _ in range(60)]
        beside: list[asyncio.Task[Times]] = []
        longs: list[Times] = []
        for _ in range(6):
            long = asyncio.gather(*map(soon, [new(8000) for _ in range(3)]))
            while not long.done():
                beside.append(asyncio.create_task(soon(new(100))))
                await asyncio.sleep(rng.uniform(0, 0.2))
            longs += await long
        short = [await each for each in beside]
        first = {"alone": alone, "beside": short, "long": longs}
        waited = {name: [times[1] - times[0] for times in asked] for name, asked in first.items()}
        return {
            "alone_p50_s": percentile(waited["alone"], 0.5),
            "alone_p95_s": percentile(waited["alone"], 0.95),
            "beside_p95_s": percentile(waited["beside"], 0.95),
            "long_beside_s": statistics.fmean(waited["long"]),
        }

    return dict(_in_process(server, measure, [()], 600)[0])


def rows_of(
    server: Server, only: Sequence[str], paths: dict[str, Path | None], nums: dict[str, list[int]], limit_s: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each as soon as it is measured."""
    for size in (2048, 32768) if "alone" in only else ():
        yield f"alone at {size:,}", alone(server, size)
    for num, repeats in ((64, 4), (256, 2)) if "batch" in only else ():
        yield f"{num} x (1,024 + 128)", batches(server, num, repeats)
    if "prompts" in only:
        yield "three prompts of 8,000", long_prompts(server)
    if "short" in only:
        yield "100 tokens beside them", short_beside_long(server)
    for kind, path in paths.items():
        for num in nums[kind] if path and kind in only else ():
            yield f"{num} {kind} agents", sessions(server, path, kind, num, limit_s)  # type: ignore[arg-type]


def served(
    *,
    url: str,
    name: str,
    out: Path,
    about: str,
    machine: str,
    commit: str = "",
    coding: Path | None = None,
    service: Path | None = None,
    coding_agents: str = "16,32",
    service_agents: str = "64,128,192,250",
    only: str = ",".join(PARTS),
    vocab: PositiveInt = 48_000,
    limit_s: PositiveFloat = 380.0,
) -> None:
    """Measure what many agents at once get out of a server.

    Parameters
    ----------
    url
        Of a server that takes token ids at /v1/completions.
    name
        What the figures are kept as.
    out
        A file of figures by server; they are added to it as they are taken.
    about
        What the model is, such as "Llama-3.1-8B shapes with random weights in bf16".
    machine
        What to call the machine.
    commit
        Of hotloop, where there is no repository to ask.
    coding
        Recorded coding agents with names of 64-token blocks, .jsonl.gz; 5 turns of each.
    service
        The same of customer-service agents; 8 turns of each.
    coding_agents
        How many at once, one run after the other.
    service_agents
        The same.
    only
        Which parts, separated by commas.
    vocab
        Token ids below this are asked.
    limit_s
        Seconds after which the sessions of a run are stopped.
    """
    try:
        server = Server(url, httpx.get(f"{url}/v1/models").json()["data"][0]["id"], vocab)
        kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"servers": {}, "rows": {}}
        kept["servers"][name] = httpx.get(f"{url}/version").json()["version"]
        kept |= {"about": about, "taken": asdict(taken_here("python -m benchmarks.gpu.served", machine, commit))}
        nums = {"service": _numbers(service_agents), "coding": _numbers(coding_agents)}
        paths = {"service": service, "coding": coding}
        for row, figures in rows_of(server, pick_names(only, PARTS, "part"), paths, nums, limit_s):
            kept["rows"].setdefault(row, {})[name] = rounded(figures)
            out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
            print(row, json.dumps(figures), flush=True)
    except (OSError, ValueError, KeyError, RuntimeError, httpx.HTTPError) as error:
        raise RemoteError(str(error) or repr(error)) from None


def _numbers(text: str) -> list[int]:
    if not all(each.strip().isdecimal() for each in text.split(",")):
        raise ConfigError(f"how many agents: numbers with commas between them, not {text!r}")
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main(served)
