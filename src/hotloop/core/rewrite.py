"""Keywords that the grammar's compiler does not know, said in those it does: exactly, or not at all.

Each function takes what stands beside a keyword, reduced already, and gives a schema that describes the same JSON.
`Unsupported` is for what cannot be said. Negations know what is certain anyway (`known`): of an enum they leave the
other values, where they would otherwise need a pattern.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, permutations
from math import comb
from typing import Any, Protocol

from hotloop.core.values import TYPES, Schema, Unsupported, freeze, listing, type_of, types_of


class Context(Protocol):
    """The whole schema, as far as this module knows it."""

    def resolve(self, reference: str) -> Schema:
        """What a reference leads to. Raises `Unsupported` if that is nowhere, a circle, or what cannot be said."""
        ...

    def spend(self, num_parts: int = 1) -> None:
        """Told of every schema looked at; raises `Unsupported` when these are too many."""
        ...


_MAX_BRANCHES = 32  # of what takes the place of one keyword
_MAX_SEQUENCES = 400  # of a list without repetitions
_MAX_WORD_CHARS = 1000  # of all strings that a pattern leaves out
_VALUES_A_PART = 32  # that take as long to look at as a schema
_MAX_DEPTH = 12  # of schemas compared or negated
_NAMING = {"$defs", "definitions", "$schema", "$id", "$anchor", "id"}
_IDLE = [("additionalProperties", True), ("items", True), ("items", {}), ("additionalProperties", {})]
_OPPOSITES = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}

_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_HOUR, _MINUTE, _REST = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]", r"(?:\.[0-9]+)?"
# A leap second is one at midnight in Greenwich; which local times that is elsewhere is not looked at.
_TIME = (
    f"(?:{_HOUR}:{_MINUTE}:{_MINUTE}{_REST}(?:[zZ]|[+-]{_HOUR}:{_MINUTE})|23:59:60{_REST}(?:[zZ]|[+-]00:00)"
    f"|{_HOUR}:{_MINUTE}:60{_REST}[+-](?:(?:0[1-9]|1[0-9]|2[0-3]):{_MINUTE}|00:(?:0[1-9]|[1-5][0-9])))"
)
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PART = "[0-9a-fA-F]{1,4}"
_SHORTENED = (rf"(?:{_PART}:){{1,{7 - num}}}(?::{_PART}){{1,{num}}}" for num in range(1, 7))
_IPV6 = "|".join([rf"(?:{_PART}:){{7}}{_PART}", *_SHORTENED, rf"(?:{_PART}:){{1,7}}:", rf":(?::{_PART}){{1,7}}", "::"])
_EMAIL = (
    rf'(?:{_ATOM}(?:\.{_ATOM})*|"(?:[ !#-\[\]-~]|\\[ -~])*")'
    rf"@(?:{_LABEL}(?:\.{_LABEL})*|\[(?:{_BYTE}(?:\.{_BYTE}){{3}}|IPv6:(?:{_IPV6}))\])"
)
EXACT_FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[tT]{_TIME}$",
    "email": f"^{_EMAIL}$",
}
"""Formats that the compiler takes too widely (the 30th of February) or too narrowly (a quoted name), as patterns."""


def both(schema: Schema, other: Schema) -> Schema:
    """What both describe. What is added comes last, so that properties keep their order."""
    if isinstance(schema, bool) or isinstance(other, bool):
        return other if schema is True else schema if other is True else False
    if other.keys() == {"anyOf"} and "anyOf" not in schema:
        return {**schema, **other}
    if other.keys() == {"enum"} and "enum" in schema:
        allowed = {*map(freeze, other["enum"])}
        shared = [value for value in schema["enum"] if freeze(value) in allowed]
        return {**schema, "enum": shared} if shared else False
    return {**schema, "allOf": [*schema.get("allOf", ()), other]} if schema else other


def some(options: Sequence[Schema]) -> Schema:
    """What at least one of them describes."""
    if any(option is True for option in options):
        return True
    left = [option for option in options if option is not False]
    if len(left) > _MAX_BRANCHES:
        raise Unsupported
    return False if not left else left[0] if len(left) == 1 else {"anyOf": left}


def rewrite_format(rest: dict[str, Any], name: str) -> Schema:
    pattern = {"pattern": EXACT_FORMATS[name]}
    return both(rest, pattern) if "pattern" in rest else {**rest, **pattern}


def rewrite_dependencies(rest: Schema, needs: Mapping[str, Any]) -> Schema:
    """A property that calls for others, or for a schema of the whole object: it is not there, or they are too."""
    for name, need in needs.items():
        wanted: Schema = {"required": [name, *need]} if isinstance(need, list) else both({"required": [name]}, need)
        rest = both(rest, some([{"properties": {name: False}}, wanted]))
    return rest


def rewrite_names(rest: dict[str, Any], names: Schema) -> Schema:
    """`propertyNames` as the properties there may be, or as the pattern of their names."""
    properties, extra = rest.get("properties", {}), rest.get("additionalProperties", True)
    if isinstance(names, bool):
        none = {"properties": dict.fromkeys(properties, False), "additionalProperties": False}
        return rest if names else both(rest, none)
    if "patternProperties" in rest or names.keys() - {"const", "enum", "maxLength", "minLength", "pattern", "type"}:
        raise Unsupported
    listed = listing(names)
    if listed is not None and not names.keys() & {"maxLength", "minLength", "pattern"}:
        texts = dict.fromkeys(filter(_is_text, listed))
        names_left = [name for name in {**properties, **texts} if name in texts]
        allowed = {name: properties.get(name, extra) for name in names_left}
        return {**rest, "properties": allowed, "additionalProperties": False}
    if properties or listed is not None or len(names.keys() & {"maxLength", "minLength", "pattern"}) > 1:
        raise Unsupported
    counted = f"^(?s:.{{{names.get('minLength', 0)},{names.get('maxLength', '')}}})$"
    return {**rest, "patternProperties": {names.get("pattern", counted): extra}, "additionalProperties": False}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def rewrite_unique(rest: dict[str, Any], context: Context) -> Schema:
    """A list without repetitions, of so few values that all such lists can be written down."""
    if rest.get("maxItems", 2) <= 1:
        return rest
    values = _values_of(rest.get("items"), context)
    if values is None or "prefixItems" in rest or rest.get("type") != "array":
        raise Unsupported
    shortest, longest = rest.get("minItems", 0), min(rest.get("maxItems", len(values)), len(values))
    num_lists, num_longer = 0, 1
    for length in range(longest + 1):
        num_lists += num_longer if length >= shortest else 0
        num_longer *= len(values) - length
        if max(num_lists, num_longer if length < longest else 0) > _MAX_SEQUENCES:
            raise Unsupported
    lists = [[*each] for length in range(shortest, longest + 1) for each in permutations(values, length)]
    others = {key: value for key, value in rest.items() if key not in ("type", "items", "minItems", "maxItems")}
    return both(others, {"enum": lists}) if lists else False


def _values_of(items: Any, context: Context) -> list[Any] | None:
    """All values of a schema, if they are few and listed."""
    match items:
        case {"$ref": str(reference), **others} if not others:
            return _values_of(context.resolve(reference), context)
        case {"enum": [*values], **others} | {"const": _ as values, **others} if not others.keys() - {"type"}:
            listed = values if "enum" in items else [values]
            distinct = {json.dumps(value, sort_keys=True): value for value in listed}
            kinds = types_of({"type": others.get("type", list(TYPES))})
            is_plain = all(isinstance(value, str | bool | None) for value in distinct.values())
            return [v for v in distinct.values() if type_of(v) in kinds] if is_plain else None
        case {"type": "boolean", **others} if not others:
            return [False, True]
    return None


def rewrite_least(rest: dict[str, Any], least: int) -> Schema:
    """`minProperties` where all properties are listed: some of them are there."""
    required, properties = rest.get("required", []), rest.get("properties", {})
    if least <= len(required):
        return rest
    optional = [name for name in properties if name not in required]
    if not optional or all(name in required for name in properties) or rest.get("additionalProperties") is not False:
        is_free = "patternProperties" in rest or rest.get("additionalProperties") is not False
        if is_free and least > len({*required}) + 1:
            raise Unsupported  # one free name twice would count as two properties
        return {**rest, "minProperties": least}  # the compiler knows some of these
    if "patternProperties" in rest:
        raise Unsupported
    num_chosen = least - len(required)
    if comb(len(optional), num_chosen) > _MAX_BRANCHES:
        raise Unsupported
    return both(rest, some([{"required": [*names]} for names in combinations(optional, num_chosen)]))


def rewrite_one_of(rest: Schema, cases: Sequence[Schema], context: Context) -> Schema:
    """Exactly one of the cases: one of them, and none of the others it could be confused with."""
    kinds = {"type": rest["type"]} if isinstance(rest, dict) and "type" in rest else {}
    typed = [{**kinds, **case} if isinstance(case, dict) else case for case in cases]
    met = [(i, j) for i, j in combinations(range(len(cases)), 2) if not are_disjoint(typed[i], typed[j], context)]
    if not met:
        return both(rest, {"anyOf": [*cases]})
    options = [*cases]
    for one, two in met:
        full = [_of_some(typed[each]) for each in (one, two)]
        if all(full) and are_disjoint(full[0], full[1], context):  # only the empty list would be both
            options[one], options[two] = (both(options[each], {"minItems": 1}) for each in (one, two))
            continue
        for i, j in ((one, two), (two, one)):
            options[i] = both(options[i], negate(cases[j], _facts(rest, cases[i]), context))
    return both(rest, some(options))


def _of_some(schema: Schema) -> Schema:
    """The lists it describes, but for the empty one; nothing if it describes more than lists."""
    if isinstance(schema, bool) or types_of(schema) != {"array"}:
        return False
    return {**schema, "minItems": max(1, schema.get("minItems", 0))}


def _facts(schema: Schema, other: Schema) -> Schema:
    """What is certain where both hold, as far as a negation asks for it."""
    if isinstance(schema, bool) or isinstance(other, bool):
        return both(schema, other)
    return {**schema, **other, "properties": {**schema.get("properties", {}), **other.get("properties", {})}}


def rewrite_condition(rest: Schema, asked: Schema, then: Schema, otherwise: Schema, context: Context) -> Schema:
    kept = both(asked, then)
    return both(rest, some([kept, both(negate(asked, rest, context), otherwise)]))


def negate(schema: Schema, known: Schema, context: Context, depth: int = 0) -> Schema:
    """What a schema does not describe, of what is `known` to be described anyway."""
    if isinstance(schema, bool):
        return not schema
    context.spend()
    if depth > _MAX_DEPTH:
        raise Unsupported
    return some([part for key, value in schema.items() for part in _break(key, value, known, context, depth + 1)])


def _break(key: str, value: Any, known: Schema, context: Context, depth: int) -> Iterable[Schema]:
    """The ways not to follow one keyword."""
    match key:
        case "$ref":
            return [negate(context.resolve(value), known, context, depth)]
        case "enum" | "const":
            return [_all_but(value if key == "enum" else [value], _look(known, context))]
        case "type":
            return [_of_other_types(types_of({"type": value}), types_of(_look(known, context)))]
        case "required":
            return [{"type": "object", "properties": {name: False}} for name in value]
        case "properties":
            return _broken_properties(value, known, context, depth)
        case "not":
            return [value]
        case "allOf":
            return [negate(part, known, context, depth) for part in value]
        case "anyOf":
            return [_all([negate(part, known, context, depth) for part in value])]
    if key == "maxProperties" and value > 0:
        raise Unsupported  # the names could be one name, twice
    if key in _OPPOSITES and not isinstance(value, bool):
        kind, opposite, step = _OPPOSITES[key]
        return [{"type": kind, opposite: value + step}] if value + step >= 0 or not step else []
    if key in _NAMING or (key, value) in _IDLE:
        return []
    raise Unsupported


def _all(parts: Sequence[Schema]) -> Schema:
    result: Schema = True
    for part in parts:
        result = both(result, part)
    return result


def _broken_properties(
    properties: Mapping[str, Schema], known: Schema, context: Context, depth: int
) -> Iterator[Schema]:
    expected = _look(known, context)
    beside = expected.get("properties", {}) if isinstance(expected, dict) else {}
    for name, part in properties.items():
        broken = negate(part, beside.get(name, True), context, depth)
        if broken is not False:
            yield {"type": "object", "properties": {name: broken}, "required": [name]}


def _look(known: Schema, context: Context) -> Schema:
    """What is known, with what it refers to."""
    if not isinstance(known, dict) or "$ref" not in known:
        return known
    beside = {key: value for key, value in known.items() if key != "$ref"}
    try:
        found = context.resolve(known["$ref"])
    except Unsupported:
        return known
    is_plain = beside.keys() <= {"type"} and isinstance(found, dict) and "type" not in found
    return {**found, **beside} if is_plain and isinstance(found, dict) else both(beside, found)


def _of_other_types(types: set[str], known: set[str]) -> Schema:
    left = known - types - ({"integer"} if "number" in types else set())
    if "integer" in types and "number" in left:
        raise Unsupported  # numbers with a fraction
    return {"type": sorted(left)} if left else False


def _all_but(values: Sequence[Any], known: Schema) -> Schema:
    """Everything but these values."""
    if isinstance(known, dict) and ("enum" in known or "const" in known):
        listed = known.get("enum", [known.get("const")])
        excluded = {*map(freeze, values)}
        left = [value for value in listed if freeze(value) not in excluded]
        return {"enum": left} if left else False
    options: list[Schema] = []
    for kind in sorted(types_of(known)):
        same = [value for value in values if type_of(value) == ("number" if kind == "integer" else kind)]
        if not same:
            options.append({"type": kind})
        elif kind == "boolean":
            options += [{"enum": [value]} for value in (False, True) if value not in same]
        elif kind in ("number", "integer"):
            bounds = [None, *sorted({*same}), None]
            options += [_between(kind, low, high) for low, high in pairwise(bounds)]
        elif kind == "string":
            options.append({"type": "string", "pattern": f"^{_other_words(same)}$"})
        elif kind != "null":
            raise Unsupported
    plain = [option["type"] for option in options if isinstance(option, dict) and option.keys() == {"type"}]
    rest = [option for option in options if not isinstance(option, dict) or option.keys() != {"type"}]
    return some([*rest, *([{"type": plain}] if plain else [])])


def _between(kind: str, low: float | None, high: float | None) -> Schema:
    if kind == "integer" and low is not None and high is not None and high - low <= 1:
        return False
    bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
    return {"type": kind, **{key: bound for key, bound in bounds.items() if bound is not None}}


def _other_words(words: Sequence[str]) -> str:
    """A pattern of all strings but these."""
    is_long = sum(map(len, words)) > _MAX_WORD_CHARS or max(map(len, words)) > _MAX_WORD_CHARS // 10
    if is_long or any(char < " " or char in '"\\\x7f' for word in words for char in word):
        raise Unsupported  # what JSON escapes has two spellings
    tails: dict[str, list[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
    if not tails:
        return "(?s:.+)"
    firsts = "".join(f"\\u{{{ord(char):x}}}" for char in tails)
    others = [f"[^{firsts}](?s:.*)", *(f"{re.escape(char)}{_other_words(rest)}" for char, rest in tails.items())]
    return f"(?:{'|'.join(others)}){'' if '' in words else '?'}"


def are_disjoint(schema: Schema, other: Schema, context: Context, depth: int = 0) -> bool:
    """Whether no value is described by both, as far as can be seen."""
    if isinstance(schema, bool) or isinstance(other, bool):
        return schema is False or other is False
    context.spend()
    if depth > _MAX_DEPTH:
        return False
    if "$ref" in schema or "$ref" in other:
        return are_disjoint(_look(schema, context), _look(other, context), context, depth + 4)
    for one, two in ((schema, other), (other, schema)):
        if any(are_disjoint(part, two, context, depth + 1) for part in one.get("allOf", ())):
            return True
        if "anyOf" in one and all(are_disjoint(part, two, context, depth + 1) for part in one["anyOf"]):
            return True
    if _are_apart(schema, other, context):
        return True
    kinds = types_of(schema), types_of(other)
    if kinds == ({"array"}, {"array"}) and max(each.get("minItems", 0) for each in (schema, other)) >= 1:
        one, two = (each.get("items", True) for each in (schema, other))
        is_told = not any("prefixItems" in each or isinstance(each.get("items"), list) for each in (schema, other))
        return is_told and are_disjoint(one, two, context, depth + 1)
    return kinds == ({"object"}, {"object"}) and any(
        are_disjoint(_property(schema, name), _property(other, name), context, depth + 1)
        for name in {*schema.get("required", ()), *other.get("required", ())}
    )


def _are_apart(schema: dict[str, Any], other: dict[str, Any], context: Context) -> bool:
    listed = [listing(each) for each in (schema, other)]
    context.spend(sum(len(values or ()) for values in listed) // _VALUES_A_PART)
    if listed[0] is not None and listed[1] is not None:
        return {*map(freeze, listed[0])}.isdisjoint(map(freeze, listed[1]))
    kinds, others = types_of(schema), types_of(other)
    widened = others | ({"integer"} if "number" in others else set()) | ({"number"} if "integer" in others else set())
    return not kinds & widened


def _property(schema: dict[str, Any], name: str) -> Schema:
    if name in schema.get("properties", {}):
        found: Schema = schema["properties"][name]
        return found
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)
