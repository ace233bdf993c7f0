"""HL009: what was to be said late is said at the very beginning, or will be."""

from collections.abc import Iterator

from hotloop.lint.cause import LossCause
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.rules.rule import Rule, quote
from hotloop.lint.run import LintedRun


def check(run: LintedRun) -> Iterator[Finding]:
    for step, change in run.changes_by(LossCause.HOISTED):
        words = f"{quote(change.new_words)} was put in front of what had been said before"
        yield RULE.found(step.place_of(change), words, step.waste_of(change))
    yield from _late(run)


def _late(run: LintedRun) -> Iterator[Finding]:
    """Many chat templates move a late system turn to the front, or refuse it: the request does not show which."""
    told: set[str] = set()
    for step in run.steps:
        for part in step.asked.history:
            if part.kind == "system" and part.text not in told:
                told.add(part.text)
                words = f"{quote(part.text)} is a system turn in the middle: many templates move it to the front"
                yield RULE.found(step.place(part), words)


RULE = Rule(
    id="HL009",
    name="system-turn-hoisted",
    severity=Severity.WARNING,
    summary="Instructions that came late stand, or will be put, before everything else.",
    mend="Say it where it happens, in the user's turn or with a tool's result, marked as the system's words.",
    check=check,
)
