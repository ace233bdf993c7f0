"""What an answer may look like, as a value: two equal grammars are compiled once.

A JSON schema is reduced to what decides which JSON it describes, in one spelling: two that differ in their words alone
are the same shape. Schemas come from strangers: what is wrong with one is said in one line, and nothing of it can
change how the JSON is spaced. What the compiler cannot do it refuses by name.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hotloop.core.errors import RequestError

_MAX_DEPTH = 64
_MAX_SUBSCHEMAS = 20_000
_WORDS = {"$comment", "default", "deprecated", "description", "examples", "title"}
_ANNOTATIONS = _WORDS | {"contentEncoding", "contentMediaType", "readOnly", "writeOnly"}
_OF_ARRAYS = {"additionalItems", "contains", "items", "unevaluatedItems"}
_OF_OBJECTS = {"additionalProperties", "propertyNames", "unevaluatedProperties"}
_SUBSCHEMA = _OF_ARRAYS | _OF_OBJECTS | {"else", "if", "not", "then"}
_SUBSCHEMA_LISTS = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
_SUBSCHEMA_MAPS = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
_BESIDE_OLD_REF = {"$ref", "$schema", "$defs", "definitions"}
_COUNTS = {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
# Formats that are kept to; others are annotations. So is ipv6: the compiler knows no address that ends in an IPv4 one.
_FORMATS = {"date", "date-time", "duration", "email", "hostname", "ipv4", "time", "uri", "uuid"}
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_JSON_TYPES = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
_JSON_TYPES |= {list: "a list", tuple: "a list"}

_OLD_DRAFT = re.compile(r"draft-0[34567]\b")
_ESCAPE = re.compile(r"\\(.)|[\[\]]", re.DOTALL)
_BOM = "\ufeff"  # JavaScript, whose patterns JSON Schema takes over, counts it as a space


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language that the whole answer must belong to."""

    kind: Literal["json_schema", "regex", "lark"]
    """`lark` is llguidance's dialect: `%json {...}` embeds a JSON schema, `<[12]>` is the token with that id."""
    text: str
    begun: str = ""
    """What the answer begins with: it is in the prompt, and the model goes on from there."""


def json_schema(schema: Any) -> Grammar:
    """The grammar of the JSON texts that a schema describes, written as `json.dumps` writes them."""
    return Grammar("json_schema", schema_text(schema))


def schema_text(schema: Any) -> str:
    """The schema as text for a grammar, where `%json` can embed it too. Raises `RequestError` if it is malformed."""
    reduced = _Reduction(schema).reduce(schema)
    if reduced is False:
        raise _wrong("the schema is false: it allows no value at all")
    rules = {} if reduced is True else reduced
    try:
        return json.dumps({**rules, "x-guidance": _SPACING}, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise _wrong("the schema has a value that is not JSON, or is nested too deeply") from None


class _Reduction:
    """Goes through a schema once, and not for ever."""

    def __init__(self, schema: Any) -> None:
        draft = str(schema.get("$schema", "")) if isinstance(schema, Mapping) else ""
        self._is_old = bool(_OLD_DRAFT.search(draft))
        self._num_left = _MAX_SUBSCHEMAS

    def reduce(self, schema: Any, depth: int = 0) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise _wrong(f"a schema must be an object or a boolean, not {json_type(schema)}")
        self._num_left -= 1
        if depth > _MAX_DEPTH or self._num_left < 0:
            raise _wrong(f"a schema may be {_MAX_DEPTH} levels deep and have {_MAX_SUBSCHEMAS:,} parts; this has more")
        if self._is_old and "$ref" in schema:
            # Before 2019 what stands beside a reference does not count, though others may refer to it.
            schema = {key: value for key, value in schema.items() if key in _BESIDE_OLD_REF}
        return {key: self._value(key, value, depth + 1) for key, value in schema.items() if not _is_idle(key, value)}

    def _value(self, key: str, value: Any, depth: int) -> Any:
        if key in _SUBSCHEMA and not isinstance(value, list):
            return self.reduce(value, depth)
        if key in _SUBSCHEMA_LISTS:
            return [self.reduce(item, depth) for item in _expect(list, key, value)]
        if key in _SUBSCHEMA_MAPS:
            return {name: self.reduce(item, depth) for name, item in _expect(Mapping, key, value).items()}
        if key in _COUNTS and isinstance(value, float) and value.is_integer():
            return int(value)
        return _as_javascript(_expect(str, key, value)) if key == "pattern" else value


def _is_idle(key: str, value: Any) -> bool:
    """Whether a keyword changes nothing about which JSON is valid."""
    return (
        key in _ANNOTATIONS
        or (key == "format" and (not isinstance(value, str) or value not in _FORMATS))
        or (key == "uniqueItems" and value is False)
        or (key == "propertyNames" and value in (True, {}, {"type": "string"}))  # as every name is
        or key == "x-guidance"
    )


def _expect(kind: type[Any], key: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise _wrong(f"{key!r} cannot be {json_type(value)}")
    return value


def _as_javascript(pattern: str) -> str:
    r"""A pattern whose \s means what JavaScript means by it."""
    in_class = False

    def replace(match: re.Match[str]) -> str:
        nonlocal in_class
        match match[0]:
            case "[" | "]" as bracket:
                in_class = bracket == "["
            case r"\s":
                return rf"\s{_BOM}" if in_class else rf"[\s{_BOM}]"
            case r"\S" if not in_class:
                return rf"[^\s{_BOM}]"
        return match[0]

    return _ESCAPE.sub(replace, pattern)


def json_type(value: Any) -> str:
    """What JSON calls a value, with its article."""
    return _JSON_TYPES.get(type(value), "an object")


def _wrong(reason: str) -> RequestError:
    return RequestError(reason, param="grammar")
