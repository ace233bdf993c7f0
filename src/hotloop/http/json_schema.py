"""Whether a value follows a JSON schema: the one validator of the project, which is `jsonschema` within bounds.

Schemas are a client's. Every keyword that is looked at counts against a budget, references lead nowhere outside the
schema, and a pattern is only tried where no text can hold it up. What cannot be told in these bounds counts as
followed.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import UnknownType, ValidationError  # type: ignore[import-untyped]
from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]
from referencing import Registry
from referencing.exceptions import Unresolvable

_MAX_KEYWORDS = 2_000
_MAX_UNIQUE = 10_000  # items that are compared with each other
_MAX_TRIES = 1_000_000  # places a pattern may be tried at, with all its repetitions
_MAX_PATTERN = 1_000
_MAX_PATTERNS = 32  # of the names of one object
_MAX_REASON = 300
_AS_THEY_ARE = {"const", "default", "enum", "examples"}
_LISTING = ("enum", "required", "type")
_NAMED = ("patternProperties", "additionalProperties", "unevaluatedProperties")
# What looks like a repetition and is none, then: a group that is repeated (what is in it may be too), a repetition that
# may go on, and a choice of two ways.
_REPEATED = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?|(\)(?:[*+]|\{(?!1\})))|([*+]|\{\d*,\d*\})|([?|])", re.DOTALL
)
_left: ContextVar[list[int]] = ContextVar("keywords left")


class _Exhausted(Exception):
    """The budget is spent."""


# What `jsonschema` may raise where a schema is none, or leads nowhere.
SCHEMA_ERRORS: tuple[type[Exception], ...] = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)
SCHEMA_ERRORS += (_Exhausted, ValueError, Unresolvable, UnknownType, re.error)


def first_violation(value: Any, schema: Any) -> str:
    """Where a value does not follow its schema, and how; empty if it does, or if that cannot be told."""
    if not isinstance(schema, Mapping):
        return "nothing is allowed" if schema is False else ""
    _left.set([_MAX_KEYWORDS])
    try:
        longest = max(map(len, _strings(value)), default=0)
        kind = _VALIDATORS.get(validator_for(schema, default=Draft202012Validator), _VALIDATORS[Draft202012Validator])
        error = next(kind(_trim(schema, longest), registry=Registry()).iter_errors(value), None)
    except SCHEMA_ERRORS:
        return ""
    return _tell(error) if error else ""


def _tell(error: Any) -> str:
    """The place, and the keyword with what it asks for: nothing of the value, which may be private."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    asked, place = error.validator_value, place.removeprefix(".") or "it"
    is_plain = isinstance(asked, str | int | float) or (isinstance(asked, list) and error.validator in _LISTING)
    if not place.isascii() or not place.isprintable():
        place = ascii(place)
    return f"{place} breaks {error.validator}{f' {json.dumps(asked)}' if is_plain else ''}"[:_MAX_REASON]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _strings(part)


def _trim(schema: Any, longest: int) -> Any:
    """The schema without patterns that could hold up whoever tries them on so long a text."""
    if isinstance(schema, list):
        return [_trim(part, longest) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    trimmed = {key: part if key in _AS_THEY_ARE else _trim(part, longest) for key, part in schema.items()}
    if isinstance(schema.get("pattern"), str) and not _is_quick(schema["pattern"], longest):
        del trimmed["pattern"]
    patterns = schema.get("patternProperties")
    if not isinstance(patterns, Mapping):
        return trimmed
    is_quick = len(patterns) <= _MAX_PATTERNS and all(_is_quick(pattern, longest) for pattern in patterns)
    return trimmed if is_quick else {key: part for key, part in trimmed.items() if key not in _NAMED}


def _is_quick(pattern: str, num_chars: int) -> bool:
    """Whether a search takes few steps at worst. Each repetition may go back as often as the text is long, each choice
    once."""
    if len(pattern) > _MAX_PATTERN:
        return False
    kinds = [match.lastindex for match in _REPEATED.finditer(pattern)]
    num_tries = (num_chars + 1) ** (kinds.count(2) + 1) * 2 ** kinds.count(3)
    return 1 not in kinds and num_tries <= _MAX_TRIES


KeywordValidator = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


def _counted(check: KeywordValidator) -> KeywordValidator:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        left = _left.get()
        left[0] -= 1 + (len(value) // 16 if isinstance(value, list) else 0)
        if left[0] < 0:
            raise _Exhausted
        yield from check(validator, value, instance, schema) or ()

    return counted


def _check_unique(validator: Any, is_unique: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """In one pass, where the library compares all with all."""
    if is_unique is True and isinstance(instance, list):
        if len(instance) > _MAX_UNIQUE:
            raise _Exhausted
        distinct = {json.dumps(_as_number(item), sort_keys=True) for item in instance}
        if len(distinct) < len(instance):
            yield ValidationError("")


def _as_number(item: Any) -> Any:
    return int(item) if isinstance(item, float) and item.is_integer() else item


def _bound(kind: Any) -> Any:
    checks = {**kind.VALIDATORS, "uniqueItems": _check_unique}
    return extend(kind, {name: _counted(check) for name, check in checks.items()})


def _drafts() -> Iterator[Any]:
    for name in ("draft-04", "draft-06", "draft-07"):
        yield validator_for({"$schema": f"http://json-schema.org/{name}/schema#"})
    yield validator_for({"$schema": "https://json-schema.org/draft/2019-09/schema"})
    yield Draft202012Validator


_VALIDATORS = {kind: _bound(kind) for kind in _drafts()}
