"""HL001: what changes from request to request stands before what does not."""

from collections.abc import Iterator

from hotloop.lint.cause import LossCause
from hotloop.lint.change import Change
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.likeness import Texts
from hotloop.lint.rules.rule import Rule, quote
from hotloop.lint.run import LintedRun

_MIN_KEPT = 0.2  # of a system text that is still the same agent's


def check(run: LintedRun) -> Iterator[Finding]:
    for step, change in run.changes_by(LossCause.UNSTABLE):
        if change.kind == "removed":
            words = f"the prompt began with {quote(change.old_words)} before, and no longer does"
        elif change.kind == "inserted":
            words = f"{quote(change.new_words)} was not there before"
        else:
            words = f"{quote(change.old_words)} became {quote(change.new_words)}"
        words += "; all behind it is recomputed"
        is_meant = step.has_shrunk or _is_another(change)
        if step.is_first:  # another conversation may be another agent's
            yield RULE.found(step.place_of(change), words, severity=Severity.NOTE)
        else:
            severity = Severity.NOTE if is_meant else None
            yield RULE.found(step.place_of(change), words, step.waste_of(change), severity=severity)


def _is_another(change: Change) -> bool:
    """Whether another agent took over, with instructions of its own."""
    if change.part.kind != "system" or not change.old or not change.new:
        return False
    return Texts([change.old]).share(Texts([change.new])) < _MIN_KEPT


RULE = Rule(
    id="HL001",
    name="volatile-before-stable",
    severity=Severity.WARNING,
    summary="Text at the beginning of the prompt changes from request to request.",
    mend="Put what changes behind what does not: into the newest message, or a message of its own at the end.",
    check=check,
    min_recomputed=64,
)
