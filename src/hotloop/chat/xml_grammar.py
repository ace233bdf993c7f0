"""The grammar of one function written as tags. What tags cannot say is refused by name, never half obeyed."""

from collections.abc import Mapping
from typing import Any

from hotloop.chat import lark
from hotloop.chat.xml_calls import END_FUNCTION, END_PARAMETER, PARAMETER
from hotloop.chat.xml_values import ValueKind, choices, resolve, value_kind
from hotloop.core.errors import RequestError
from hotloop.core.message import Tool

RAW_RULES = (
    f"raw[lazy]: {lark.ANYTHING} {lark.literal(END_PARAMETER)}",
    f'anything: {lark.literal(PARAMETER)} /[^<>\\n]+/ ">\\n" raw "\\n"',
)
_UNSAYABLE = {"allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "$ref", "$dynamicRef", "propertyNames"} | {
    *("minProperties", "maxProperties", "patternProperties", "unevaluatedProperties"),
    *("dependencies", "dependentRequired", "dependentSchemas"),
}


def function_rules(rule: str, tool: Tool) -> list[str]:
    """What follows `<function=`: the name, the parameters in their order, the closing tag."""
    begin, end = lark.literal(f"{tool.name}>\n"), lark.literal(END_FUNCTION)
    if not tool.is_strict:
        return [f"{rule}: {begin} anything* {end}"]
    _check(tool)
    schema = lark.parameters(tool)
    required = schema.get("required", [])
    properties = dict(schema["properties"]) | {key: True for key in required if key not in schema["properties"]}
    rules = {key: f"{rule}p{i}" for i, key in enumerate(properties)}
    sequence = " ".join(name + ("" if key in required else "?") for key, name in rules.items())
    return [
        f"{rule}: {begin} {sequence} {end}",
        *(f"{rules[key]}: {_parameter(key, part, schema)}" for key, part in properties.items()),
    ]


def _parameter(key: str, part: Any, root: Mapping[str, Any]) -> str:
    begin, end = lark.literal(f"{PARAMETER}{key}>\n"), lark.literal(f"\n{END_PARAMETER}\n")
    schema = resolve(part, root)
    kind = value_kind(schema)
    if kind is ValueKind.CHOICE:
        return f"{begin} {lark.either(map(lark.literal, choices(schema)))} {end}"
    if kind is ValueKind.JSON:
        return f"{begin} {lark.embed(schema)} {end}"
    return f'{begin} raw "\\n"'


def _check(tool: Tool) -> None:
    unsayable = tool.parameters.keys() & _UNSAYABLE
    if unsayable:
        reason = f"{min(unsayable)!r} beside its properties, which this model's tool calls cannot say"
        raise RequestError(f"the tool {tool.name!r} has {reason}: use strict: false", param="tools")
    for key in (*tool.parameters.get("properties", {}), *tool.parameters.get("required", [])):
        if not key.strip() or set(key) & set("<>\n") or key != key.strip():
            reason = f"a parameter {key!r:.100}, which this model's tool calls cannot name"
            raise RequestError(f"the tool {tool.name!r} has {reason}", param="tools")
