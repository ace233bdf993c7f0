"""Where a request goes: small pure functions from what is known about the replicas to a choice and its reason.

`prefix`, the default, weighs work against work: what a replica has still to do, and what it would have to read for this
request. Nobody is chosen who has much more to do than the others, so affinity never makes a hot spot; a session without
a home goes to whoever had least to do lately, of two taken at random, so that its later turns do not make one either.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

MAX_OVERLOAD = 1.5
"""How many times the mean work a replica may have before it is passed over."""
MIN_SLACK_TOKENS = 8_192
"""Below this, more than the mean is not much more."""
LIGHT_SHARE = 0.1
"""A match of less than this share of a prompt is chance (a common greeting), not affinity."""


@dataclass(slots=True)
class View:
    """What is known about one replica when a request has to be placed. A policy only looks."""

    name: str
    work_tokens: float = 0.0
    """What it has still to read and write, as tokens to read."""
    recent_tokens: float = 0.0
    """What it was given lately, fading with time."""
    matched_tokens: int = 0
    """How much of the prompt it has probably read."""
    is_home: bool = False
    """Whether the session was there last."""
    weight: float = 1.0
    """How much faster than others it is."""
    num_running: int = 0
    held_tokens: int = 0
    """How much it has read and probably kept."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The replica, and why; `matched_tokens` is what it need not read."""

    name: str
    reason: str
    matched_tokens: int = 0


@dataclass(slots=True)
class Placing:
    """One request to be placed."""

    num_tokens: int
    session: str = ""
    turn: int = 0
    """How many requests were placed before this one."""
    dice: random.Random = field(default_factory=random.Random)


Policy = Callable[[Sequence[View], Placing], Choice]


def prefix(views: Sequence[View], placing: Placing) -> Choice:
    """Least work in all, counting what would have to be read."""
    fit = _not_overloaded(views)
    best = min(fit, key=lambda view: (_cost(view, placing), not view.is_home, view.recent_tokens))
    if best.matched_tokens >= LIGHT_SHARE * placing.num_tokens:
        warmest = max(views, key=lambda view: view.matched_tokens)
        reason = "warm" if best.matched_tokens == warmest.matched_tokens else f"warm, {warmest.name} is busy"
        return Choice(best.name, reason, best.matched_tokens)
    if best.is_home and placing.session:
        return Choice(best.name, "session", best.matched_tokens)
    least = _least_of_two(fit, placing)
    return Choice(least.name, "cold", least.matched_tokens)


def session(views: Sequence[View], placing: Placing) -> Choice:
    """Where the session was, unless that one is overloaded."""
    fit = _not_overloaded(views)
    for view in fit:
        if view.is_home:
            return Choice(view.name, "session", view.matched_tokens)
    least = _least_of_two(fit, placing)
    return Choice(least.name, "new session", least.matched_tokens)


def least_load(views: Sequence[View], placing: Placing) -> Choice:
    least = min(views, key=lambda view: (view.work_tokens / view.weight, view.recent_tokens / view.weight))
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


def _cost(view: View, placing: Placing) -> float:
    return (view.work_tokens + placing.num_tokens - view.matched_tokens) / view.weight


def _not_overloaded(views: Sequence[View]) -> Sequence[View]:
    mean = sum(view.work_tokens / view.weight for view in views) / len(views)
    most = max(mean * MAX_OVERLOAD, mean + MIN_SLACK_TOKENS)
    return [view for view in views if view.work_tokens / view.weight <= most]


def _least_of_two(views: Sequence[View], placing: Placing) -> View:
    two = placing.dice.sample(views, min(2, len(views)))
    return min(two, key=lambda view: ((view.work_tokens + view.recent_tokens) / view.weight, view.name))
