"""Where a request goes: small pure functions from what is known about the replicas to a choice and its reason.

All is weighed in one coin, tokens to read. `prefix`, the default, asks what a request costs at each replica:

    what waits there before it  +  what it must read: for itself, for those that wait behind it, and once more where
    other prompts have to go for it  +  its session's future work, as much as others keep the replica over the mean

So a session leaves a warm replica only where staying costs more than reading all again, and affinity never makes a hot
spot. A new session that begins as many others do, with the same system prompt, brings that to another replica sooner. A
prompt of which hardly anything is known goes by load alone.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

READERS = 8
"""How many wait while a prompt is read: whoever sent it, and those who come while it is. Set by simulation: with fewer,
sessions of coding agents move more often than it gains them."""
LIGHT_SHARE = 0.1
"""A match of less than this share of a prompt is chance (a common greeting), not affinity."""


@dataclass(slots=True)
class View:
    """What is known about one replica when a request has to be placed. A policy only looks."""

    name: str
    work_tokens: float = 0.0
    """What it has still to read and write, as tokens to read."""
    recent_tokens: float = 0.0
    """What it was given lately, the older the less."""
    matched_tokens: int = 0
    """How much of the prompt it has probably read."""
    is_home: bool = False
    """Whether the session was there last."""
    weight: float = 1.0
    """How much faster than others it is."""
    num_running: int = 0
    held_tokens: int = 0
    """How much it has read and probably kept."""
    capacity_tokens: int = 1 << 62
    returning_tokens: float = 0.0
    """What its sessions will ask of it that are only gone to run a tool."""
    elsewhere_tokens: float = 0.0
    """What others have given it to do, by its own account."""

    @property
    def load(self) -> float:
        return self.recent_tokens / self.weight


@dataclass(frozen=True, slots=True)
class Choice:
    """The replica, and why; `matched_tokens` is what it need not read."""

    name: str
    reason: str
    matched_tokens: int = 0


@dataclass(slots=True)
class Placing:
    num_tokens: int
    session: str = ""
    turn: int = 0
    """How many requests were placed before this one."""
    dice: random.Random = field(default_factory=random.Random)
    past_tokens: float = 0.0
    """The work that the session has been so far; as much is probably still to come."""
    num_alike: int = 0
    """How many others began as this one does, if it is new: what it finds is theirs, and is read for all of them once,
    wherever it goes."""

    @property
    def num_readers(self) -> float:
        """What reading a token costs: the more share it, and come back to it, the less."""
        return READERS / (1 + 2 * self.num_alike)


Policy = Callable[[Sequence[View], Placing], Choice]


def prefix(views: Sequence[View], placing: Placing) -> Choice:
    """Least cost in all, counting what is waiting, what is warm and what is to come."""
    warm = [view for view in views if view.matched_tokens >= LIGHT_SHARE * placing.num_tokens]
    if not warm:
        return _place_light(views, placing)
    mean = max(1.0, sum([view.load for view in views]) / len(views))
    best = min(warm, key=lambda view: _cost(view, placing, mean))
    quickest_cold = placing.num_readers * placing.num_tokens / max([view.weight for view in views])
    if _cost(best, placing, mean) > quickest_cold:
        best = min(views, key=lambda view: (_cost(view, placing, mean), view.load))
    warmest = max(warm, key=lambda view: view.matched_tokens)
    if best.matched_tokens == warmest.matched_tokens:
        return Choice(best.name, "warm", best.matched_tokens)
    how = "warm" if best in warm else "moved"
    return Choice(best.name, f"{how}, {warmest.name} is busy", best.matched_tokens)


def _place_light(views: Sequence[View], placing: Placing) -> Choice:
    """A session stays, so it goes to whoever had least to do, of all; a single request to the freer of two."""
    if placing.session:
        least = min(views, key=lambda view: (_waiting(view) + view.load, not view.is_home))
        return Choice(least.name, "cold", least.matched_tokens)
    least = _freer_of_two(views, placing)
    return Choice(least.name, "light", least.matched_tokens)


def session(views: Sequence[View], placing: Placing) -> Choice:
    """Where the session was, whatever is known of its prompt, unless waiting there costs more than to begin anew."""
    least = _freer_of_two(views, placing)
    for view in views:
        if view.is_home and _waiting(view) <= _waiting(least) + placing.num_tokens:
            return Choice(view.name, "session", view.matched_tokens)
    return Choice(least.name, "new session", least.matched_tokens)


def least_load(views: Sequence[View], placing: Placing) -> Choice:
    least = min(views, key=lambda view: (_waiting(view), view.load))
    return Choice(least.name, "least load", least.matched_tokens)


def round_robin(views: Sequence[View], placing: Placing) -> Choice:
    view = views[placing.turn % len(views)]
    return Choice(view.name, "its turn", view.matched_tokens)


def at_random(views: Sequence[View], placing: Placing) -> Choice:
    view = placing.dice.choice(views)
    return Choice(view.name, "chance", view.matched_tokens)


POLICIES: Mapping[str, Policy] = {
    "prefix": prefix,
    "session": session,
    "least_load": least_load,
    "round_robin": round_robin,
    "random": at_random,
}


def _waiting(view: View) -> float:
    return (view.work_tokens + view.returning_tokens + view.elsewhere_tokens) / view.weight


def _cost(view: View, placing: Placing, mean_load: float) -> float:
    num_unread = placing.num_tokens - view.matched_tokens
    is_full = view.held_tokens + num_unread > view.capacity_tokens
    cost = _waiting(view) + (placing.num_readers + is_full) * num_unread / view.weight
    others = view.load - placing.past_tokens / view.weight if view.is_home else view.load
    if others > mean_load:
        cost += placing.past_tokens * (others / mean_load - 1)
    return cost


def _freer_of_two(views: Sequence[View], placing: Placing) -> View:
    """Of two taken at random: who has less to do, and had lately."""
    two = placing.dice.sample(views, min(2, len(views)))
    return min(two, key=lambda view: (_waiting(view) + view.load, view.name))
