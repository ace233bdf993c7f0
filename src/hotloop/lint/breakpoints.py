"""Where a request asks to be cached, and what is asked of a prefix to be worth it."""

from hotloop.lint.asked import LintedRequest
from hotloop.lint.run import LintedRun

MAX_BREAKPOINTS = 4
MIN_CACHEABLE = 1024
"""Tokens; some models want 2,048 or 4,096."""


def has_breakpoints(asked: LintedRequest) -> bool:
    return "cache_control" in asked.body or any(part.has_breakpoint for part in asked.parts)


def can_tell(run: LintedRun) -> bool:
    """Whether what is cached hangs on breakpoints: a server that found something without any caches by itself."""
    if run.last.asked.api != "messages":
        return False
    found = (step.asked.answer.usage for step in run.steps if not has_breakpoints(step.asked))
    return not any(usage and usage.num_cached for usage in found)


def breakpoint_positions(asked: LintedRequest) -> list[int]:
    return [i for i, part in enumerate(asked.parts) if part.has_breakpoint]
