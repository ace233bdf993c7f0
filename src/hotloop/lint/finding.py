"""What a rule found: where, in which words, what it cost and how to fix it. Values only."""

from dataclasses import dataclass, field
from enum import IntEnum


class Severity(IntEnum):
    """Ordered: what is at or above a severity can be asked for."""

    NOTE = 1
    WARNING = 2
    ERROR = 3

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class TextPlace:
    """So many characters into a text of a request: `path` leads to it in the body, as in `messages[3].content`."""

    request: int
    path: str
    begin: int = 0
    end: int = 0

    def __str__(self) -> str:
        chars = f" characters {self.begin}-{self.end}" if self.end > self.begin else ""
        return f"request {self.request}, {self.path}{chars}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Tokens that need not have been recomputed, and tokens that need not have been sent though a cache had them.

    Milliseconds and money are None where nobody knows them.
    """

    num_recomputed: int = 0
    num_carried: int = 0
    num_round_trips: int = 0
    ms: float | None = None
    money: float | None = None

    def __add__(self, other: "Waste") -> "Waste":
        return Waste(
            num_recomputed=self.num_recomputed + other.num_recomputed,
            num_carried=self.num_carried + other.num_carried,
            num_round_trips=self.num_round_trips + other.num_round_trips,
            ms=_add(self.ms, other.ms),
            money=_add(self.money, other.money),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`words` says what is wrong here, `fix` what to do about it. `others` are further places of the same."""

    rule: str
    severity: Severity
    place: TextPlace
    words: str
    fix: str
    waste: Waste = field(default_factory=Waste)
    run: str = ""
    others: tuple[TextPlace, ...] = ()

    @property
    def places(self) -> tuple[TextPlace, ...]:
        return (self.place, *self.others)


def _add(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
