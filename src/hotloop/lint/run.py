"""A run: the requests of one conversation in order, each beside the one it should have continued.

What rules look at is worked out once, when a step is made: what changed, and what had to be recomputed for it. Frozen.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hotloop.lint.cause import LossCause, find_cause
from hotloop.lint.change import Change
from hotloop.lint.finding import TextPlace, Waste
from hotloop.lint.meter import Scale
from hotloop.lint.parts import Part
from hotloop.lint.requests import LintedRequest

_SHRUNK = 0.5


@dataclass(frozen=True, kw_only=True)
class LintedStep:
    """A request and the one before it. Of a run's first request that is one of another run that is much like it, if
    there is one: then only system texts and tools were compared.
    """

    request: LintedRequest
    before: LintedRequest | None
    is_first: bool
    scale: Scale
    changes: tuple[Change, ...] = ()
    num_lost: int = 0
    """Tokens behind the first change that were computed before, and had to be recomputed."""

    @cached_property
    def causes(self) -> tuple[LossCause | None, ...]:
        """Of each change; None of one that costs nothing."""
        return tuple(find_cause(self.request, self.before, change, is_first=self.is_first) for change in self.changes)

    @property
    def has_shrunk(self) -> bool:
        """Whether a history was cut down to less than half, as is done seldom, when it has become too long."""
        if not self.before:
            return False
        then, now = (sum(len(part.text) for part in parts) for parts in (self.before.continued, self.request.history))
        return now < _SHRUNK * then

    def place(self, part: Part, begin: int = 0, end: int | None = None) -> TextPlace:
        return TextPlace(self.request.index, part.path, begin, len(part.text) if end is None else end)

    def place_of(self, change: Change) -> TextPlace:
        """Of what is gone, the place where it stood: the part that is there now, or that the request ends with."""
        if change.new:
            return self.place(change.new, change.begin, change.end)
        parts = self.request.parts
        if not parts:
            return TextPlace(self.request.index, "")
        return self.place(parts[min(change.position, len(parts) - 1)], 0, 0)

    def waste_of(self, change: Change) -> Waste:
        """All that was lost is the first change's doing: behind it nothing else could have been found either way."""
        return Waste(num_recomputed=self.num_lost if change is self.changes[0] else 0)


class LintedRun(NamedTuple):
    id: str
    steps: tuple[LintedStep, ...]

    @property
    def last(self) -> LintedStep:
        return self.steps[-1]

    def changes_by(self, cause: LossCause) -> Iterator[tuple[LintedStep, Change]]:
        for step in self.steps:
            for change, found in zip(step.changes, step.causes, strict=True):
                if found is cause:
                    yield step, change
