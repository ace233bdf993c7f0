"""Where a request goes: small pure functions from what is known about the replicas to a choice and its reason.

All is weighed in one coin, tokens to prefill. `prefix`, the default, asks what a request costs at each replica: what
waits there before it; its prefill, for itself, for those that wait behind it, and once more where other prompts have to
be evicted for it; and its session's future work, as much as others keep the replica over the mean. So a session leaves
the replica that has it cached only where staying costs more than to prefill all again, and affinity makes no hot spot.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

NUM_DELAYED = 8
"""How many wait during a prefill: its own client, and those who come meanwhile. Set by simulation: with fewer, sessions
of coding agents move more often than it gains them."""
MAX_SHARE = 1.3
"""No replica gets a new session that has more than so many times the mean of them already."""
LIGHT_SHARE = 0.1
"""A match of less than this share of a prompt is chance (a common greeting), not affinity."""


@dataclass(frozen=True, slots=True)
class PromptDigest:
    """What placing needs to know of a request: the hashes of its blocks, and sizes as far as they can be told."""

    key: bytes = b""
    num_tokens: int = 0
    num_output: int = 0
    session: str = ""


@dataclass(slots=True)
class ReplicaView:
    """What is known about one replica when a request has to be placed. A policy only looks."""

    name: str
    work_tokens: float = 0.0
    """What it has still to prefill and decode, as tokens to prefill."""
    recent_tokens: float = 0.0
    """What it was given lately, the older the less."""
    matched_tokens: int = 0
    """How much of the prompt it probably has cached."""
    is_home: bool = False
    weight: float = 1.0
    num_running: int = 0
    held_tokens: int = 0
    """How much it probably has cached in all."""
    capacity_tokens: int = 1 << 62
    returning_tokens: float = 0.0
    """What sessions in a tool gap will ask of it."""
    elsewhere_tokens: float = 0.0
    """What others have given it to do, by its own account."""
    num_sessions: int = 0
    """Sessions that were here last, and lately."""
    pool: str = ""

    @property
    def load(self) -> float:
        return self.recent_tokens / self.weight

    @property
    def waiting(self) -> float:
        return (self.work_tokens + self.returning_tokens + self.elsewhere_tokens) / self.weight

    def chosen(self, reason: str) -> "ReplicaChoice":
        return ReplicaChoice(self.name, reason, self.matched_tokens)


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    """The replica, and why; `matched_tokens` are those it need not prefill."""

    name: str
    reason: str
    matched_tokens: int = 0
    source: str = ""
    """Another that holds much more of the prompt, if there is one."""


@dataclass(slots=True)
class PlacementRequest:
    num_tokens: int
    session: str = ""
    turn: int = 0
    """How many requests were placed before this one."""
    rng: random.Random = field(default_factory=random.Random)
    past_tokens: float = 0.0
    """The work that the session has been so far; as much is probably still to come."""
    num_alike: int = 0
    """How many others began as this one does, if it is new: their common beginning is prefilled once for all of them,
    wherever it goes."""

    @property
    def prefill_cost(self) -> float:
        """Of a token: the more share it, and come back to it, the less."""
        return NUM_DELAYED / (1 + 2 * self.num_alike)


Policy = Callable[[Sequence[ReplicaView], PlacementRequest], ReplicaChoice]


def prefix(views: Sequence[ReplicaView], placing: PlacementRequest) -> ReplicaChoice:
    views = _below_share(views, placing)
    warm = [view for view in views if view.matched_tokens >= LIGHT_SHARE * placing.num_tokens]
    if not warm and placing.session:  # it will stay, so it goes to whoever has least to do of all
        return min(views, key=lambda view: (view.waiting + view.load, not view.is_home)).chosen("cold")
    if not warm:
        return _freer_of_two(views, placing).chosen("light")
    mean = max(1.0, sum([view.load for view in views]) / len(views))
    best = min(warm, key=lambda view: _cost(view, placing, mean))
    quickest_cold = placing.prefill_cost * placing.num_tokens / max([view.weight for view in views])
    if _cost(best, placing, mean) > quickest_cold:
        best = min(views, key=lambda view: (_cost(view, placing, mean), view.load))
    warmest = max(warm, key=lambda view: view.matched_tokens)
    if best.matched_tokens == warmest.matched_tokens:
        return best.chosen("warm")
    return best.chosen(f"{'warm' if best in warm else 'moved'}, {warmest.name} is busy")


def session(views: Sequence[ReplicaView], placing: PlacementRequest) -> ReplicaChoice:
    """Where the session was, whatever is known of its prompt, unless waiting there costs more than to begin anew."""
    least = _freer_of_two(views, placing)
    for view in views:
        if view.is_home and view.waiting <= least.waiting + placing.num_tokens:
            return view.chosen("session")
    return least.chosen("new session")


def least_load(views: Sequence[ReplicaView], placing: PlacementRequest) -> ReplicaChoice:
    return min(views, key=lambda view: (view.waiting, view.load)).chosen("least load")


def round_robin(views: Sequence[ReplicaView], placing: PlacementRequest) -> ReplicaChoice:
    return views[placing.turn % len(views)].chosen("its turn")


def at_random(views: Sequence[ReplicaView], placing: PlacementRequest) -> ReplicaChoice:
    return placing.rng.choice(views).chosen("chance")


POLICIES: Mapping[str, Policy] = {
    "prefix": prefix,
    "session": session,
    "least_load": least_load,
    "round_robin": round_robin,
    "random": at_random,
}


def _below_share(views: Sequence[ReplicaView], placing: PlacementRequest) -> Sequence[ReplicaView]:
    """Where a session may go that is new, or moves: what many begin with draws them all to one replica, and they stay.
    As long as there are hardly any, each goes where it is cheapest."""
    num_sessions = sum([view.num_sessions for view in views]) + (not any(view.is_home for view in views))
    if not placing.session or num_sessions < 2 * len(views):
        return views
    fair = MAX_SHARE * num_sessions / sum([view.weight for view in views])
    return [view for view in views if view.is_home or view.num_sessions + 1 <= fair * view.weight] or views


def _cost(view: ReplicaView, placing: PlacementRequest, mean_load: float) -> float:
    num_uncached = placing.num_tokens - view.matched_tokens
    is_full = view.held_tokens + num_uncached > view.capacity_tokens
    cost = view.waiting + (placing.prefill_cost + is_full) * num_uncached / view.weight
    others = view.load - placing.past_tokens / view.weight if view.is_home else view.load
    if others > mean_load:
        cost += placing.past_tokens * (others / mean_load - 1)
    return cost


def _freer_of_two(views: Sequence[ReplicaView], placing: PlacementRequest) -> ReplicaView:
    """Of two taken at random: the one with less to do, and less lately."""
    two = placing.rng.sample(views, min(2, len(views)))
    return min(two, key=lambda view: (view.waiting + view.load, view.name))
