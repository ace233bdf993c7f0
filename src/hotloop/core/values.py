"""JSON values and the schemas they follow: what a schema lists is looked at value by value.

Exact, or not at all: a keyword that is not known here, or a pattern that could take long, is `Unsupported`. Formats are
not known here.
"""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

Schema = dict[str, Any] | bool
TYPES = ("null", "boolean", "number", "string", "array", "object")
ANNOTATIONS = frozenset({"$comment", "comment", "default", "deprecated", "description", "examples", "title"})
_NAMING = ANNOTATIONS | {"$defs", "definitions", "$schema"}
_MAX_DEPTH = 32
_MAX_TEXT = 64  # characters that a pattern is tried on
_REPEATED = re.compile(r"(?<!\\)(?:[*+?]|\{\d)")
_DIFFERENT = re.compile(r"\)[*+?{]|\(\?|\\[^dDwW.$^*+?(){}\[\]|/\\-]|\n")  # slow, or not the same in all dialects


class Unsupported(Exception):
    """A keyword cannot be said in others; the text is the reason, if it is not the keyword itself."""


class Document(Protocol):
    """The whole schema, as far as this module knows it."""

    @property
    def unknown(self) -> frozenset[str]:
        """Keywords that its draft does not know."""
        ...

    def point(self, reference: str) -> Any:
        """What a reference leads to, as it was given. Raises `Unsupported` where that is nowhere."""
        ...

    def spend(self, num_parts: int = 1) -> None:
        """Told of every schema looked at; raises `Unsupported` when these are too many."""
        ...


def listing(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values a schema lists."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def follows(value: Any, schema: Any, context: Document, depth: int = 0) -> bool:
    """Whether a value is described by a schema. Raises `Unsupported` where that cannot be told."""
    context.spend()
    if isinstance(schema, bool):
        return schema
    if depth > _MAX_DEPTH or not isinstance(schema, Mapping):
        raise Unsupported
    is_alone = "$ref" not in schema or schema.keys() <= _NAMING | {"$ref"}
    if not is_alone or schema.keys() & context.unknown:
        raise Unsupported  # what counts is a question of the draft
    look = _Look(value, schema, context, depth + 1)
    try:
        return all(look.keyword(key, part) for key, part in schema.items() if key not in _NAMING)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):  # it is no schema
        raise Unsupported from None


class _Look:
    """One value and one schema."""

    def __init__(self, value: Any, schema: Mapping[str, Any], context: Document, depth: int) -> None:
        self._value, self._schema = value, schema
        self._context, self._depth = context, depth

    def keyword(self, key: str, part: Any) -> bool:
        if key in _OF_TYPES:
            return self._of_type(key, part)
        match key:
            case "type":
                return any(map(self._is_of, [part] if isinstance(part, str) else part))
            case "enum" | "const":
                return freeze(self._value) in {*map(freeze, part if key == "enum" else [part])}
            case "allOf":
                return all(self._follows(each) for each in part)
            case "anyOf":
                return any(self._follows(each) for each in part)
            case "oneOf":
                return sum([self._follows(each) for each in part]) == 1
            case "not":
                return not self._follows(part)
            case "if":
                return self._follows(self._schema.get("then" if self._follows(part) else "else", True))
            case "then" | "else":
                return True
            case "$ref":
                return self._follows(self._context.point(part))
        raise Unsupported

    def _follows(self, schema: Any, *, value: Any = ...) -> bool:
        return follows(self._value if value is ... else value, schema, self._context, self._depth)

    def _is_of(self, kind: str) -> bool:
        if kind == "integer":
            return type_of(self._value) == "number" and self._value % 1 == 0
        return kind == type_of(self._value)

    def _of_type(self, key: str, part: Any) -> bool:
        kind = type_of(self._value)
        for known, its_kind in ((_OF_STRINGS, "string"), (_OF_NUMBERS, "number"), (_OF_ARRAYS, "array")):
            if key in known:
                return kind != its_kind or known[key](self._value, part)
        if key == "items":
            if isinstance(part, list) or "prefixItems" in self._schema:
                raise Unsupported
            return kind != "array" or all(self._follows(part, value=item) for item in self._value)
        return kind != "object" or self._property(key, part)

    def _property(self, key: str, part: Any) -> bool:
        value: dict[str, Any] = self._value
        match key:
            case "required":
                return all(name in value for name in part)
            case "minProperties":
                return len(value) >= _number(part)
            case "maxProperties":
                return len(value) <= _number(part)
            case "properties":
                return all(self._follows(part[name], value=value[name]) for name in value if name in part)
            case "dependencies" | "dependentRequired" | "dependentSchemas":
                return all(self._depends(part[name]) for name in value if name in part)
            case "propertyNames":
                return all(self._follows(part, value=name) for name in value)
            case "patternProperties":
                return all(
                    self._follows(part[p], value=value[name]) for name in value for p in part if _matches(name, p)
                )
        known, patterns = self._schema.get("properties", {}), self._schema.get("patternProperties", {})
        rest = [name for name in value if name not in known and not any(_matches(name, p) for p in patterns)]
        return all(self._follows(part, value=value[name]) for name in rest)

    def _depends(self, need: Any) -> bool:
        return all(name in self._value for name in need) if isinstance(need, list) else self._follows(need)


def _matches(text: str, pattern: Any) -> bool:
    is_plain = isinstance(pattern, str) and (text + pattern).isascii() and text.isprintable()
    if not is_plain or max(len(text), len(pattern)) > _MAX_TEXT:
        raise Unsupported
    if _DIFFERENT.search(pattern) or len(_REPEATED.findall(pattern)) > 3:
        raise Unsupported
    try:
        return re.search(pattern, text, re.ASCII) is not None
    except re.error:
        raise Unsupported from None


def _number(limit: Any) -> float:
    if type_of(limit) != "number":
        raise Unsupported  # as it was written before draft 6
    return float(limit) if isinstance(limit, float) else int(limit)


Assertion = Callable[[Any, Any], bool]
_OF_STRINGS: dict[str, Assertion] = {
    "minLength": lambda value, limit: len(value) >= limit,
    "maxLength": lambda value, limit: len(value) <= limit,
    "pattern": _matches,
}
_OF_NUMBERS: dict[str, Assertion] = {
    "minimum": lambda value, limit: value >= _number(limit),
    "maximum": lambda value, limit: value <= _number(limit),
    "exclusiveMinimum": lambda value, limit: value > _number(limit),
    "exclusiveMaximum": lambda value, limit: value < _number(limit),
}
_OF_ARRAYS: dict[str, Assertion] = {
    "minItems": lambda value, limit: len(value) >= limit,
    "maxItems": lambda value, limit: len(value) <= limit,
    "uniqueItems": lambda value, asked: not asked or len({*map(freeze, value)}) == len(value),
}
_OF_OBJECTS = {"required", "minProperties", "maxProperties", "properties", "patternProperties"}
_OF_OBJECTS |= {"additionalProperties", "dependencies", "dependentRequired", "dependentSchemas", "propertyNames"}
_OF_TYPES = {*_OF_STRINGS, *_OF_NUMBERS, *_OF_ARRAYS, *_OF_OBJECTS, "items"}


def types_of(schema: Schema) -> set[str]:
    """The types a schema allows; `number` covers `integer`."""
    if isinstance(schema, bool):
        return {*TYPES} if schema else set()
    kinds = schema.get("type", TYPES)
    named = {kinds} if isinstance(kinds, str) else {*kinds}
    values: Sequence[Any] | None = listing(schema)
    if values is None:
        return named
    return {type_of(value) for value in values} & (named | ({"number"} if "integer" in named else set()))


def type_of(value: Any) -> str:
    kinds = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def freeze(value: Any) -> Hashable:
    """Equal for two values if JSON has them equal: 1 is 1.0 there, and not true."""
    if isinstance(value, list):
        return "array", tuple(map(freeze, value))
    if isinstance(value, dict):
        return "object", frozenset((key, freeze(part)) for key, part in value.items())
    return type_of(value), value
