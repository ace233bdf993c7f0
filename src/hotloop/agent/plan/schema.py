"""A plan as it is written: the schema a strict server binds it to, and its steps as values.

    {"steps": [{"id": "a", "tool": "search", "arguments": {"query": "..."}},
               {"id": "b", "tool": "open", "arguments": {"page": "${a.pages[0]}"}}]}

The arguments of a step follow its tool's schema, except that a reference may stand wherever a value may. Steps refer
only backwards, so that no plan has a circle. A step that could never be run makes the whole plan a bad one.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from hotloop.agent.plan.reference import STEP_ID, BadReference, find_references
from hotloop.core.message import Tool
from hotloop.core.nesting import Nesting
from hotloop.core.structs import compiled

MAX_STEPS = 64

_REFERENCE = {"$ref": "#/$defs/reference"}
_PATTERN = rf"^\$\{{{STEP_ID}(\.[A-Za-z0-9_-]+|\[[0-9]{{1,6}}\])*\}}$"
# Words that describe are left out: the model reads them where it reads its tools.
_WORDS = {"$schema", "default", "description", "examples", "title"}
_NARROWING = {"enum", "const", "pattern", "format", "minLength", "maxLength"}


class BadPlan(Exception):
    """A plan that cannot be followed; `str(error)` says why."""


def plan_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """Each tool's schema stands whole under `$defs`, so that what it refers to within itself is still there."""
    definitions = {}
    for i, tool in enumerate(tools):
        parameters = dict(tool.parameters) if tool.is_strict else {}
        definitions[f"arguments_{i}"] = _within({"type": "object", **parameters}, f"#/$defs/arguments_{i}")
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


@compiled
class PlanStep(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(pattern=f"^{STEP_ID}$")]
    tool: str
    arguments: dict[str, Any]
    """As written: a value may be a reference."""

    @property
    def needs(self) -> list[str]:
        """The steps it refers to, each once. Raises BadReference."""
        return list(dict.fromkeys(reference.step_id for reference in find_references(self.arguments)))


def parse_step(text: str, tools: Mapping[str, Tool], earlier: Container[str]) -> PlanStep:
    """A step that can be run once the earlier ones are done. Raises BadPlan if it never can."""
    try:
        step = msgspec.json.decode(text.encode("utf-8", "replace"), type=PlanStep)
        needs = step.needs
    except (msgspec.DecodeError, BadReference) as error:
        raise BadPlan(f"a step cannot be read: {error}") from None
    except RecursionError:
        raise BadPlan("a step is nested too deeply") from None
    if step.id in earlier:
        raise BadPlan(f"there are two steps {step.id!r}")
    if step.tool not in tools:
        raise BadPlan(f"step {step.id!r} calls {step.tool!r}, and there is no such tool")
    for step_id in needs:
        if step_id not in earlier:
            raise BadPlan(f"step {step.id!r} refers to {step_id!r}, and there is no such step before it")
    _check_names(step, tools[step.tool])
    return step


def _check_names(step: PlanStep, tool: Tool) -> None:
    """Whether values are right is for the tool to say, once they are known; which must be there is known now."""
    given, properties = step.arguments.keys(), tool.parameters.get("properties", {})
    if missing := [name for name in tool.parameters.get("required", ()) if name not in given]:
        raise BadPlan(f"step {step.id!r} lacks the argument {missing[0]!r} of {tool.name}")
    is_closed = tool.parameters.get("additionalProperties") is False
    if is_closed and (unknown := [name for name in given if name not in properties]):
        raise BadPlan(f"step {step.id!r} gives {tool.name} an argument {unknown[0]!r}, which it does not take")


class ElementReader:
    """The elements, as text, of the list that an object has under one key, each as it closes: `{"steps": [{…}, {…}]}`.

    What stands before the object, such as a fence, is skipped, and so is what stands behind it.
    """

    def __init__(self, key: str) -> None:
        self.is_closed = False
        """Whether the object is whole."""
        self.has_list = False
        self._key = f'"{key}"'
        self._nesting = Nesting()
        self._text: list[str] = []  # of the element, or before the list of the object's last string
        self._is_inside = False

    @property
    def is_in_element(self) -> bool:
        """Whether another element has begun behind the last that was given."""
        return self._is_inside and any(not char.isspace() for char in self._text)

    def feed(self, piece: str) -> Iterator[str]:
        """Take more of the text; gives each element that closes in it."""
        for char in piece:
            if self.is_closed:
                return
            before = self._nesting.depth
            if before == 0 and char != "{":
                continue
            was_in_string = self._nesting.is_in_string
            self._nesting.push(char)
            if self._is_inside:
                yield from self._element(char, is_string=was_in_string)
            elif before == 1:
                self._look_for_list(char, is_string=was_in_string)
            self.is_closed = self._nesting.depth == 0

    def _look_for_list(self, char: str, *, is_string: bool) -> None:
        """Directly before a value stands its key."""
        if char == '"' and not is_string:
            self._text = []
        if is_string or char == '"':
            self._text.append(char)
        elif char == "[" and not self.has_list and "".join(self._text) == self._key:
            self.has_list = self._is_inside = True
            self._text = []

    def _element(self, char: str, *, is_string: bool) -> Iterator[str]:
        """An object is whole at its bracket; a bare value only at the comma behind it."""
        depth = self._nesting.depth
        self._is_inside = depth > 1
        is_end = not is_string and (depth == 1 or (depth == 2 and char == ","))
        if not is_end:
            self._text.append(char)
        if is_end or (depth == 2 and char in "}]" and not is_string):
            element, self._text = "".join(self._text).strip(), []
            if element:
                yield element
