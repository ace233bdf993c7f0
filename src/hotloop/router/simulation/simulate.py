"""Recorded traffic against a fleet that exists only on paper, placed by the very code that places real requests.

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
from functools import partial
from itertools import count

from hotloop.router.placement.placement import OUTPUT_COST, Placement, Prompt, Ticket
from hotloop.router.placement.policy import POLICIES, Choice, Placing, Policy, View
from hotloop.router.simulation.trace import Arrival, Session, Trace, key_of, repeat

USUAL_OUTPUT = 256
"""What an answer is taken for before it is written, as by the router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    num_replicas: int = 64
    capacity_tokens: int = 4_000_000
    read_tokens_per_s: float = 20_000.0
    write_tokens_per_s: float = 60.0
    """For one answer; a replica writes many at once."""
    sessions_per_s: float = 1.0


@dataclass(slots=True)
class _Replica:
    free_at: float = 0.0
    busy_s: float = 0.0


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

    def count(self, choice: Choice, arrival: Arrival, ttft_s: float) -> None:
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
    """One policy, one fleet, one trace."""

    def __init__(self, trace: Trace, fleet: Fleet, policy: str, *, seed: int = 0) -> None:
        self.figures = Figures(policy)
        self._trace = trace
        self._fleet = fleet
        self._dice = random.Random(seed)
        self._placement = Placement(SIMULATED[policy], block_tokens=trace.block_tokens, seed=seed)
        self._replicas = {f"r{i}": _Replica() for i in range(fleet.num_replicas)}
        for name in self._replicas:
            self._placement.add_replica(name, capacity_tokens=fleet.capacity_tokens)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._births: Iterator[tuple[int, Session]] = iter(())

    def run(self, num_requests: int, on_progress: Callable[[int], None] | None = None) -> Figures:
        """Play that many requests of the trace, over and over if it has fewer."""
        self._births = repeat(self._trace, num_requests)
        self._begin_session(0.0)
        while self._events:
            at_s, _, act = heapq.heappop(self._events)
            act(at_s)
            if on_progress and self.figures.num_requests % 10_000 == 0:
                on_progress(self.figures.num_requests)
        works = [replica.busy_s for replica in self._replicas.values()]
        self.figures.imbalance = max(works) * len(works) / sum(works) if any(works) else 1.0
        return self.figures

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), act))

    def _begin_session(self, now: float) -> None:
        """One session begins, and the next is planned."""
        for world, session in self._births:
            self._arrive(world, session, 0, now)
            self._at(now + self._dice.expovariate(self._fleet.sessions_per_s), self._begin_session)
            return

    def _arrive(self, world: int, session: Session, index: int, now: float) -> None:
        arrival = session[index]
        name = "" if self._trace.is_shared else str(world)
        prompt = Prompt(key_of(arrival.runs, world), arrival.num_tokens, USUAL_OUTPUT, name)
        ticket = self._placement.place(prompt, now=now)
        assert ticket
        written_at = self._serve(ticket, arrival, now)
        self._at(written_at, partial(self._end, ticket, arrival))
        if index + 1 < len(session):
            next_at = written_at + session[index + 1].think_s
            self._at(next_at, partial(self._arrive, world, session, index + 1))

    def _serve(self, ticket: Ticket, arrival: Arrival, now: float) -> float:
        """When the answer is written."""
        fleet, choice = self._fleet, ticket.choice
        replica = self._replicas[choice.name]
        reading_s = (arrival.num_tokens - choice.matched_tokens) / fleet.read_tokens_per_s
        read_at = max(now, replica.free_at) + reading_s
        replica.free_at = read_at
        self._at(read_at, lambda _: self._placement.begin(ticket))
        replica.busy_s += reading_s + OUTPUT_COST * arrival.num_output / fleet.read_tokens_per_s
        self.figures.count(choice, arrival, read_at - now)
        return read_at + arrival.num_output / fleet.write_tokens_per_s

    def _end(self, ticket: Ticket, arrival: Arrival, now: float) -> None:
        self._placement.finish(ticket, num_output=arrival.num_output, has_tool_call=arrival.is_tool_call, now=now)


def consistent_hash(views: Sequence[View], placing: Placing) -> Choice:
    """The same session always to the same replica, whatever happens there."""
    name = placing.session or placing.turn
    return max(views, key=lambda view: zlib.crc32(f"{name} {view.name}".encode())).chosen("hash")


def cache_aware(views: Sequence[View], placing: Placing) -> Choice:
    """A published policy: the longest match if it is over 0.3 of the prompt, else whoever runs least; and whoever runs
    least at all times while the fleet is out of balance by more than 64 requests and a half.
    """
    numbers = [view.num_running for view in views]
    is_balanced = max(numbers) - min(numbers) <= 64 or max(numbers) <= 1.5 * min(numbers)
    best = max(views, key=lambda view: view.matched_tokens)
    if is_balanced and best.matched_tokens > 0.3 * placing.num_tokens:
        return best.chosen("match")
    least = min(views, key=lambda view: (view.num_running, placing.dice.random()))
    return least.chosen("least" if is_balanced else "balance")


SIMULATED: Mapping[str, Policy] = {**POLICIES, "consistent_hash": consistent_hash, "cache_aware": cache_aware}
"""The policies of the router, and others to compare them with."""
