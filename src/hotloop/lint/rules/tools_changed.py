"""HL005: tools came, went or changed in the middle of a conversation."""

from collections.abc import Iterator

from hotloop.lint.cause import LossCause
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun

_DONE = {"inserted": "was added", "removed": "is gone", "edited": "was changed", "moved": "was moved"}


def check(run: LintedRun) -> Iterator[Finding]:
    """Another conversation may well have other tools."""
    for step, change in run.changes_by(LossCause.TOOLS_CHANGED):
        if not step.is_first:
            words = f"tool {change.part.label!r} {_DONE[change.kind]} since the request before"
            yield RULE.found(step.place_of(change), words, step.waste_of(change))


RULE = Rule(
    id="HL005",
    name="tools-changed",
    severity=Severity.WARNING,
    summary="Tools were added, removed or reworded in the middle of a conversation.",
    mend="Offer all tools from the start and say with tool_choice which may be called now.",
    check=check,
    min_recomputed=64,
)
