"""HL016: cache_control stands where it does little or nothing."""

from collections.abc import Iterator

from hotloop.lint.breakpoints import MAX_BREAKPOINTS, MIN_CACHEABLE, breakpoint_positions
from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun, LintedStep


def check(run: LintedRun) -> Iterator[Finding]:
    for step in run.steps:
        spots = breakpoint_positions(step.asked)
        if not spots or "cache_control" in step.asked.body:
            continue
        if step.asked.api == "messages" and len(spots) > MAX_BREAKPOINTS:
            part = step.asked.parts[spots[MAX_BREAKPOINTS]]
            words = f"{len(spots)} breakpoints, and {MAX_BREAKPOINTS} are allowed: the request is refused"
            yield RULE.found(step.place(part, 0, 0), words, severity=Severity.ERROR)
            continue
        yield from _too_early(step, spots)
        if step.before and not step.is_first:
            yield from _behind_change(step, spots) if step.changes else _left_behind(step, spots)


def _too_early(step: LintedStep, spots: list[int]) -> Iterator[Finding]:
    num_tokens = step.scale.total(step.asked.parts[: spots[-1] + 1])
    if num_tokens < MIN_CACHEABLE <= step.scale.total(step.asked.parts):
        part = step.asked.parts[spots[-1]]
        words = (
            f"the last breakpoint is behind about {num_tokens:,d} tokens: fewer than {MIN_CACHEABLE:,d} are not cached"
        )
        yield RULE.found(step.place(part, 0, 0), words, mend="Put it further back, where enough stands before it.")


def _behind_change(step: LintedStep, spots: list[int]) -> Iterator[Finding]:
    """All breakpoints lie behind what changed, and enough that did not lies before it."""
    first = step.changes[0].position
    num_stable = step.scale.total(step.asked.parts[:first])
    if spots[0] >= first and num_stable >= MIN_CACHEABLE:
        part = step.asked.parts[spots[0]]
        words = f"the breakpoint lies behind what changes; {num_stable:,d} tokens before that have none"
        mend = "Put a breakpoint on the last block that stays the same."
        yield RULE.found(step.place(part, 0, 0), words, Waste(num_recomputed=num_stable), mend=mend)


def _left_behind(step: LintedStep, spots: list[int]) -> Iterator[Finding]:
    """The conversation has grown, and the last breakpoint has not moved with it."""
    assert step.before
    num_known = len(step.before.parts)
    num_tokens = step.scale.total(step.asked.parts[spots[-1] + 1 : num_known])
    if num_tokens >= MIN_CACHEABLE:
        part = step.asked.parts[spots[-1]]
        words = f"{num_tokens:,d} tokens of history behind the last breakpoint are recomputed"
        mend = "Move one breakpoint along: onto the last block of the newest message of every request."
        yield RULE.found(step.place(part, 0, 0), words, Waste(num_recomputed=num_tokens), mend=mend)


RULE = Rule(
    id="HL016",
    name="misplaced-cache-control",
    severity=Severity.WARNING,
    summary="cache_control stands behind what changes, before too little, or does not move along.",
    mend="Keep the first four breakpoints.",
    check=check,
)
