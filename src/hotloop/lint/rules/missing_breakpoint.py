"""HL015: an API that caches only where it is told to was not told."""

from collections.abc import Iterator

from hotloop.lint.breakpoints import MIN_CACHEABLE, can_tell, has_breakpoints
from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun


def check(run: LintedRun) -> Iterator[Finding]:
    if not can_tell(run):
        return
    for step in run.steps:
        if step.is_first or not step.before or has_breakpoints(step.asked):
            continue
        position = step.changes[0].position if step.changes else len(step.asked.parts)
        before = {part.key for part in step.before.parts}
        known = [part for part in step.asked.parts[:position] if part.key in before]
        num_tokens = step.scale.total(known)
        if num_tokens >= MIN_CACHEABLE:
            words = f"no cache_control: {num_tokens:,d} tokens that begin as the request before are recomputed"
            end = (step.asked.system or step.asked.tools or known)[-1]
            yield RULE.found(step.place(end, 0, 0), words, Waste(num_recomputed=num_tokens))


RULE = Rule(
    id="HL015",
    name="missing-cache-control",
    severity=Severity.WARNING,
    summary="Requests of a conversation have no cache_control, so that nothing of them is cached.",
    mend="Mark the last block of the system text and the last block of the newest message with cache_control.",
    check=check,
)
