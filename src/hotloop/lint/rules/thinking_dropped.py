"""HL008: the model's thinking does not come back with its answer."""

from collections.abc import Iterator

from hotloop.lint.cause import LossCause
from hotloop.lint.change import Change
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.rules.rule import Rule, quote
from hotloop.lint.run import LintedRun, LintedStep


def check(run: LintedRun) -> Iterator[Finding]:
    for step, change in run.changes_by(LossCause.THINKING):
        severity = None if _is_in_loop(step, change) else Severity.NOTE
        words = f"thinking that began with {quote(change.old_words)} was not sent back"
        yield RULE.found(step.place_of(change), words, step.waste_of(change), severity=severity)


def _is_in_loop(step: LintedStep, change: Change) -> bool:
    """Until the user speaks again a model goes on with its own thoughts; then most templates drop them anyway."""
    behind = [part for part in step.asked.parts[change.position :] if part.role != "assistant"]
    with_results = {part.message for part in behind if part.kind == "result"}
    return bool(with_results) and all(part.message in with_results for part in behind if part.kind == "text")


RULE = Rule(
    id="HL008",
    name="thinking-dropped",
    severity=Severity.WARNING,
    summary="Thinking is left out when its answer is sent back with the results of its calls.",
    mend="Send the blocks of an answer back as they came, thinking and signatures too, until the user speaks again.",
    check=check,
    is_habit=True,
)
