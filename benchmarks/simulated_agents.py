"""What recorded agents would see on a card, in virtual time and without one: the engine's scheduler, and a cost model.

    python -m benchmarks.simulated_agents --data TRACES.jsonl.gz [--sessions 8 16 32] [--tokens N] [--host-tokens N]
                                          [--no-retention] [--no-admission] [--no-names] [--stagger S] [--limit S]
    python -m benchmarks.simulated_agents --short [--cpu]
    python -m benchmarks.simulated_agents --batch 64 256
    python -m benchmarks.simulated_agents --lockstep 64

The first replays sessions in a closed loop, as a client would: each asks, waits as long as its tool took, asks again.
The second has requests of 100 tokens come beside three prompts of 8,000; the third has so many ask at once for 128
tokens after 1,024 each; in the fourth they share a head of 4,000 tokens and take 8 turns together, 380 tokens in and 80
out (both as `benchmarks.gpu.figures` asks a card). Figures are those of the policy, not of the
hardware: HTTP, kernels that are slower than they should be, and copies from host memory (its tokens count as the
card's) take no time here. The model is of an H200 with 8B weights in bf16; `--cpu` is a 135M model on two cores.
"""

import gzip
import heapq
import json
import math
import random
import statistics
from argparse import ArgumentParser, Namespace
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from operator import sub
from pathlib import Path
from typing import Any

from hotloop.bench.report import percentile
from hotloop.core.config import EngineConfig
from hotloop.core.request import FinishReason, Request, SamplingParams
from hotloop.engine.scheduler import Scheduler
from hotloop.engine.step import Slice, Step

TRACE_BLOCK = 64  # tokens that a name in a trace stands for
MAX_PROMPT, MAX_GAP_S, MIN_OUTPUT, MAX_OUTPUT = 120_000, 6.0, 8, 160
UNSAID = 2_000_000_000  # a token that no prompt has


@dataclass(frozen=True)
class Hardware:
    """What a step takes: weights or arithmetic, whichever is longer, and attention."""

    step_s: float = 0.003
    weights_s: float = 0.0039
    token_s: float = 21e-6
    row_s: float = 5e-6
    pair_s: float = 524_288 / 590e12
    """For a token that is read, and each before it."""
    context_s: float = 131_072 / 4e12
    """To fetch the KV of a token."""
    pad: int = 64
    """Up to `max_graph` rows a step is a graph for a multiple of so many rows, unless it only decodes."""
    max_graph: int = 1024
    eager_s: float = 0.015
    """The least that a larger step takes: its kernels are launched one by one."""
    host_s: float = 0.0005
    depth: int = 2
    block_size: int = 64
    step_tokens: int = 8192
    max_alone: float = math.inf

    def takes_s(self, step: Step) -> float:
        num_rows = step.num_tokens
        has_prefill = any(part.num_tokens > 1 for part in step.slices)
        is_eager = has_prefill and num_rows > self.max_graph
        if has_prefill and not is_eager:
            num_rows = -(-num_rows // self.pad) * self.pad
        compute_s = max(self.weights_s, self.step_s + self.token_s * num_rows)
        took_s = compute_s + sum(map(self._attention_s, step.slices)) + self.row_s * len(step.slices)
        took_s -= self.context_s * self.block_size * num_shared([part for part in step.slices if part.num_tokens == 1])
        return max(took_s, self.eager_s) if is_eager else took_s

    def _attention_s(self, part: Slice) -> float:
        fetch_s = self.context_s * (part.begin + part.num_tokens)
        return max(fetch_s, self.pair_s * part.num_tokens * (part.begin + part.num_tokens / 2))


H200 = Hardware()
CPU = Hardware(
    step_s=0.005, weights_s=0.025, token_s=3e-4, row_s=4e-3, pair_s=0.0, context_s=0.0, depth=1, block_size=32,
    step_tokens=512, max_alone=16.0, pad=1, max_graph=1 << 30,
)  # fmt: skip


def num_shared(parts: list[Slice]) -> int:
    """How many blocks need not be fetched again, since all who begin with the same one have them in common."""
    groups: dict[int, list[array[int]]] = {}
    for part in parts:
        groups.setdefault(part.request.block_ids[0], []).append(part.request.block_ids)
    saved = 0
    for first, *others in groups.values():
        num_common = len(first)
        for other in others:
            num_common = bisect_left(range(num_common), 1, key=lambda num: first[: num + 1] != other[: num + 1])
        saved += num_common * len(others)
    return saved


@dataclass
class Asked:
    """One request of somebody's, and what became of it."""

    request: Request
    num_output: int
    num_ideal: int
    """Tokens that an earlier request of the session, or the head that all share, had already brought."""
    on_end: Callable[["Asked"], None]
    token_times: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.token_times[0] - self.request.arrived_at

    @property
    def tokens_per_s(self) -> float:
        return (self.num_output - 1) / max(self.token_times[-1] - self.token_times[0], 1e-6)


class World:
    """A scheduler, hardware and a clock that only moves when something takes time."""

    def __init__(self, config: EngineConfig, hardware: Hardware, num_tokens: int) -> None:
        self.now = 0.0
        self.ended: list[Asked] = []
        self.scheduler = Scheduler(
            config,
            block_size=hardware.block_size,
            num_blocks=num_tokens // hardware.block_size,
            step_tokens=hardware.step_tokens,
            max_alone=hardware.max_alone,
        )
        self._hardware = hardware
        self._coming: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._asked: dict[str, Asked] = {}
        self._free_at = 0.0

    def at(self, time_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._coming, (time_s, next(self._numbers), act))

    def ask(self, asked: Asked) -> None:
        asked.request.max_tokens = asked.num_output
        self._asked[asked.request.id] = asked
        self.scheduler.add(asked.request)

    def run(self, limit_s: float) -> None:
        flights: deque[tuple[Step, float, float]] = deque()
        while (self._coming or self.scheduler.has_work or flights) and self.now < limit_s:
            while self._coming and self._coming[0][0] <= self.now:
                time_s, _, act = heapq.heappop(self._coming)
                act(time_s)
            step = self.scheduler.schedule(self.now)
            if step.slices:
                took_s = self._hardware.takes_s(step)
                self._free_at = max(self.now + self._hardware.host_s, self._free_at) + took_s
                flights.append((step, self._free_at, took_s))
                self.scheduler.advance(step)
            if flights and (not step.slices or len(flights) >= self._hardware.depth):
                self._settle(*flights.popleft())
            elif not step.slices:
                self.now = max(self.now, self._coming[0][0]) if self._coming else self.now + 0.01

    def _settle(self, step: Step, ends_at: float, took_s: float) -> None:
        self.now = max(self.now, ends_at)
        told = [part.request for part in step.slices if part.wants_token and not part.request.is_finished]
        for request in told:
            request.token_ids.append(UNSAID)
        self.scheduler.settle(step, self.now, took_s)
        for request in told:
            asked = self._asked[request.id]
            asked.token_times.append(self.now)
            if request.num_output == asked.num_output:
                self.scheduler.finish(request, FinishReason.LENGTH)
                self.ended.append(self._asked.pop(request.id))
                asked.on_end(asked)


class Agent:
    """One recorded session, replayed."""

    def __init__(
        self, world: World, number: int, row: dict[str, Any], asks: list[dict[str, Any]], *, name: str
    ) -> None:
        self._world = world
        self._number = number
        self._asks = asks
        self._name = name
        self._num_head = (row.get("tool_tokens", 0) + row.get("system_tokens", 0)) // TRACE_BLOCK
        self._seen = set(range(1, self._num_head + 1))
        self._turn = 0
        self._began_at = 0.0
        self.took_s: float | None = None

    def ask(self, time_s: float) -> None:
        if self._turn == 0:
            self._began_at = time_s
        recorded = self._asks[self._turn]
        names = block_names(recorded)
        num_known = next((i for i, name in enumerate(names) if name not in self._seen), len(names))
        self._seen |= set(names)
        token_ids = array("i", [token_id for name in names for token_id in self._tokens(name)])
        request = Request(
            f"{self._number}/{self._turn}",
            token_ids,
            SamplingParams(temperature=0, ignore_eos=True),
            session_id=self._name,
            arrived_at=time_s,
        )
        num_output = max(MIN_OUTPUT, min(MAX_OUTPUT, recorded["out"]))
        num_ideal = min(num_known * TRACE_BLOCK, len(token_ids) - 1)
        self._world.ask(Asked(request, num_output, num_ideal, self._go_on))

    def _tokens(self, name: int) -> range:
        """Those of the head are the same for all."""
        first = name if name <= self._num_head else (self._number + 1) * 20_000 + name
        return range(first * TRACE_BLOCK, (first + 1) * TRACE_BLOCK)

    def _go_on(self, asked: Asked) -> None:
        self._turn += 1
        if self._turn == len(self._asks):
            self.took_s = self._world.now - self._began_at
            return
        gap_s = min(MAX_GAP_S, self._asks[self._turn].get("think_time") or 0.0)
        self._world.at(self._world.now + gap_s, self.ask)


def block_names(recorded: dict[str, Any]) -> list[int]:
    return [name for start, num in recorded["hash_ids_rle"] for name in range(start, start + num)]


def read_sessions(path: Path, num_requests: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            asks = [each for each in row["requests"] if each.get("type", "n") == "n" and each.get("hash_ids_rle")]
            asks = asks[:num_requests]
            if len(asks) == num_requests and max(each["in"] for each in asks) <= MAX_PROMPT:
                yield row, asks


def replay(options: Namespace, num_sessions: int) -> str:
    config = EngineConfig(retention=options.retention, admission=options.admission, max_running=256)
    world = World(config, H200, options.tokens + options.host_tokens)
    sessions = zip(range(num_sessions), read_sessions(options.data, options.requests), strict=False)
    agents = [Agent(world, i, row, asks, name=f"session-{i}" if options.names else "") for i, (row, asks) in sessions]
    for i, agent in enumerate(agents):
        world.at(options.stagger * i, agent.ask)
    world.run(options.limit)
    later = [each for each in world.ended if not each.request.id.endswith("/0")]
    num_prompt = sum(each.request.num_prompt for each in world.ended)
    waits_s = [sum(each.request.usage.waits_s.values()) for each in world.ended]
    return (
        f"{num_sessions:3} at once: {sum(agent.took_s is not None for agent in agents)} done in {world.now:.0f} s; "
        f"TTFT p50/p90 {percentile([each.ttft_s for each in later], 0.5):.2f}/"
        f"{percentile([each.ttft_s for each in later], 0.9):.2f} s, "
        f"{statistics.median(each.tokens_per_s for each in world.ended):.1f} tokens/s a user, "
        f"{sum(each.num_output for each in world.ended) / world.now:.0f} in all; "
        f"mean session {statistics.fmean(agent.took_s or world.now for agent in agents):.1f} s; "
        f"longest wait {max(waits_s):.0f} s; "
        f"cached {sum(each.request.num_cached for each in world.ended) / num_prompt:.3f} "
        f"({sum(each.num_ideal for each in world.ended) / num_prompt:.3f} at best), "
        f"{world.scheduler.admission.num_swapped} sessions put back"
    )


class Crowd:
    """Asks for many answers at once, and waits for the last."""

    def __init__(self, hardware: Hardware) -> None:
        self.world = World(EngineConfig(max_running=256), hardware, 896_912)
        self._numbers = count()
        self.asked: list[Asked] = []
        self.ask([self.prompt(2048)], 64)  # what steps take is learnt
        self.ask([self.prompt(8192) for _ in range(2)], 8)
        self.asked.clear()

    def prompt(self, num_tokens: int) -> list[int]:
        first = next(self._numbers) * 10_000
        return list(range(first, first + num_tokens))

    def ask(self, prompts: Iterable[list[int]], num_output: int) -> float:
        """How long it takes all of them."""
        began_at = self.world.now
        for i, prompt in enumerate(prompts):
            request = Request(f"{began_at}/{i}", prompt, SamplingParams(), arrived_at=began_at)
            self.asked.append(Asked(request, num_output, 0, lambda _: None))
            self.world.ask(self.asked[-1])
        self.world.run(math.inf)
        return self.world.now - began_at

    def told(self, took_s: float) -> str:
        gaps_s = [max(map(sub, each.token_times[1:], each.token_times)) for each in self.asked]
        ttfts_s = [each.ttft_s for each in self.asked]
        return (
            f"{sum(each.num_output for each in self.asked) / took_s:,.0f} output tokens/s; "
            f"TTFT p50/p95 {percentile(ttfts_s, 0.5):.2f}/{percentile(ttfts_s, 0.95):.2f} s; "
            f"longest gap of a request, p50 {1000 * percentile(gaps_s, 0.5):.0f} ms"
        )


def batch(hardware: Hardware, num_requests: int) -> str:
    crowd = Crowd(hardware)
    took_s = crowd.ask([crowd.prompt(1024) for _ in range(num_requests)], 128)
    return f"{num_requests} x (1,024 + 128): {crowd.told(took_s)}"


def lockstep(hardware: Hardware, num_agents: int, num_turns: int = 8) -> str:
    crowd = Crowd(hardware)
    head = crowd.prompt(4000)
    histories = [head + crowd.prompt(60) for _ in range(num_agents)]
    took_s = 0.0
    for _ in range(num_turns):
        took_s += crowd.ask(histories, 80)
        histories = [history + crowd.prompt(380) for history in histories]
    return f"{num_agents} in lockstep: {crowd.told(took_s)}"


def short_beside_long(hardware: Hardware) -> str:
    """Each figure alone and beside the other; the first three long prompts only teach it what steps take."""
    scale = 1 if hardware is H200 else 10

    def run(*, has_long: bool, has_short: bool) -> dict[str, list[tuple[float, float]]]:
        world = World(EngineConfig(), hardware, 1 << 20)
        rng, numbers = random.Random(1), count(1)
        found: dict[str, list[tuple[float, float]]] = {"long": [], "short": []}

        def come(kind: str, length: int) -> Callable[[float], None]:
            def act(time_s: float) -> None:
                first = next(numbers) * 10_000
                request = Request(f"{first}", range(first, first + length), SamplingParams(), arrived_at=time_s)
                world.ask(Asked(request, 8, 0, lambda asked: found[kind].append((time_s, asked.ttft_s))))

            return act

        for i in range(7):
            for _ in range(3 if has_long or i == 0 else 0):
                world.at(scale * (1.0 + 3 * i), come("long", 8000))
        for i in range(210 if has_short else 0):
            world.at(scale * 0.1 * (i + rng.random()), come("short", 100))
        world.run(1e9)
        return {kind: [each for each in times if each[0] > scale * 2.5] for kind, times in found.items()}

    alone = run(has_long=False, has_short=True)["short"]
    long = run(has_long=True, has_short=False)["long"]
    both = run(has_long=True, has_short=True)
    reading = [(at, at + ttft_s) for at, ttft_s in both["long"]]
    beside = [ttft_s for at, ttft_s in both["short"] if any(begin <= at <= end for begin, end in reading)]
    shorts = [1000 * percentile(times, 0.95) for times in ([each[1] for each in alone], beside)]
    longs = [statistics.fmean(each[1] for each in times) for times in (long, both["long"])]
    return (
        f"TTFT p95 of 100 tokens {shorts[0]:.1f} ms alone, {shorts[1]:.1f} ms beside three prompts of 8,000 "
        f"(of {len(beside)}); those {longs[0]:.2f} s alone, {longs[1]:.2f} s ({longs[1] / longs[0]:.2f} times)"
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="recorded sessions, with names of 64-token blocks")
    parser.add_argument("--sessions", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--requests", type=int, default=8, help="of each")
    parser.add_argument("--tokens", type=int, default=896_912, help="that the card's KV has room for")
    parser.add_argument("--host-tokens", type=int, default=0, help="and those that host memory has room for")
    parser.add_argument("--stagger", type=float, default=0.5, help="seconds between the starts of sessions")
    parser.add_argument("--limit", type=float, default=1e9, help="virtual seconds")
    for name in ("retention", "admission", "names"):
        parser.add_argument(f"--no-{name}", dest=name, action="store_false")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--batch", type=int, nargs="+", default=[])
    parser.add_argument("--lockstep", type=int, nargs="+", default=[])
    options = parser.parse_args()
    hardware = CPU if options.cpu else H200
    for figure, counts in ((batch, options.batch), (lockstep, options.lockstep)):
        for num_requests in counts:
            print(figure(hardware, num_requests), flush=True)
    if options.short or options.batch or options.lockstep:
        if options.short:
            print(short_beside_long(hardware))
        return
    if not options.data or not options.data.exists():
        raise SystemExit(f"no recorded sessions at {options.data}: give them by --data")
    for num_sessions in options.sessions:
        print(replay(options, num_sessions), flush=True)


if __name__ == "__main__":
    main()
