"""What begins a prompt and changes from request to request, so that all behind it is recomputed."""

from collections.abc import Iterator

from hotloop.lint.cause import LossCause, find_suspects, is_volatile, widen
from hotloop.lint.change import Change
from hotloop.lint.conversations import Texts
from hotloop.lint.finding import Severity
from hotloop.lint.rules.rule import Found, at_change, quote, rule
from hotloop.lint.run import LintedRun

_MIN_KEPT = 0.2  # of a system text that is still the same agent's
_DONE = {"inserted": "was added", "removed": "is gone", "edited": "was changed", "moved": "was moved"}


@rule("HL001", "volatile-before-stable", min_recomputed=64)
def volatile_first(run: LintedRun) -> Iterator[Found]:
    """Text at the beginning of the prompt changes from request to request.

    Put what changes behind what does not: into the newest message, or a message of its own at the end.
    """
    for step, change in run.changes_by(LossCause.UNSTABLE):
        if change.kind == "removed":
            words = f"the prompt began with {quote(change.old_words)} before, and no longer does"
        elif change.kind == "inserted":
            words = f"{quote(change.new_words)} was not there before"
        else:
            words = f"{quote(change.old_words)} became {quote(change.new_words)}"
        words += "; all behind it is recomputed"
        if step.is_first:  # another conversation may be another agent's
            yield Found(step.place_of(change), words, severity=Severity.NOTE)
        else:
            severity = Severity.NOTE if step.has_shrunk or _is_another(change) else None
            yield at_change(step, change, words, severity=severity)


def _is_another(change: Change) -> bool:
    """Whether another agent took over, with instructions of its own."""
    if change.part.kind != "system" or not change.old or not change.new:
        return False
    return Texts([change.old]).share(Texts([change.new])) < _MIN_KEPT


@rule("HL002", "clock-in-prefix", min_recomputed=64)
def clock_in_prefix(run: LintedRun) -> Iterator[Found]:
    """A time, an id or a counter stands in the prefix, so that no two prompts begin alike.

    Drop it, round it so that it seldom changes, or say it in the newest message.
    """
    for step, change in run.changes_by(LossCause.VOLATILE):
        assert change.old and change.new
        begin, end = widen(change.new.text, change.begin, change.end)
        was = change.old.text[slice(*widen(change.old.text, change.begin, change.old_end))]
        kind = is_volatile(change)
        words = f"{kind} in the prefix: {quote(was)} became {quote(change.new.text[begin:end])}"
        # Between two conversations a number may be anything.
        severity = Severity.NOTE if step.is_first and kind == "a number" else None
        yield Found(step.place(change.new, begin, end), words, step.waste_of(change), severity)
    yield from _suspect(run)


def _suspect(run: LintedRun) -> Iterator[Found]:
    """One request alone cannot show that something changes; that it looks so is worth a note."""
    step = run.steps[0]
    if len(run.steps) > 1 or step.before:
        return
    for part in step.request.system:
        if spot := find_suspects(part.text):
            words = f"{quote(part.text[slice(*spot)])} looks as if it were another in the next request"
            yield Found(step.place(part, *spot), words, severity=Severity.NOTE)


@rule("HL003", "unstable-tool-order", min_recomputed=64)
def tool_order(run: LintedRun) -> Iterator[Found]:
    """The same tools are listed in another order than before.

    Sort tools by name before they are sent; sets and parallel discovery have no order.
    """
    for step, change in run.changes_by(LossCause.TOOL_ORDER):
        assert step.before
        index = step.request.tools.index(change.part)
        was = step.before.tools[index].label if index < len(step.before.tools) else "nothing"
        yield at_change(step, change, f"tool {index} is {change.part.label!r} where {was!r} was before")


@rule("HL004", "unstable-key-order", min_recomputed=64)
def key_order(run: LintedRun) -> Iterator[Found]:
    """A tool's schema is the same by value, but its keys stand in another order.

    Write schemas once and keep the text, or write them with sorted keys.
    """
    for step, change in run.changes_by(LossCause.KEY_ORDER):
        words = f"tool {change.part.label!r} means what it did before, but is written otherwise: "
        yield at_change(step, change, words + f"{quote(change.old_words)} became {quote(change.new_words)}")


@rule("HL005", "tools-changed", min_recomputed=64)
def tools_changed(run: LintedRun) -> Iterator[Found]:
    """Tools were added, removed or reworded in the middle of a conversation.

    Offer all tools from the start and say with tool_choice which may be called now.
    """
    # Another conversation may well have other tools.
    for step, change in run.changes_by(LossCause.TOOLS_CHANGED):
        if not step.is_first:
            words = f"tool {change.part.label!r} {_DONE[change.kind]} since the request before"
            yield at_change(step, change, words)


@rule("HL009", "system-turn-hoisted")
def system_hoisted(run: LintedRun) -> Iterator[Found]:
    """Instructions that came late stand, or will be put, before everything else.

    Say it where it happens, in the user's turn or with a tool's result, marked as the system's words.
    """
    for step, change in run.changes_by(LossCause.HOISTED):
        yield at_change(step, change, f"{quote(change.new_words)} was put in front of what had been said before")
    yield from _late(run)


def _late(run: LintedRun) -> Iterator[Found]:
    """Many chat templates move a late system turn to the front, or refuse it: the request does not show which."""
    seen: set[str] = set()
    for step in run.steps:
        for part in step.request.history:
            if part.kind == "system" and part.text not in seen:
                seen.add(part.text)
                words = f"{quote(part.text)} is a system turn in the middle: many templates move it to the front"
                yield Found(step.place(part), words)
