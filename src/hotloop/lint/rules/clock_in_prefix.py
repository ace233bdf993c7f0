"""HL002: a time, an id or a counter in the prefix."""

from collections.abc import Iterator

from hotloop.lint.cause import LossCause, is_volatile
from hotloop.lint.finding import Finding, Severity
from hotloop.lint.rules.rule import Rule, quote
from hotloop.lint.run import LintedRun
from hotloop.lint.volatile import find_suspects, widen


def check(run: LintedRun) -> Iterator[Finding]:
    for step, change in run.changes_by(LossCause.VOLATILE):
        assert change.old and change.new
        begin, end = widen(change.new.text, change.begin, change.end)
        was = change.old.text[slice(*widen(change.old.text, change.begin, change.old_end))]
        kind = is_volatile(change)
        words = f"{kind} in the prefix: {quote(was)} became {quote(change.new.text[begin:end])}"
        # Between two conversations a number may be anything.
        severity = Severity.NOTE if step.is_first and kind == "a number" else None
        yield RULE.found(step.place(change.new, begin, end), words, step.waste_of(change), severity=severity)
    yield from _suspect(run)


def _suspect(run: LintedRun) -> Iterator[Finding]:
    """One request alone cannot show that something changes; that it looks so is worth a note."""
    step = run.steps[0]
    if len(run.steps) > 1 or step.before:
        return
    for part in step.asked.system:
        if spot := find_suspects(part.text):
            words = f"{quote(part.text[slice(*spot)])} looks as if it were another in the next request"
            yield RULE.found(step.place(part, *spot), words, severity=Severity.NOTE)


RULE = Rule(
    id="HL002",
    name="clock-in-prefix",
    severity=Severity.WARNING,
    summary="A time, an id or a counter stands in the prefix, so that no two prompts begin alike.",
    mend="Drop it, round it so that it seldom changes, or say it in the newest message.",
    check=check,
    min_recomputed=64,
)
