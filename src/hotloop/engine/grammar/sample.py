"""A short text that matches a regular expression, if that uses only what all dialects have in common.

Python's own parser reads the pattern, and every choice in it is the first or the least. What it cannot read gives no
text, and the text is a guess: callers check that it matches.
"""

import re
import string
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_MAX_CHARS = 64
_CHARS = "a0A" + string.ascii_letters + string.digits + " " + string.punctuation
_WARNED = re.compile(r"\[\[|--|&&|~~|\|\|")
_LISTED = ("LITERAL", "RANGE")
_CATEGORIES = {"CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w"}


def make_sample(pattern: str) -> str:
    """Raises ValueError where none was found."""
    if _WARNED.search(pattern):
        raise ValueError("a class that other dialects read in another way")
    try:
        return _write(_parser.parse(pattern))
    except (re.error, KeyError, OverflowError, RecursionError):
        raise ValueError("it cannot be read") from None


def _write(parts: Any) -> str:
    return "".join(_write_part(str(kind), argument) for kind, argument in parts)[:_MAX_CHARS]


def _write_part(kind: str, argument: Any) -> str:
    match kind:
        case "LITERAL":
            return chr(argument)
        case "NOT_LITERAL":
            return next(char for char in _CHARS if ord(char) != argument)
        case "ANY":
            return _CHARS[0]
        case "IN":
            own = [chr(each if str(name) == "LITERAL" else each[0]) for name, each in argument if str(name) in _LISTED]
            return next((char for char in (*_CHARS, *own) if _is_in(char, argument)), "")
        case "BRANCH":
            return _write(argument[1][0])
        case "SUBPATTERN":
            return _write(argument[-1])
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _write(argument[2]) * min(int(argument[0]), _MAX_CHARS)
        case "AT":
            return ""
    raise ValueError(kind)


def _is_in(char: str, items: Any) -> bool:
    found = False
    for kind, argument in items:
        match str(kind):
            case "LITERAL":
                found |= ord(char) == argument
            case "RANGE":
                found |= argument[0] <= ord(char) <= argument[1]
            case "CATEGORY":
                name = str(argument).replace("_NOT", "")
                found |= (re.match(_CATEGORIES[name], char) is not None) == (name == str(argument))
    return found != (str(items[0][0]) == "NEGATE")
