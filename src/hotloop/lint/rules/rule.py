"""What a rule is: an id, words for people, and a pure function from a run to what it found."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hotloop.lint.change import Change
from hotloop.lint.finding import Finding, Severity, TextPlace, Waste
from hotloop.lint.run import LintedRun, LintedStep

_MAX_QUOTED = 60


@dataclass(frozen=True, slots=True)
class Found:
    """What a check tells. Severity and mend are the rule's where it does not say."""

    place: TextPlace
    words: str
    waste: Waste = field(default_factory=Waste)
    severity: Severity | None = None
    mend: str = ""


Check = Callable[[LintedRun], Iterator[Found]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`min_recomputed`: findings that cost fewer tokens in their run are notes. `is_habit`: what a client does here to
    one message it does to all of them, so that all it does in a run is one finding.
    """

    id: str
    name: str
    summary: str
    mend: str
    severity: Severity
    min_recomputed: int
    is_habit: bool
    check: Check

    def findings(self, run: LintedRun) -> Iterator[Finding]:
        for found in self.check(run):
            severity, mend = found.severity or self.severity, found.mend or self.mend
            yield Finding(
                rule=self.id, severity=severity, place=found.place, words=found.words, mend=mend, waste=found.waste
            )


def rule(
    id_: str,
    name: str,
    summary: str,
    *,
    mend: str,
    severity: Severity = Severity.WARNING,
    min_recomputed: int = 0,
    is_habit: bool = False,
) -> Callable[[Check], Rule]:
    """Decorates the rule's check."""
    return lambda check: Rule(
        id=id_,
        name=name,
        summary=summary,
        mend=mend,
        severity=severity,
        min_recomputed=min_recomputed,
        is_habit=is_habit,
        check=check,
    )


def at_change(step: LintedStep, change: Change, words: str, *, severity: Severity | None = None) -> Found:
    """What a change did, and what it cost."""
    return Found(step.place_of(change), words, step.waste_of(change), severity)


def quote(text: str) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return repr(line if len(line) <= _MAX_QUOTED else line[: _MAX_QUOTED - 1] + "…")
