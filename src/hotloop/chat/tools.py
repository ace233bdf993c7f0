"""What a caller may ask about tools, and what is refused before a prompt is made.

A tool that passed `check_tools` has a name every format can write without escaping, and an object for its arguments.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hotloop.core.errors import RequestError
from hotloop.core.message import Tool

_MAX_DEPTH = 128  # of nested JSON in one tool's parameters
_NAME = re.compile(r"[a-zA-Z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model must call a tool, and which, and how many at once."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    """The one tool that must be called, where the mode is `required`."""
    is_parallel: bool = True
    can_go_on: bool = False
    """Whether prose and reasoning may follow a call, and more calls these."""

    def is_binding(self, tools: Sequence[Tool]) -> bool:
        """Whether it holds the answer to anything. A tool that is not strict still has a name, and JSON arguments."""
        return bool(tools) and self.mode != "none"

    def select(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        return tuple(tool for tool in tools if self.name is None or tool.name == self.name)


def check_tools(
    tools: Sequence[Tool], choice: ToolChoice, *, schema_field: str = "parameters", max_name: int = 64
) -> None:
    """Raise RequestError for tools that cannot be offered, or a choice that they cannot meet."""
    names: set[str] = set()
    for i, tool in enumerate(tools):
        if len(tool.name) > max_name or not _NAME.fullmatch(tool.name):
            reason = f"{tool.name!r:.100} is not 1 to {max_name} letters, digits, '_', '-' or '.'"
            raise RequestError(f"tools[{i}]: the name {reason}", param=f"tools[{i}]")
        if tool.name in names:
            raise RequestError(f"tools[{i}]: there is another tool named {tool.name!r}", param=f"tools[{i}]")
        names.add(tool.name)
        _check_parameters(f"tools[{i}].{schema_field}", tool)
    check_choice(tools, choice)


def check_choice(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raise RequestError for a choice that these tools cannot meet."""
    if choice.mode == "required" and not tools:
        raise RequestError("tool_choice asks for a call, but there are no tools", param="tool_choice")
    if choice.name is not None and choice.name not in {tool.name for tool in tools}:
        raise RequestError(f"tool_choice names {choice.name!r:.100}, which is not among the tools", param="tool_choice")


def _check_parameters(place: str, tool: Tool) -> None:
    kind = tool.parameters.get("type", "object")
    if kind not in ("object", ["object"]):
        raise RequestError(f"{place}: the type must be 'object', not {kind!r:.100}", param=place)
    if not _fits(tool.parameters, _MAX_DEPTH):
        raise RequestError(f"{place}: nested more than {_MAX_DEPTH} levels deep", param=place)
    if not isinstance(tool.parameters.get("properties", {}), dict):
        raise RequestError(f"{place}: 'properties' must be an object", param=place)
    required = tool.parameters.get("required", [])
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        raise RequestError(f"{place}: 'required' must be a list of strings", param=place)


def _fits(value: Any, max_depth: int) -> bool:
    """Whether a value is nested at most so deep."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return max_depth > 0 and all(_fits(part, max_depth - 1) for part in parts)
