"""The schema of a plan, made from the tools, so that a strict server lets only a plan be written.

    {"steps": [{"id": "a", "tool": "search", "arguments": {"query": "..."}},
               {"id": "b", "tool": "open", "arguments": {"page": "${a.pages[0]}"}}]}

The arguments of a step follow its tool's schema, except that a reference may stand wherever a value may. Words that
describe are left out: the model reads them where it reads its tools.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.agent.plan.reference import STEP_ID
from hotloop.core.message import Tool

MAX_STEPS = 64

_REFERENCE = {"$ref": "#/$defs/reference"}
_PATTERN = rf"^\$\{{{STEP_ID}(\.[A-Za-z0-9_-]+|\[[0-9]{{1,6}}\])*\}}$"
_WORDS = {"$schema", "default", "description", "examples", "title"}
_NARROWING = {"enum", "const", "pattern", "format", "minLength", "maxLength"}


def plan_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """Each tool's schema stands whole under `$defs`, so that what it refers to within itself is still there."""
    definitions = {f"arguments_{i}": _arguments(tool, i) for i, tool in enumerate(tools)}
    definitions["reference"] = {"type": "string", "pattern": _PATTERN}
    step = {"anyOf": [_step(tool, i) for i, tool in enumerate(tools)]}
    return _closed({"steps": {"type": "array", "items": step, "maxItems": MAX_STEPS}}) | {"$defs": definitions}


def _step(tool: Tool, index: int) -> dict[str, Any]:
    return _closed(
        {
            "id": {"type": "string", "pattern": f"^{STEP_ID}$"},
            "tool": {"const": tool.name},
            "arguments": {"$ref": f"#/$defs/arguments_{index}"},
        }
    )


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with all of these and nothing else."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _arguments(tool: Tool, index: int) -> Any:
    parameters = dict(tool.parameters) if tool.is_strict else {}
    return _within({"type": "object", **parameters}, f"#/$defs/arguments_{index}")


def _within(schema: Any, root: str) -> Any:
    """A schema in its new place, with references allowed for the values inside."""
    if not isinstance(schema, Mapping):
        return schema
    return {key: _keyword(key, value, root) for key, value in schema.items() if key not in _WORDS}


def _keyword(key: str, value: Any, root: str) -> Any:
    match key, value:
        case "$ref", str() if value.startswith("#"):
            return root + value[1:]
        case (("properties" | "patternProperties"), Mapping()):
            return {name: _or_reference(each, root) for name, each in value.items()}
        case (("$defs" | "definitions"), Mapping()):
            return {name: _within(each, root) for name, each in value.items()}
        case (("items" | "additionalProperties"), Mapping()):
            return _or_reference(value, root)
        case "prefixItems", list():
            return [_or_reference(each, root) for each in value]
        case (("anyOf" | "oneOf" | "allOf"), list()):
            return [_within(each, root) for each in value]
    return value


def _or_reference(schema: Any, root: str) -> Any:
    """A value of this schema, or a reference to one; what takes any text takes references anyway."""
    inner = _within(schema, root)
    if not isinstance(inner, Mapping) or not inner or (inner.get("type") == "string" and not _NARROWING & set(inner)):
        return inner
    return {"anyOf": [inner, _REFERENCE]}
