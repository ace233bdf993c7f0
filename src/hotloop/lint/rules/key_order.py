"""HL004: the same schema, its keys in another order."""

from collections.abc import Iterator

from hotloop.lint.cause import LossCause
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.rules.rule import Rule, quote
from hotloop.lint.run import LintedRun


def check(run: LintedRun) -> Iterator[Finding]:
    for step, change in run.changes_by(LossCause.KEY_ORDER):
        words = f"tool {change.part.label!r} means what it did before, but is written otherwise: "
        words += f"{quote(change.old_words)} became {quote(change.new_words)}"
        yield RULE.found(step.place_of(change), words, step.waste_of(change))


RULE = Rule(
    id="HL004",
    name="unstable-key-order",
    severity=Severity.WARNING,
    summary="A tool's schema is the same by value, but its keys stand in another order.",
    mend="Write schemas once and keep the text, or write them with sorted keys.",
    check=check,
    min_recomputed=64,
)
