"""What goes wrong, when, and with whom: drawn from a seed, so that a bad run can be had again.

Time is cut into slots. A slot begins with one trouble, or two at once, and its last part is quiet:

    slot   |---- trouble ----|-- quiet --|---- trouble ----|-- quiet --|
           begins            ends        begins            ends

Somebody is always well, but for one slot in the middle, in which nobody is for a moment.
"""

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

TroubleKind = Literal["kill", "hang", "slow", "error", "half", "refuse", "remove"]
"""What a stub can be told to do wrong, being killed and started again, and being taken out by a reload and put back."""

KINDS: tuple[TroubleKind, ...] = ("kill", "hang", "slow", "error", "half", "refuse", "remove")
SLOT_S = 10.0

_TROUBLED_SHARE = 0.6
_BLACKOUT_SHARE = 0.3
_TWO_AT_ONCE = 0.25


class Trouble(NamedTuple):
    """One replica, from one time to another, in seconds since the beginning."""

    kind: TroubleKind
    replica: str
    begins_s: float
    ends_s: float


def plan_troubles(
    replicas: Sequence[str], duration_s: float, *, seed: int = 0, slot_s: float = SLOT_S
) -> list[Trouble]:
    """Every kind as often as the others, as far as the time goes; ordered by when they begin."""
    rng = random.Random(seed)
    num_slots = int(duration_s / slot_s)
    troubles: list[Trouble] = []
    kinds: list[TroubleKind] = []
    for number in range(num_slots):
        begins_s = number * slot_s
        if number == num_slots // 2 and num_slots > len(KINDS):
            ends_s = begins_s + _BLACKOUT_SHARE * slot_s
            troubles += [Trouble("refuse", replica, begins_s, ends_s) for replica in replicas]
            continue
        num_troubles = 2 if len(replicas) > 2 and rng.random() < _TWO_AT_ONCE else 1
        for replica in rng.sample(list(replicas), num_troubles):
            kinds = kinds or rng.sample(KINDS, len(KINDS))
            troubles.append(Trouble(kinds.pop(), replica, begins_s, begins_s + _TROUBLED_SHARE * slot_s))
    return troubles


def is_anybody_well(replicas: Sequence[str], troubles: Sequence[Trouble], begin_s: float, end_s: float) -> bool:
    """Whether at every moment between the two some replica was in no trouble. A slow one is well enough."""
    serious = [each for each in troubles if each.kind != "slow"]
    moments = {begin_s, *(each.begins_s for each in serious if begin_s <= each.begins_s <= end_s)}
    return all(
        any(not any(_is_at(each, replica, moment) for each in serious) for replica in replicas) for moment in moments
    )


def _is_at(trouble: Trouble, replica: str, moment_s: float) -> bool:
    return trouble.replica == replica and trouble.begins_s <= moment_s < trouble.ends_s
