"""HL001: what changes from request to request stands before what does not."""

from collections.abc import Iterator

from hotloop.lint.cause import Cause, changes_by
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.rules.rule import Rule, quote
from hotloop.lint.run import Run


def check(run: Run) -> Iterator[Finding]:
    for step, change in changes_by(run, Cause.UNSTABLE):
        if change.kind == "removed":
            words = f"the prompt began with {quote(change.old_words)} before, and no longer does"
        elif change.kind == "inserted":
            words = f"{quote(change.new_words)} was not there before"
        else:
            words = f"{quote(change.old_words)} became {quote(change.new_words)}"
        words += "; all behind it is read again"
        if step.is_first:  # another conversation may be another agent's
            yield RULE.found(step.place_of(change), words, severity=Severity.NOTE)
        else:
            yield RULE.found(step.place_of(change), words, step.waste_of(change))


RULE = Rule(
    id="HL001",
    name="volatile-before-stable",
    severity=Severity.WARNING,
    summary="Text at the beginning of the prompt changes from request to request.",
    mend="Put what changes behind what does not: into the newest message, or a message of its own at the end.",
    check=check,
    min_reread=64,
)
