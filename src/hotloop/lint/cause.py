"""Why a request is not the one before it continued: each change has one cause, or none that matters."""

import re
from enum import Enum, auto

from hotloop.lint.change import Change
from hotloop.lint.parts import PICTURE
from hotloop.lint.requests import LintedRequest

_PATTERNS = (
    ("an id", re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.I)),
    ("an id", re.compile(r"\b(?=[\w-]*[a-z])(?=[\w-]*\d)[A-Za-z0-9_-]{20,}\b", re.I)),
    (
        "a time",
        re.compile(
            r"\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
            r"|\b\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s?[AP]\.?M\b)?",
            re.I,
        ),
    ),
    (
        "a time",
        re.compile(
            r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|mon|tue|wed|thu|fri|sat|sun"
            r"|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
            r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|[ap]m)\b",
            re.I,
        ),
    ),
    ("a time", re.compile(r"\b1\d{9}(?:\d{3}){0,3}\b")),
    ("an id", re.compile(r"\b[0-9a-f]{4,}\b", re.I)),
    ("a number", re.compile(r"\d+(?:[.,]\d+)*")),
)
_BLANK = "\x00"


def find_volatile(old: str, new: str, begin: int, end: int, old_end: int) -> str | None:
    """What changed between two texts that differ from `begin` to their ends, if that is only something volatile."""
    then, now = _whole_lines(old, begin, old_end), _whole_lines(new, begin, end)
    kinds: list[str] = []
    for kind, pattern in _PATTERNS:
        if then == now:
            break
        found = [*map(pattern.findall, (then, now))]
        if found[0] != found[1]:
            kinds.append(kind)
        then, now = (pattern.sub(_BLANK, text) for text in (then, now))
    return kinds[0] if then == now and kinds else None


def find_suspects(text: str) -> tuple[int, int] | None:
    """A time of day with seconds, or an id, in a text that there is nothing to compare with."""
    found = re.search(
        r"\b\d{1,2}:\d{2}:\d{2}\b|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b|\b1[6-9]\d{8}\b", text, re.I
    )
    return found.span() if found else None


def widen(text: str, begin: int, end: int) -> tuple[int, int]:
    """The whole words that a range touches."""
    while begin > 0 and not text[begin - 1].isspace():
        begin -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return begin, end


def _whole_lines(text: str, begin: int, end: int) -> str:
    first = text.rfind("\n", 0, begin) + 1
    last = text.find("\n", end)
    return text[first : last if last >= 0 else len(text)]


class LossCause(Enum):
    VOLATILE = auto()
    """A time, an id or a counter."""
    UNSTABLE = auto()
    """Other words that begin the prompt, and changed."""
    TOOL_ORDER = auto()
    KEY_ORDER = auto()
    TOOLS_CHANGED = auto()
    REWRITTEN = auto()
    TRIMMED = auto()
    THINKING = auto()
    HOISTED = auto()
    REWORDED = auto()
    """What the model wrote, sent back in another spelling."""


def find_cause(
    request: LintedRequest, before: LintedRequest | None, change: Change, *, is_first: bool
) -> LossCause | None:
    """`is_first`: the request begins a run, and is compared with one of another run."""
    part = change.part
    if part.kind == "tool":
        return _cause_in_tools(change)
    if part.kind == "thinking":
        return LossCause.THINKING if change.kind == "removed" else LossCause.REWRITTEN
    if change.kind == "edited" and is_volatile(change):
        return LossCause.VOLATILE
    if any(part is each for one in (request, before) if one for each in one.system):
        return _cause_in_system(change, is_first=is_first)
    return _cause_in_history(request, change)


def is_volatile(change: Change) -> str | None:
    if not change.old or not change.new or change.new.label == PICTURE:
        return None
    return find_volatile(change.old.text, change.new.text, change.begin, change.end, change.old_end)


def _cause_in_tools(change: Change) -> LossCause:
    if change.kind == "moved":
        return LossCause.TOOL_ORDER
    if change.kind == "edited" and change.is_same_value:
        return LossCause.KEY_ORDER
    return LossCause.VOLATILE if change.kind == "edited" and is_volatile(change) else LossCause.TOOLS_CHANGED


def _cause_in_system(change: Change, *, is_first: bool) -> LossCause:
    """A system text that only grew, by whole lines, while its conversation went on has taken up what came later."""
    has_grown = change.kind == "inserted" or (change.kind == "edited" and _has_new_lines(change))
    return LossCause.HOISTED if has_grown and not is_first else LossCause.UNSTABLE


def _cause_in_history(request: LintedRequest, change: Change) -> LossCause | None:
    part = change.part
    if change.kind == "removed":
        return None if change.is_tail else LossCause.TRIMMED
    if change.kind == "inserted":
        return LossCause.HOISTED if part.kind == "system" else LossCause.REWRITTEN
    if part.role == "assistant" and (change.is_same_value or _differ_in_space(change)):
        return LossCause.REWORDED
    return LossCause.UNSTABLE if _is_opening(request, change) else LossCause.REWRITTEN


def _has_new_lines(change: Change) -> bool:
    assert change.old
    begins_line = change.new_words.startswith("\n") or change.old.text[: change.begin].endswith("\n")
    return not change.old_words and (begins_line or change.begin == len(change.old.text))


def _differ_in_space(change: Change) -> bool:
    old, new = (part.text if part else "" for part in (change.old, change.new))
    return "".join(old.split()) == "".join(new.split())


def _is_opening(request: LintedRequest, change: Change) -> bool:
    """Whether the assistant has not spoken yet."""
    return all(part.role != "assistant" for part in request.parts[: change.position])
