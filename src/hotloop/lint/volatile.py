"""Words that change by themselves: times, dates, ids, counters. Whether two texts differ in nothing else."""

import re

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
