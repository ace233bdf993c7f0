"""What is known about when a prefix is wanted again, and when it had to go. A hint, never a promise: room for new work
always comes first.
"""

import math
from dataclasses import dataclass
from enum import IntEnum


class HoldKind(IntEnum):
    """The order in which idle prefixes are given up: the lowest first."""

    FINISHED = 0
    """Its run has ended: no further request is expected."""
    ORDINARY = 1
    """Nothing is known."""
    TOOL_GAP = 2
    """Its session is expected back by a known time: a tool runs, or it usually comes back."""
    PINNED = 3
    """A client asked for it to be kept for a time, which begins anew with every use."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why and until when, on the engine's clock; `ttl_s` is what a use adds or, in a tool gap, for how long the session
    is waited for beyond when it is expected.
    """

    kind: HoldKind
    until: float = 0.0
    ttl_s: float = 0.0
    rank: int = 0
    """In a tool gap, the session's class: less urgent ones are evicted first, and more urgent sessions do not wait."""

    @property
    def expires_at(self) -> float:
        return self.until if self.kind in (HoldKind.TOOL_GAP, HoldKind.PINNED) else math.inf


@dataclass(frozen=True, slots=True)
class Pin:
    """The first tokens of a prompt, to be kept so long after every use."""

    num_tokens: int
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """When a prefix was given up, on the engine's clock, and for which request's sake."""

    at: float
    beneficiary: str
