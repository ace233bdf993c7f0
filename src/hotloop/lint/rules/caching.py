"""What a request says of caching, where an API caches only what it is told to, or only from some length on."""

from collections.abc import Iterator

from hotloop.lint.finding import Severity, Waste
from hotloop.lint.requests import LintedRequest
from hotloop.lint.rules.rule import Found, rule
from hotloop.lint.run import LintedRun, LintedStep

_MAX_BREAKPOINTS = 4
_MIN_CACHEABLE = 1024  # tokens; some models want 2,048 or 4,096
_NEARLY = 0.75
_HOSTED = ("claude", "gpt", "o1", "o3", "o4", "chatgpt")


@rule("HL015", "missing-cache-control")
def missing_breakpoint(run: LintedRun) -> Iterator[Found]:
    """Requests of a conversation have no cache_control, so that nothing of them is cached.

    Mark the last block of the system text and the last block of the newest message with cache_control.
    """
    if not _needs_breakpoints(run):
        return
    for step in run.steps:
        if step.is_first or not step.before or _has_breakpoints(step.request):
            continue
        position = step.changes[0].position if step.changes else len(step.request.parts)
        before = {part.key for part in step.before.parts}
        known = [part for part in step.request.parts[:position] if part.key in before]
        num_tokens = step.scale.total(known)
        if num_tokens >= _MIN_CACHEABLE:
            words = f"no cache_control: {num_tokens:,d} tokens that begin as the request before are recomputed"
            end = (step.request.system or step.request.tools or known)[-1]
            yield Found(step.place(end, 0, 0), words, Waste(num_recomputed=num_tokens))


def _needs_breakpoints(run: LintedRun) -> bool:
    """Whether what is cached hangs on breakpoints: a server that found something without any caches by itself."""
    if run.last.request.api != "messages":
        return False
    found = (step.request.answer.usage for step in run.steps if not _has_breakpoints(step.request))
    return not any(usage and usage.num_cached for usage in found)


def _has_breakpoints(request: LintedRequest) -> bool:
    return "cache_control" in request.body or any(part.has_breakpoint for part in request.parts)


@rule("HL016", "misplaced-cache-control")
def misplaced_breakpoint(run: LintedRun) -> Iterator[Found]:
    """cache_control stands behind what changes, before too little, or does not move along.

    Keep the first four breakpoints.
    """
    for step in run.steps:
        spots = [i for i, part in enumerate(step.request.parts) if part.has_breakpoint]
        if not spots or "cache_control" in step.request.body:
            continue
        if step.request.api == "messages" and len(spots) > _MAX_BREAKPOINTS:
            words = f"{len(spots)} breakpoints, and {_MAX_BREAKPOINTS} are allowed: the request is refused"
            yield _at_breakpoint(step, spots[_MAX_BREAKPOINTS], words, severity=Severity.ERROR)
            continue
        yield from _too_early(step, spots)
        if step.before and not step.is_first:
            yield from _behind_change(step, spots) if step.changes else _left_behind(step, spots)


def _too_early(step: LintedStep, spots: list[int]) -> Iterator[Found]:
    num_tokens = step.scale.total(step.request.parts[: spots[-1] + 1])
    if num_tokens < _MIN_CACHEABLE <= step.scale.total(step.request.parts):
        words = f"the last breakpoint is behind about {num_tokens:,d} tokens: "
        words += f"fewer than {_MIN_CACHEABLE:,d} are not cached"
        yield _at_breakpoint(step, spots[-1], words, fix="Put it further back, where enough stands before it.")


def _behind_change(step: LintedStep, spots: list[int]) -> Iterator[Found]:
    """All breakpoints lie behind what changed, and enough that did not lies before it."""
    first = step.changes[0].position
    num_stable = step.scale.total(step.request.parts[:first])
    if spots[0] >= first and num_stable >= _MIN_CACHEABLE:
        words = f"the breakpoint lies behind what changes; {num_stable:,d} tokens before that have none"
        fix = "Put a breakpoint on the last block that stays the same."
        yield _at_breakpoint(step, spots[0], words, num_stable, fix=fix)


def _left_behind(step: LintedStep, spots: list[int]) -> Iterator[Found]:
    """The conversation has grown, and the last breakpoint has not moved with it."""
    assert step.before
    num_tokens = step.scale.total(step.request.parts[spots[-1] + 1 : len(step.before.parts)])
    if num_tokens >= _MIN_CACHEABLE:
        words = f"{num_tokens:,d} tokens of history behind the last breakpoint are recomputed"
        fix = "Move one breakpoint along: onto the last block of the newest message of every request."
        yield _at_breakpoint(step, spots[-1], words, num_tokens, fix=fix)


def _at_breakpoint(
    step: LintedStep, spot: int, words: str, num_lost: int = 0, *, severity: Severity | None = None, fix: str = ""
) -> Found:
    place = step.place(step.request.parts[spot], 0, 0)
    return Found(place, words, Waste(num_recomputed=num_lost), severity, fix)


@rule("HL018", "just-under-cacheable", severity=Severity.NOTE)
def under_minimum(run: LintedRun) -> Iterator[Found]:
    """A prefix that is sent again is a little shorter than what a hosted API caches.

    Put what is needed later anyway, such as examples or more of the instructions, into the prefix.
    """
    # Hosted APIs alone have a minimum; elsewhere the end of the last block is all that is lost.
    for step in run.steps[1:]:
        if step.changes or not step.before or not step.request.model.rpartition("/")[2].startswith(_HOSTED):
            continue
        num_shared = step.scale.total(step.before.parts)
        if _NEARLY * _MIN_CACHEABLE <= num_shared < _MIN_CACHEABLE:
            words = f"about {num_shared:,d} tokens are sent again: fewer than {_MIN_CACHEABLE:,d} are not cached"
            yield Found(step.place(step.request.parts[0], 0, 0), words, Waste(num_recomputed=num_shared))
