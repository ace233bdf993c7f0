"""Recorded traffic against replicas that are simulated, placed by the very code that places real requests.

A replica prefills one prompt after the other at one speed, decodes all answers at another, and evicts what was unused
longest, just as the placement's own index takes it to. A session's next request comes its recorded time after the
answer before it. Simulated time only, so the same seed gives the same figures everywhere.
"""

import heapq
import random
import statistics
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from hotloop.router.placement.placement import OUTPUT_COST, Placement
from hotloop.router.placement.policy import (
    POLICIES,
    PlacementRequest,
    Policy,
    PromptDigest,
    ReplicaChoice,
    ReplicaView,
)
from hotloop.router.simulation.trace import Arrival, Session, Trace, key_of, repeat
from hotloop.router.summary import AnswerSummary

USUAL_OUTPUT = 256
"""What an answer is taken for before it is written, as by the router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReplicas:
    num_replicas: int = 64
    capacity_tokens: int = 4_000_000
    prefill_tokens_per_s: float = 20_000.0
    decode_tokens_per_s: float = 60.0
    """For one answer; a replica decodes many at once."""
    sessions_per_s: float = 1.0


@dataclass(slots=True)
class Figures:
    policy: str
    num_requests: int = 0
    num_tokens: int = 0
    num_matched: int = 0
    num_ideal: int = 0
    """What one replica with room for everything would have had cached."""
    ttfts_s: "array[float]" = field(default_factory=lambda: array("d"))
    imbalance: float = 1.0
    """Work of the busiest replica, as a multiple of the mean."""
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def hit_rate(self) -> float:
        return self.num_matched / max(1, self.num_tokens)

    @property
    def ideal_rate(self) -> float:
        return self.num_ideal / max(1, self.num_tokens)

    def count(self, choice: ReplicaChoice, arrival: Arrival, ttft_s: float) -> None:
        self.num_requests += 1
        self.num_tokens += arrival.num_tokens
        self.num_matched += choice.matched_tokens
        self.num_ideal += arrival.known_tokens
        self.ttfts_s.append(ttft_s)
        self.reasons[choice.reason.partition(",")[0]] += 1

    def ttft_s(self, percent: int) -> float:
        if len(self.ttfts_s) < 2:
            return sum(self.ttfts_s)
        return statistics.quantiles(self.ttfts_s, n=100)[percent - 1]


class Simulation:
    """One policy, one set of replicas, one trace. A process is a generator of the times at which it goes on."""

    def __init__(self, trace: Trace, replicas: SimulatedReplicas, policy: str, *, seed: int = 0) -> None:
        self.figures = Figures(policy)
        self._trace = trace
        self._replicas = replicas
        self._rng = random.Random(seed)
        self._placement = Placement(SIMULATED[policy], block_tokens=trace.block_tokens, seed=seed)
        self._free_at = {f"r{i}": 0.0 for i in range(replicas.num_replicas)}
        self._busy_s = dict.fromkeys(self._free_at, 0.0)
        for name in self._free_at:
            self._placement.add_replica(name, capacity_tokens=replicas.capacity_tokens)
        self._waiting: list[tuple[float, int, Iterator[float]]] = []
        self._order = count()

    def run(self, num_requests: int, on_progress: Callable[[int], None] | None = None) -> Figures:
        self._go_on(self._begin_sessions(num_requests))
        while self._waiting:
            self._go_on(heapq.heappop(self._waiting)[2])
            if on_progress and self.figures.num_requests % 10_000 == 0:
                on_progress(self.figures.num_requests)
        total_s = sum(self._busy_s.values())
        self.figures.imbalance = max(self._busy_s.values()) * len(self._busy_s) / total_s if total_s else 1.0
        return self.figures

    def _go_on(self, process: Iterator[float]) -> None:
        next_at = next(process, None)
        if next_at is not None:
            heapq.heappush(self._waiting, (next_at, next(self._order), process))

    def _begin_sessions(self, num_requests: int) -> Iterator[float]:
        now = 0.0
        for world, session in repeat(self._trace, num_requests):
            self._go_on(self._play(world, session, now))
            now += self._rng.expovariate(self._replicas.sessions_per_s)
            yield now

    def _play(self, world: int, session: Session, now: float) -> Iterator[float]:
        replicas, name = self._replicas, "" if self._trace.is_shared else str(world)
        for turn, arrival in enumerate(session):
            if turn:
                now += arrival.think_s
                yield now
            prompt = PromptDigest(key_of(arrival.runs, world), arrival.num_tokens, USUAL_OUTPUT, name)
            ticket = self._placement.place(prompt, now=now)
            assert ticket
            replica = ticket.choice.name
            prefill_s = (arrival.num_tokens - ticket.choice.matched_tokens) / replicas.prefill_tokens_per_s
            prefilled_at = self._free_at[replica] = max(now, self._free_at[replica]) + prefill_s
            self._busy_s[replica] += prefill_s + OUTPUT_COST * arrival.num_output / replicas.prefill_tokens_per_s
            self.figures.count(ticket.choice, arrival, prefilled_at - now)
            yield prefilled_at
            self._placement.begin(ticket)
            now = prefilled_at + arrival.num_output / replicas.decode_tokens_per_s
            yield now
            answer = AnswerSummary(num_output=arrival.num_output, has_calls=arrival.is_tool_call)
            self._placement.finish(ticket, answer, now=now)


def consistent_hash(views: Sequence[ReplicaView], placing: PlacementRequest) -> ReplicaChoice:
    """The same session always to the same replica, whatever happens there."""
    name = placing.session or placing.turn
    return max(views, key=lambda view: zlib.crc32(f"{name} {view.name}".encode())).chosen("hash")


def cache_aware(views: Sequence[ReplicaView], placing: PlacementRequest) -> ReplicaChoice:
    """A published policy: the longest match if it is over 0.3 of the prompt, else whoever runs least; and whoever runs
    least at all times while the replicas are out of balance by more than 64 requests and a half.
    """
    numbers = [view.num_running for view in views]
    is_balanced = max(numbers) - min(numbers) <= 64 or max(numbers) <= 1.5 * min(numbers)
    best = max(views, key=lambda view: view.matched_tokens)
    if is_balanced and best.matched_tokens > 0.3 * placing.num_tokens:
        return best.chosen("match")
    least = min(views, key=lambda view: (view.num_running, placing.rng.random()))
    return least.chosen("least" if is_balanced else "balance")


SIMULATED: Mapping[str, Policy] = {**POLICIES, "consistent_hash": consistent_hash, "cache_aware": cache_aware}
