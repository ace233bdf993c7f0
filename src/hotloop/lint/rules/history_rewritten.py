"""HL006: something said earlier has other words now."""

from collections.abc import Iterator

from hotloop.lint.cause import LossCause
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.rules.rule import Rule, quote
from hotloop.lint.run import LintedRun


def check(run: LintedRun) -> Iterator[Finding]:
    for step, change in run.changes_by(LossCause.REWRITTEN):
        if change.kind == "edited":
            words = f"{quote(change.old_words)} became {quote(change.new_words)}"
        else:
            words = f"{quote(change.new_words)} was put between what had been said before"
        severity = Severity.NOTE if step.has_shrunk else None
        yield RULE.found(step.place_of(change), words, step.waste_of(change), severity=severity)


RULE = Rule(
    id="HL006",
    name="history-rewritten",
    severity=Severity.WARNING,
    summary="A message that was sent before has other words now.",
    mend="Let history stand and append; where it must shrink, shrink it seldom and much, not a little every turn.",
    check=check,
    min_recomputed=64,
    is_habit=True,
)
