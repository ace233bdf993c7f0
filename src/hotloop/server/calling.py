"""The tools of a request, and which of them may, or must, be called.

Everything here is about the request: what a tool call looks like to the model is the tool format's business.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hotloop.chat.tools import ToolChoice, check_tools
from hotloop.core.errors import RequestError
from hotloop.core.message import Tool
from hotloop.wire import request as wire
from hotloop.wire.part import Opaque


@dataclass(frozen=True, slots=True)
class Calling:
    """What a request says about tools: those the model is shown, those it may call, and whether it must."""

    tools: tuple[Tool, ...]
    allowed: tuple[Tool, ...]
    choice: ToolChoice
    places: Mapping[str, str] = field(default_factory=dict)
    """Where in the body a tool's schema is, by the tool's name."""

    @property
    def is_possible(self) -> bool:
        """Whether the answer may hold calls. If not, whatever looks like one is text."""
        return bool(self.allowed) and self.choice.mode != "none"

    @property
    def is_certain(self) -> bool:
        """Whether the answer is nothing but calls."""
        return self.choice.mode == "required"

    def place(self, tool: Tool) -> str:
        return self.places[tool.name]


def make_tools(tools: Iterable[wire.Tool | Opaque], *, is_strict: bool) -> tuple[Tool, ...]:
    """`is_strict` is for the tools that do not say themselves whether their schema must be followed."""
    return tuple(_make_tool(tool, is_strict) for tool in tools)


def make_calling(
    given: Iterable[wire.Tool | Opaque], choice: wire.Choice, *, is_strict: bool, schema_field: str = "parameters"
) -> Calling:
    """Raises RequestError where tools and choice do not fit. `schema_field` is what the API calls a schema."""
    given = [*given]
    tools = make_tools(given, is_strict=is_strict)
    is_parallel = choice.is_parallel is not False and choice.name is None
    chosen = ToolChoice(choice.mode or "auto", choice.name, is_parallel=is_parallel)
    check_tools(tools, chosen, schema_field=schema_field)
    allowed = tools if choice.allowed is None else _allow(tools, choice.allowed)
    return Calling(tools, allowed, chosen, {tool.flat_name: _place(tool, schema_field) for tool in _known(given)})


def _make_tool(tool: wire.Tool | Opaque, is_strict: bool) -> Tool:
    if isinstance(tool, Opaque):
        place = tool.at.place if tool.at else ""
        reason = f"{place}: tools of type {tool.kind!r:.100} are not supported, only functions and custom tools are"
        raise RequestError(reason, param=f"{place}.type" if tool.api == "chat" else place)
    if not tool.name:
        place = f"{tool.at.place}.function.name" if tool.at and tool.at.get("function") else "tools"
        raise RequestError(f"{place} is empty", param=place)
    function = tool.as_function()
    strict = tool.is_custom or (is_strict if tool.is_strict is None else tool.is_strict)
    return Tool(function.name, function.description or "", function.schema or {}, strict)


def _allow(tools: tuple[Tool, ...], names: tuple[str, ...]) -> tuple[Tool, ...]:
    unknown = {*names} - {tool.name for tool in tools}
    if unknown or not names:
        problem = f"there is no tool {min(unknown)!r}" if unknown else "no tool is allowed"
        raise RequestError(f"tool_choice: {problem}", param="tool_choice")
    return tuple(tool for tool in tools if tool.name in names)


def _known(tools: Iterable[wire.Tool | Opaque]) -> list[wire.Tool]:
    return [tool for tool in tools if isinstance(tool, wire.Tool)]


def _place(tool: wire.Tool, schema_field: str) -> str:
    place = tool.at.place if tool.at else "tools"
    return place if tool.is_custom else f"{place}.{schema_field}"
