"""HL010: what the model wrote comes back in another spelling, or in other tokens."""

from collections.abc import Iterator, Sequence
from math import gcd

from hotloop.lint.cause import LossCause
from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.part import Part
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun, LintedStep

_SHOWN = 10  # characters before what differs
_QUOTED = 40
_MAX_BLOCK = 256
_SLACK = 8  # tokens that end a turn are the template's to write


def check(run: LintedRun) -> Iterator[Finding]:
    for step, change in run.changes_by(LossCause.REWORDED):
        assert change.old and change.new
        what = "arguments" if change.part.kind == "call" else "words"
        begin = max(0, change.begin - _SHOWN)
        words = f"the model's {what} {change.old.text[begin:][:_QUOTED]!r} "
        words += f"were sent back as {change.new.text[begin:][:_QUOTED]!r}, not as it wrote them"
        yield RULE.found(step.place_of(change), words, step.waste_of(change))
    yield from _missed(run)


def _missed(run: LintedRun) -> Iterator[Finding]:
    """By what the server reports: the text is the same, its prompt was found, and the answer was not."""
    if run.last.asked.api == "messages":  # there, answers are not cached until they come back
        return
    block = find_block(run.steps)
    missing = {id(step): num for step in run.steps if (num := _count_missing(step, block))}
    has_hit = any(_is_judged(step) and id(step) not in missing for step in run.steps)
    for step in run.steps:
        if answer := (_answer_part(step) if id(step) in missing else None):
            num = missing[id(step)]
            words = f"{num:,d} tokens of the answer before were not found again although its text is the same"
            severity = None if has_hit else Severity.NOTE
            yield RULE.found(step.place(answer), words, Waste(num_recomputed=num), severity=severity)


def find_block(steps: Sequence[LintedStep]) -> int:
    """How many tokens a server keeps together: all that it found is a multiple of it."""
    found = (step.asked.answer.usage.num_cached for step in steps if step.asked.answer.usage)
    return min(gcd(*(num for num in found if num)) or 1, _MAX_BLOCK)


def _is_judged(step: LintedStep) -> bool:
    usage, before = step.asked.answer.usage, step.before and step.before.answer.usage
    return not (step.is_first or step.changes or step.asked.is_chained) and bool(usage and before and usage.num_cached)


def _count_missing(step: LintedStep, block: int) -> int:
    if not _is_judged(step):
        return 0
    usage, before = step.asked.answer.usage, step.before and step.before.answer.usage
    assert usage and before and usage.num_cached
    num_missing = before.num_prompt + before.num_output - usage.num_cached
    is_the_answer = usage.num_cached > before.num_prompt - block and num_missing > block + _SLACK
    return num_missing if is_the_answer else 0


def _answer_part(step: LintedStep) -> Part | None:
    assert step.before
    behind = step.asked.history[len(step.before.history) :]
    return next((part for part in behind if part.role == "assistant"), None)


RULE = Rule(
    id="HL010",
    name="retokenised-turn",
    severity=Severity.WARNING,
    summary="What the model wrote comes back in another spelling, or is cut into other tokens.",
    mend="Keep answers and the arguments of calls as text, exactly as they came; parse a copy.",
    check=check,
    min_recomputed=64,
    is_habit=True,
)
