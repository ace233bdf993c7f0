"""The tools of a chat as OpenAI's clients write them, and which of them may, or must, be called.

Everything here is about the wire: what a tool call looks like to the model is the tool format's business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hotloop.chat.tools import ToolChoice, check_tools
from hotloop.core.errors import RequestError
from hotloop.core.message import Tool


class FunctionBody(msgspec.Struct, kw_only=True):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct, kw_only=True):
    type: Literal["function"] = "function"
    function: FunctionBody


class NameBody(msgspec.Struct, kw_only=True):
    name: str


class NamedBody(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """`{"type": "function", "function": {"name": "f"}}`: this one must be called."""

    function: NameBody


class AllowedBody(msgspec.Struct, kw_only=True):
    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedBody]


class AllowedToolsBody(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The model sees all tools, so that the prompt stays the same, and may call some."""

    allowed_tools: AllowedBody


ChoiceBody = Literal["auto", "none", "required"] | NamedBody | AllowedToolsBody


@dataclass(frozen=True, slots=True)
class Calling:
    """What a chat says about tools: those the model is shown, those it may call, and whether it must."""

    tools: tuple[Tool, ...]
    allowed: tuple[Tool, ...]
    choice: ToolChoice
    places: Mapping[str, str] = field(default_factory=dict)
    """Where in the body a tool's schema is, by the tool's name, for APIs that do not have it where a chat does."""

    @property
    def is_possible(self) -> bool:
        """Whether the answer may hold calls. If not, whatever looks like one is text."""
        return bool(self.allowed) and self.choice.mode != "none"

    @property
    def is_certain(self) -> bool:
        """Whether the answer is nothing but calls."""
        return self.choice.mode == "required"

    def place(self, tool: Tool) -> str:
        """Where in the body a tool's schema is."""
        return self.places.get(tool.name) or f"tools[{self.tools.index(tool)}].function.parameters"


def parse_tools(bodies: Sequence[ToolBody] | None, *, is_strict: bool) -> tuple[Tool, ...]:
    return tuple(_parse_tool(body.function, is_strict) for body in bodies or ())


def choose_tools(tools: tuple[Tool, ...], choice: ChoiceBody | None, *, is_parallel: bool) -> Calling:
    """Raises RequestError where tools and choice do not fit each other."""
    parsed = _parse_choice(choice, is_parallel)
    check_tools(tools, parsed)
    if not isinstance(choice, AllowedToolsBody):
        return Calling(tools, tools, parsed)
    names = {allowed.function.name for allowed in choice.allowed_tools.tools}
    unknown = names - {tool.name for tool in tools}
    if unknown or not names:
        problem = f"there is no tool {min(unknown)!r}" if unknown else "no tool is allowed"
        raise RequestError(f"tool_choice: {problem}", param="tool_choice")
    return Calling(tools, tuple(tool for tool in tools if tool.name in names), parsed)


def _parse_tool(body: FunctionBody, is_strict: bool) -> Tool:
    return Tool(
        body.name, body.description or "", body.parameters or {}, is_strict if body.strict is None else body.strict
    )


def _parse_choice(choice: ChoiceBody | None, is_parallel: bool) -> ToolChoice:
    if isinstance(choice, NamedBody):
        return ToolChoice("required", choice.function.name, is_parallel=False)
    mode = choice.allowed_tools.mode if isinstance(choice, AllowedToolsBody) else choice or "auto"
    return ToolChoice(mode, is_parallel=is_parallel)
