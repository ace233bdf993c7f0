"""What was said before and comes back otherwise, or not at all."""

from collections.abc import Iterator, Sequence
from math import gcd

from hotloop.lint.cause import LossCause
from hotloop.lint.change import Change
from hotloop.lint.finding import Severity, Waste
from hotloop.lint.parts import Part
from hotloop.lint.rules.rule import Found, at_change, quote, rule
from hotloop.lint.run import LintedRun, LintedStep

_SHOWN = 10  # characters before what differs
_QUOTED = 40
_MAX_BLOCK = 256
_SLACK = 8  # tokens that end a turn are the template's to write


@rule("HL006", "history-rewritten", min_recomputed=64, is_habit=True)
def history_rewritten(run: LintedRun) -> Iterator[Found]:
    """A message that was sent before has other words now.

    Let history stand and append; where it must shrink, shrink it seldom and much, not a little every turn.
    """
    for step, change in run.changes_by(LossCause.REWRITTEN):
        if change.kind == "edited":
            words = f"{quote(change.old_words)} became {quote(change.new_words)}"
        else:
            words = f"{quote(change.new_words)} was put between what had been said before"
        yield at_change(step, change, words, severity=_if_shrunk(step))


@rule("HL007", "history-trimmed", min_recomputed=64, is_habit=True)
def history_trimmed(run: LintedRun) -> Iterator[Found]:
    """Messages are left out at the front or in the middle while later ones stay.

    Keep the history until it must be cut, then cut much at once; or let a summary replace all of it.
    """
    # Parts that are gone from one place are one finding.
    trimmed: dict[tuple[int, int], list[tuple[LintedStep, Change]]] = {}
    for step, change in run.changes_by(LossCause.TRIMMED):
        trimmed.setdefault((step.request.index, change.position), []).append((step, change))
    for group in trimmed.values():
        step, first = group[0]
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        words = f"{quote(first.old_words)}{more} stood here before; what came after it is still sent"
        yield at_change(step, first, words, severity=_if_shrunk(step))


def _if_shrunk(step: LintedStep) -> Severity | None:
    """A history that is cut down seldom and much is only worth a note."""
    return Severity.NOTE if step.has_shrunk else None


@rule("HL008", "thinking-dropped", is_habit=True)
def thinking_dropped(run: LintedRun) -> Iterator[Found]:
    """Thinking is left out when its answer is sent back with the results of its calls.

    Send the blocks of an answer back as they came, thinking and signatures too, until the user speaks again.
    """
    for step, change in run.changes_by(LossCause.THINKING):
        words = f"thinking that began with {quote(change.old_words)} was not sent back"
        yield at_change(step, change, words, severity=None if _is_in_loop(step, change) else Severity.NOTE)


def _is_in_loop(step: LintedStep, change: Change) -> bool:
    """Until the user speaks again a model goes on with its own thoughts; then most templates drop them anyway."""
    behind = [part for part in step.request.parts[change.position :] if part.role != "assistant"]
    with_results = {part.message for part in behind if part.kind == "result"}
    return bool(with_results) and all(part.message in with_results for part in behind if part.kind == "text")


@rule("HL010", "retokenised-turn", min_recomputed=64, is_habit=True)
def retokenised(run: LintedRun) -> Iterator[Found]:
    """What the model wrote comes back in another spelling, or is cut into other tokens.

    Keep answers and the arguments of calls as text, exactly as they came; parse a copy.
    """
    for step, change in run.changes_by(LossCause.REWORDED):
        assert change.old and change.new
        what = "arguments" if change.part.kind == "call" else "words"
        begin = max(0, change.begin - _SHOWN)
        words = f"the model's {what} {change.old.text[begin:][:_QUOTED]!r} "
        words += f"were sent back as {change.new.text[begin:][:_QUOTED]!r}, not as it wrote them"
        yield at_change(step, change, words)
    yield from _missed(run)


def _missed(run: LintedRun) -> Iterator[Found]:
    """By what the server reports: the text is the same, its prompt was found, and the answer was not."""
    if run.last.request.api == "messages":  # there, answers are not cached until they come back
        return
    block = _find_block(run.steps)
    missing = {id(step): _count_missing(step, block) for step in run.steps if _is_judged(step)}
    severity = None if 0 in missing.values() else Severity.NOTE
    for step in run.steps:
        if (num := missing.get(id(step))) and (answer := _answer_part(step)):
            words = f"{num:,d} tokens of the answer before were not found again although its text is the same"
            yield Found(step.place(answer), words, Waste(num_recomputed=num), severity)


def _find_block(steps: Sequence[LintedStep]) -> int:
    """How many tokens a server keeps together: all that it found is a multiple of it."""
    found = (step.request.answer.usage.num_cached for step in steps if step.request.answer.usage)
    return min(gcd(*(num for num in found if num)) or 1, _MAX_BLOCK)


def _is_judged(step: LintedStep) -> bool:
    usage, before = step.request.answer.usage, step.before and step.before.answer.usage
    is_comparable = not (step.is_first or step.changes or step.request.is_chained)
    return is_comparable and bool(usage and before and usage.num_cached)


def _count_missing(step: LintedStep, block: int) -> int:
    usage, before = step.request.answer.usage, step.before and step.before.answer.usage
    assert usage and before and usage.num_cached
    num_uncached = before.num_prompt + before.num_output - usage.num_cached
    is_the_answer = usage.num_cached > before.num_prompt - block and num_uncached > block + _SLACK
    return num_uncached if is_the_answer else 0


def _answer_part(step: LintedStep) -> Part | None:
    assert step.before
    behind = step.request.history[len(step.before.history) :]
    return next((part for part in behind if part.role == "assistant"), None)
