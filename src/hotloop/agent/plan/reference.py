"""References of one step of a plan to what another gave.

    "${a}"               the whole result of step a
    "${a.items[0].id}"   a part of it, where it is JSON
    "from ${a.city}"     the same, within a text

A path names members of objects and places in lists, and nothing else: it is looked up in JSON, never in an object of
ours. Other things a dollar can mean, such as `$5` or `${HOME}`, are left as they are.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

STEP_ID = r"[a-z][a-z0-9_]{0,31}"
MAX_CHARS = 1_000_000
"""Most characters of results that one step may refer to."""

_MAX_SHOWN = 100  # characters of a reference, in an error
_REFERENCE = re.compile(rf"\$\{{({STEP_ID})((?:[.\[][^{{}}]*)?)\}}")
_PART = re.compile(r"\.([^.\[\]]+)|\[([0-9]{1,9})\]")


class BadReference(Exception):
    """A reference cannot be read, or leads nowhere; `str(error)` says which and why."""


class Reference(NamedTuple):
    step_id: str
    path: tuple[str | int, ...]
    text: str
    """As it was written, or the beginning of that."""


def find_references(value: Any) -> Iterator[Reference]:
    """All references in a value, in their order. Raises BadReference."""
    match value:
        case str():
            yield from map(_parse, _REFERENCE.finditer(value))
        case list():
            for item in value:
                yield from find_references(item)
        case dict():
            for item in value.values():
                yield from find_references(item)


def fill(value: Any, results: Mapping[str, str], schema: Any) -> Any:
    """A value with what its references stand for. A tool that wants a text gets one. Raises BadReference."""
    size = sum(len(results[reference.step_id]) for reference in find_references(value))
    if size > MAX_CHARS:
        raise BadReference(f"its references stand for {size:,} characters; at most {MAX_CHARS:,} are taken")
    return _fill(value, results, schema)


def _fill(value: Any, results: Mapping[str, str], schema: Any) -> Any:
    match value:
        case str():
            return _fill_text(value, results, wants_text=_wants_text(schema))
        case list():
            return [_fill(item, results, _member(schema, "items")) for item in value]
        case dict():
            properties = _member(schema, "properties")
            return {key: _fill(item, results, _member(properties, key)) for key, item in value.items()}
    return value


def _fill_text(text: str, results: Mapping[str, str], *, wants_text: bool) -> Any:
    whole = _REFERENCE.fullmatch(text)
    if whole and not wants_text:
        return _value(_parse(whole), results)
    return _REFERENCE.sub(lambda match: _text(_parse(match), results), text)


def _text(reference: Reference, results: Mapping[str, str]) -> str:
    if not reference.path:
        return results[reference.step_id]
    value = _value(reference, results)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(reference: Reference, results: Mapping[str, str]) -> Any:
    result = results[reference.step_id]
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        if reference.path:
            raise BadReference(f"{reference.text} leads nowhere: the result is not JSON") from None
        return result
    for part in reference.path:
        value = _look_up(value, part, reference)
    return value


def _look_up(value: Any, part: str | int, reference: Reference) -> Any:
    if isinstance(part, int) and isinstance(value, list) and part < len(value):
        return value[part]
    if isinstance(part, str) and isinstance(value, dict) and part in value:
        return value[part]
    raise BadReference(f"{reference.text} leads nowhere: there is no {part!r}")


def _parse(match: re.Match[str]) -> Reference:
    text = match[0][:_MAX_SHOWN]
    if not re.fullmatch(f"(?:{_PART.pattern})*", match[2]):
        raise BadReference(f"{text} is no reference")
    path = tuple(name or int(place) for name, place in _PART.findall(match[2]))
    return Reference(match[1], path, text)


def _wants_text(schema: Any) -> bool:
    """Whether nothing but a text will do, or null."""
    if not isinstance(schema, Mapping):
        return False
    if any_of := schema.get("anyOf"):
        return all(_wants_text(each) or each == {"type": "null"} for each in any_of)
    return bool(schema.get("type") == "string")


def _member(schema: Any, key: str) -> Any:
    """What a schema says of a part of a value; nothing if it does not, or says it elsewhere."""
    return schema.get(key) if isinstance(schema, Mapping) else None
