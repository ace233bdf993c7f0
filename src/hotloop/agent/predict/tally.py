"""Counts that forget: how often something happened of the times it could have, lately."""

from collections.abc import Iterable
from dataclasses import dataclass, field

_FADE = 0.985
"""What is left of a count when the next one comes: the last 65 or so weigh most."""
_PRIOR_TRIES = 2.0
"""How many tries of a narrow context outweigh what the wider one says."""
_MAX_CONTEXTS = 96


@dataclass(slots=True)
class Tally:
    hits: float = 0.0
    tries: float = 0.0

    def add(self, is_hit: bool) -> None:
        self.hits = self.hits * _FADE + is_hit
        self.tries = self.tries * _FADE + 1

    def rate(self, prior: float, prior_tries: float) -> float:
        """The mean of a Beta posterior, whose prior is a few tries that went as `prior` says."""
        return (self.hits + prior_tries * prior) / (self.tries + prior_tries)


@dataclass(slots=True)
class Tallies:
    """Tallies by context. A narrow context is believed as far as it has been seen; beyond that, the wider one is."""

    by_context: dict[str, Tally] = field(default_factory=dict)

    def rate(self, contexts: Iterable[str], prior: float) -> float:
        """What to expect, given the contexts from the widest to the narrowest."""
        for context in contexts:
            if tally := self.by_context.get(context):
                prior = tally.rate(prior, _PRIOR_TRIES)
        return prior

    def add(self, contexts: Iterable[str], is_hit: bool) -> None:
        for context in contexts:
            self.by_context.setdefault(context, Tally()).add(is_hit)
        if len(self.by_context) > _MAX_CONTEXTS:
            self._make_room()

    def _make_room(self) -> None:
        """Forget the rarest, several at once: a new context then has time to prove itself."""
        usual = sorted(self.by_context.items(), key=lambda item: -item[1].tries)
        self.by_context = dict(usual[: _MAX_CONTEXTS * 3 // 4])

    @property
    def num_hits(self) -> float:
        return max((tally.hits for tally in self.by_context.values()), default=0.0)
