"""What is known about when a prefix is wanted again. A hint, never a promise: room for new work always comes first."""

from dataclasses import dataclass
from enum import IntEnum


class HoldKind(IntEnum):
    """The order in which idle prefixes are given up: the lowest first."""

    FINISHED = 0
    """Its run has ended: nobody is expected back."""
    ORDINARY = 1
    """Nothing is known."""
    AWAY = 2
    """A tool runs; its agent is expected back at a certain time."""
    PINNED = 3
    """Somebody asked for it to be kept for a time, which begins anew with every use."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why and until when, on the engine's clock; `ttl_s` is what a use adds."""

    kind: HoldKind
    until: float = 0.0
    ttl_s: float = 0.0
