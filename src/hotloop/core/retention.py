"""What is known about when a prefix is wanted again, and when it had to go. A hint, never a promise: room for new work
always comes first.
"""

from dataclasses import dataclass
from enum import IntEnum


class HoldKind(IntEnum):
    """The order in which idle prefixes are given up: the lowest first."""

    FINISHED = 0
    """Its run has ended: nobody is expected back."""
    ORDINARY = 1
    """Nothing is known."""
    AWAY = 2
    """Its session is expected back by a certain time: a tool runs, or it usually comes back."""
    PINNED = 3
    """Somebody asked for it to be kept for a time, which begins anew with every use."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why and until when, on the engine's clock; `ttl_s` is what a use adds or, of one who is away, for how long it is
    waited beyond when it is expected.
    """

    kind: HoldKind
    until: float = 0.0
    ttl_s: float = 0.0
    rank: int = 0
    """Of one who is away, its class: less urgent ones give way first, and newcomers of more urgent ones do not wait."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """When a prefix was given up, on the engine's clock, and for which request's sake."""

    at: float
    beneficiary: str
