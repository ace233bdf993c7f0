"""HL007: something said earlier is gone, though what came after it is still there."""

from collections.abc import Iterator

from hotloop.lint.cause import LossCause
from hotloop.lint.change import Change
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.rules.rule import Rule, quote
from hotloop.lint.run import LintedRun, LintedStep


def check(run: LintedRun) -> Iterator[Finding]:
    """Parts that are gone from one place are one finding."""
    trimmed: dict[tuple[int, int], list[tuple[LintedStep, Change]]] = {}
    for step, change in run.changes_by(LossCause.TRIMMED):
        trimmed.setdefault((step.asked.index, change.position), []).append((step, change))
    for group in trimmed.values():
        step, first = group[0]
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        words = f"{quote(first.old_words)}{more} stood here before; what came after it is still sent"
        severity = Severity.NOTE if step.has_shrunk else None
        yield RULE.found(step.place_of(first), words, step.waste_of(first), severity=severity)


RULE = Rule(
    id="HL007",
    name="history-trimmed",
    severity=Severity.WARNING,
    summary="Messages are left out at the front or in the middle while later ones stay.",
    mend="Keep the history until it must be cut, then cut much at once; or let a summary replace all of it.",
    check=check,
    min_recomputed=64,
    is_habit=True,
)
