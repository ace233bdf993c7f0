"""HL003: the same tools in another order."""

from collections.abc import Iterator

from hotloop.lint.cause import LossCause
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun


def check(run: LintedRun) -> Iterator[Finding]:
    for step, change in run.changes_by(LossCause.TOOL_ORDER):
        assert step.before
        index = step.asked.tools.index(change.part)
        was = step.before.tools[index].label if index < len(step.before.tools) else "nothing"
        words = f"tool {index} is {change.part.label!r} where {was!r} was before"
        yield RULE.found(step.place_of(change), words, step.waste_of(change))


RULE = Rule(
    id="HL003",
    name="unstable-tool-order",
    severity=Severity.WARNING,
    summary="The same tools are listed in another order than before.",
    mend="Sort tools by name before they are sent; sets and parallel discovery have no order.",
    check=check,
    min_recomputed=64,
)
