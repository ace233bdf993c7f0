"""What a rule is: an id, words for people, and a pure function from a run to what it found."""

from collections.abc import Callable, Iterator
from inspect import getdoc
from typing import NamedTuple

from hotloop.lint.change import Change
from hotloop.lint.finding import Finding, Severity, TextPlace, Waste
from hotloop.lint.run import LintedRun, LintedStep

_MAX_QUOTED = 60


class Found(NamedTuple):
    """What a check tells. Severity and fix are the rule's where it does not say."""

    place: TextPlace
    words: str
    waste: Waste = Waste()
    severity: Severity | None = None
    fix: str = ""


Check = Callable[[LintedRun], Iterator[Found]]


class Rule(NamedTuple):
    """`min_recomputed`: findings that cost fewer tokens in their run are notes. `is_habit`: what a client does here to
    one message it does to all of them, so that all it does in a run is one finding.
    """

    id: str
    name: str
    summary: str
    fix: str
    severity: Severity
    min_recomputed: int
    is_habit: bool
    check: Check

    def findings(self, run: LintedRun) -> Iterator[Finding]:
        for found in self.check(run):
            severity, fix = found.severity or self.severity, found.fix or self.fix
            yield Finding(
                rule=self.id, severity=severity, place=found.place, words=found.words, fix=fix, waste=found.waste
            )


def rule(
    id_: str,
    name: str,
    *,
    severity: Severity = Severity.WARNING,
    min_recomputed: int = 0,
    is_habit: bool = False,
) -> Callable[[Check], Rule]:
    """Decorates the rule's check, whose docstring says in its first line what is wrong, and below how to fix it."""

    def make(check: Check) -> Rule:
        summary, _, fix = (getdoc(check) or "").partition("\n\n")
        return Rule(id_, name, summary, " ".join(fix.split()), severity, min_recomputed, is_habit, check)

    return make


def at_change(step: LintedStep, change: Change, words: str, *, severity: Severity | None = None) -> Found:
    return Found(step.place_of(change), words, step.waste_of(change), severity)


def quote(text: str) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return repr(line if len(line) <= _MAX_QUOTED else line[: _MAX_QUOTED - 1] + "…")
