"""What an answer may look like, as a value: two equal grammars are compiled once.

A JSON schema is reduced to what decides which JSON it describes, in one spelling: two that differ in their words alone
are the same shape. Schemas come from strangers: what is wrong with one is said in one line, and nothing of it can
change how the JSON is spaced. What the compiler cannot do it refuses by name.
"""

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from hotloop.core.errors import RequestError
from hotloop.core.references import DEFINITIONS, has_names, point, without_unused
from hotloop.core.rewrite import (
    EXACT_FORMATS,
    both,
    negate,
    rewrite_condition,
    rewrite_dependencies,
    rewrite_format,
    rewrite_least,
    rewrite_names,
    rewrite_one_of,
    rewrite_unique,
)
from hotloop.core.values import TYPES, Schema, Unsupported, follows, listing

Path = tuple[Any, ...]
"""The keys and indexes that lead from the whole schema to a part of it."""

_MAX_DEPTH = 64
_MAX_SUBSCHEMAS = 20_000
_MAX_JUDGED = 256  # listed values that are looked at one by one
_WORDS = {"$comment", "default", "deprecated", "description", "examples", "title"}
_ANNOTATIONS = _WORDS | {"contentEncoding", "contentMediaType", "readOnly", "writeOnly"}
_OF_ARRAYS = {"additionalItems", "contains", "items", "unevaluatedItems"}
_OF_OBJECTS = {"additionalProperties", "propertyNames", "unevaluatedProperties"}
_SUBSCHEMA = _OF_ARRAYS | _OF_OBJECTS | {"else", "if", "not", "then"}
_SUBSCHEMA_LISTS = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
_NAMED_PLACES = [(key,) for key in DEFINITIONS]
_SUBSCHEMA_MAPS = {*DEFINITIONS, "dependentSchemas", "patternProperties", "properties"}
_BESIDE_OLD_REF = {"$ref", "$schema", "$defs", "definitions"}
# What is said in other keywords, in this order: those behind see what those before have made of the rest.
_REWRITTEN = (
    *("format", "pattern", "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
    *("unevaluatedProperties", "propertyNames", "minProperties", "dependencies", "dependentRequired"),
    *("dependentSchemas", "oneOf", "not", "if", "then", "else", "$dynamicRef", "$recursiveRef"),
)
_CALLED = {"oneOf": "'oneOf' with cases that may overlap", "pattern": "look-around or a back-reference in a 'pattern'"}
# Beside listed values these are looked at value by value.
_JUDGED = {"allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "propertyNames", "uniqueItems"}
_IN_PLACE = {"$ref", "allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas", "dependencies"}
_COUNTS = {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
_BOUNDS = {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"}
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys((*_SUBSCHEMA_LISTS, "enum", "required"), list),
    **dict.fromkeys((*_SUBSCHEMA_MAPS, "dependencies", "dependentRequired"), Mapping),
    **dict.fromkeys((*_COUNTS, *_BOUNDS), (int, float)),
    **dict.fromkeys(("$ref", "pattern"), str),
    "type": (str, list),
}
# Formats that are kept to; others are annotations. So is ipv6: the compiler knows no address that ends in an IPv4 one.
_FORMATS = {"date", "date-time", "duration", "email", "hostname", "ipv4", "time", "uri", "uuid"}
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_JSON_TYPES = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
_JSON_TYPES |= {list: "a list", tuple: "a list"}

_TYPE_NAMES = [*TYPES, "integer"]
_SINCE_2019 = frozenset({"dependentRequired", "dependentSchemas", "maxContains", "minContains"})
_SINCE_2019 |= {"unevaluatedItems", "unevaluatedProperties"}
# Keywords that older drafts do not know, and ignore.
_UNKNOWN = (
    (re.compile(r"draft-0[34]\b"), _SINCE_2019 | {"contains", "else", "if", "propertyNames", "then"}),
    (re.compile(r"draft-0[56]\b"), _SINCE_2019 | {"else", "if", "then"}),
    (re.compile(r"draft-07\b"), _SINCE_2019),
)
_OLD_DRAFT = re.compile(r"draft-0[34567]\b")
_ESCAPE = re.compile(r"\\(.)|[\[\]]", re.DOTALL)
# A class that is not closed goes on to the end, so that no text is looked at twice.
_LOOKING = re.compile(r"\\(?![1-9k]).|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\\?\Z)|(\(\?<?[=!]|\\[1-9k])", re.DOTALL)
_BOM = "\ufeff"  # JavaScript, whose patterns JSON Schema takes over, counts it as a space


class _Refused(RequestError):
    """No grammar can keep to it."""


class MalformedSchema(RequestError):
    """It is no JSON schema, whatever may be enforced of one."""


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
    """The schema as text for a grammar, where `%json` can embed it too. Raises `RequestError` if it is malformed, or
    has what no grammar can keep to."""
    reduced = _Reduction(schema).reduce(schema)
    if reduced is False:
        raise _wrong("the schema is false: it allows no value at all")
    rules = {} if reduced is True else reduced
    try:
        return json.dumps({**rules, "x-guidance": _SPACING}, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise _wrong("the schema has a value that is not JSON, or is nested too deeply") from None


def relax(schema: Any) -> tuple[Any, tuple[str, ...]]:
    """The schema without what no grammar can keep to, and what that is: `properties.tags: 'uniqueItems'`. Of cases that
    overlap any will do."""
    reduction = _Reduction(schema, is_loose=True)
    reduction.reduce(schema)
    if reduction.dropped:
        schema = copy.deepcopy(schema)
    for path, keyword in reduction.dropped:
        _drop(schema, path, keyword)
    return schema, tuple(_place(path, repr(keyword)) for path, keyword in reduction.dropped)


def _drop(schema: Any, path: Path, keyword: str) -> None:
    """Take a keyword out of a schema; `oneOf` becomes `anyOf`."""
    for key in path:
        schema = schema[key]
    value = schema.pop(keyword)
    if keyword == "oneOf":
        schema |= both({**schema}, {"anyOf": value})


def _place(path: Path, text: str) -> str:
    place = ".".join(map(str, path))
    return f"{place if place.isprintable() else ascii(place)}: {text}" if path else text


class _Reduction:
    """Goes through a schema once, and not for ever. `is_loose`: what cannot be kept to is dropped, not refused."""

    def __init__(self, schema: Any, *, is_loose: bool = False) -> None:
        draft = str(schema.get("$schema", "")) if isinstance(schema, Mapping) else ""
        self.dropped: list[tuple[Path, str]] = []
        self._root = schema
        self._is_old = bool(_OLD_DRAFT.search(draft))
        self.unknown = next((names for old, names in _UNKNOWN if old.search(draft)), frozenset())
        self._is_loose = is_loose
        self._num_left = self._num_judgeable = _MAX_SUBSCHEMAS
        self._depth = 0
        self._is_negated = False  # whether what is looked at will be negated
        self._following: list[str] = []  # references on the way to what is looked at

    @cached_property
    def _has_names(self) -> bool:
        return has_names(self._root)

    def reduce(self, schema: Any, path: Path = ()) -> Schema:
        values = self._listed(schema)
        if values is None:
            return self._reduce(schema, path)
        depth, is_negated, num_dropped = self._depth, self._is_negated, len(self.dropped)
        refusal: _Refused | None = None
        reduced: Schema = False
        try:
            reduced = self._reduce(schema, path)
        except _Refused as error:
            refusal = error
        self._depth, self._is_negated = depth, is_negated
        self._num_left, self._num_judgeable = self._num_judgeable, self._num_left
        try:
            values = [value for value in values if follows(value, schema, self)]
        except Unsupported:
            if refusal:
                raise refusal from None
            return reduced
        finally:
            self._num_left, self._num_judgeable = self._num_judgeable, self._num_left
        del self.dropped[num_dropped:]
        return {"enum": values} if values else False

    def _listed(self, schema: Any) -> list[Any] | None:
        """The values that are all there can be, where the rest is best looked at value by value."""
        if not isinstance(schema, Mapping) or schema.keys().isdisjoint(_JUDGED) or self._has_names:
            return None
        also = schema.get("allOf")
        parts = [part for part in [schema, *(also if isinstance(also, list) else ())] if isinstance(part, Mapping)]
        found = next((values for part in parts if isinstance(values := listing(part), list)), None)
        return None if found is None or len(found) > _MAX_JUDGED else found

    def _reduce(self, schema: Any, path: Path) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise _malformed(_place(path, f"a schema must be an object or a boolean, not {json_type(schema)}"))
        self._num_left -= 1
        if self._depth > _MAX_DEPTH or self._num_left < 0:
            raise _wrong(f"a schema may be {_MAX_DEPTH} levels deep and have {_MAX_SUBSCHEMAS:,} parts; this has more")
        if self._is_old and "$ref" in schema:
            # Before 2019 what stands beside a reference does not count, though others may refer to it.
            schema = {key: value for key, value in schema.items() if key in _BESIDE_OLD_REF}
        if schema is self._root:
            schema = without_unused(schema)
        self._depth += 1
        parts = {
            key: self._value(key, value, path)
            for key, value in schema.items()
            if key not in self.unknown and not _is_idle(key, value)
        }
        self._depth -= 1
        result: Schema = parts
        if parts.keys().isdisjoint(_REWRITTEN):
            return parts
        if path[:1] in _NAMED_PLACES and self._has_names:
            return parts  # something in it may be meant by name, and must stay where it is
        for keyword in [keyword for keyword in _REWRITTEN if keyword in parts]:
            if keyword == "not" and self._is_negated:
                continue  # the negation around it undoes it
            result = self._rewrite(result, keyword, parts, path)
        return result

    def _value(self, key: str, value: Any, path: Path) -> Any:
        here = (*path, key)
        if key == "not":
            self._is_negated = not self._is_negated
            negated = self.reduce(value, here)
            self._is_negated = not self._is_negated
            return negated
        if key in _SUBSCHEMA and not isinstance(value, list):
            return self.reduce(value, here)
        if _is_malformed(key, value):
            raise _malformed(_place(path, f"{key!r} cannot be {_shown(value)}"))
        if key in _SUBSCHEMA_LISTS:
            return [self.reduce(item, (*here, i)) for i, item in enumerate(value)]
        if key in _SUBSCHEMA_MAPS:
            return {name: self.reduce(item, (*here, name)) for name, item in value.items()}
        if key == "dependencies":
            needs = value.items()
            return {name: need if isinstance(need, list) else self.reduce(need, (*here, name)) for name, need in needs}
        if key in _COUNTS and isinstance(value, float) and value.is_integer():
            return int(value)
        return _as_javascript(value) if key == "pattern" else value

    def _rewrite(self, schema: Schema, keyword: str, parts: Mapping[str, Any], path: Path) -> Schema:
        if isinstance(schema, bool):
            return schema
        rest = {key: value for key, value in schema.items() if key != keyword}
        try:
            return self._say(rest, keyword, parts[keyword], parts)
        except Unsupported:
            if not self._is_loose or self._following:
                raise _wrong(_place(path, f"{_CALLED.get(keyword, repr(keyword))} is not supported")) from None
        self.dropped.append((path, keyword))
        return both(rest, {"anyOf": parts["oneOf"]}) if keyword == "oneOf" else rest

    def _say(self, rest: dict[str, Any], keyword: str, value: Any, parts: Mapping[str, Any]) -> Schema:
        """What stands beside a keyword, and what the keyword says in other words."""
        match keyword:
            case "format":
                return rewrite_format(rest, value) if value in EXACT_FORMATS else {**rest, "format": value}
            case "pattern" if not any(match[1] for match in _LOOKING.finditer(value)):
                return {**rest, "pattern": value}
            case "dependencies" | "dependentRequired" | "dependentSchemas":
                return rewrite_dependencies(rest, value)
            case "propertyNames":
                return rewrite_names(rest, value)
            case "uniqueItems":
                return rewrite_unique(rest, self)
            case "minProperties" if isinstance(value, int):
                return rewrite_least(rest, value)
            case "unevaluatedProperties" if not rest.keys() & _IN_PLACE:
                return {"additionalProperties": value, **rest}
            case "oneOf":
                return rewrite_one_of(rest, value, self)
            case "not":
                return both(rest, negate(value, rest, self))
            case "if":
                return rewrite_condition(rest, value, parts.get("then", True), parts.get("else", True), self)
            case "then" | "else":
                return rest
        raise Unsupported

    def spend(self, num_parts: int = 1) -> None:
        self._num_left -= num_parts
        if self._num_left < 0:
            raise Unsupported

    def point(self, reference: str) -> Any:
        try:
            return point(self._root, reference)
        except (LookupError, ValueError):
            raise Unsupported from None

    def resolve(self, reference: str) -> Schema:
        if reference in self._following or self._has_names:
            raise Unsupported
        self._following.append(reference)
        was_negated, self._is_negated = self._is_negated, False
        try:
            return self.reduce(point(self._root, reference))
        except (RequestError, LookupError, ValueError, RecursionError):
            raise Unsupported from None
        finally:
            self._is_negated = was_negated
            self._following.pop()


def _is_malformed(key: str, value: Any) -> bool:
    kind: Any = _KINDS.get(key, object)
    if not isinstance(value, kind) or (key in _COUNTS and isinstance(value, bool)):
        return True
    if key in ("dependencies", "dependentRequired"):
        return any(_is_malformed("required", need) for need in value.values() if isinstance(need, list))
    if key == "type":
        return not all(each in _TYPE_NAMES for each in (value if isinstance(value, list) else [value]))
    return key == "required" and not all(isinstance(each, str) for each in value)


def _shown(value: Any) -> str:
    return f"{value!r:.100}" if isinstance(value, str) else json_type(value)


def _is_idle(key: str, value: Any) -> bool:
    """Whether a keyword changes nothing about which JSON is valid."""
    return (
        key in _ANNOTATIONS
        or (key == "format" and (not isinstance(value, str) or value not in _FORMATS))
        or (key == "uniqueItems" and value is False)
        or (key == "propertyNames" and value in (True, {}, {"type": "string"}))  # as every name is
        or key == "x-guidance"
    )


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


def _malformed(reason: str) -> MalformedSchema:
    return MalformedSchema(reason, param="grammar")


def _wrong(reason: str) -> RequestError:
    return _Refused(reason, param="grammar")
