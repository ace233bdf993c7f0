"""The tools of a response: functions, custom tools that take plain text, and namespaces of both.

The model sees functions only; `Toolbox` knows what each of them was on the wire, so that its calls go back as such.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotloop.server.calling import Calling, make_calling
from hotloop.wire.field import Field, Json
from hotloop.wire.part import Opaque
from hotloop.wire.request import Tool
from hotloop.wire.responses.parse import parse_choice, parse_tools

# What coding agents offer unasked, and a model can do without. Nobody would run it here, so the model is not told.
LEFT_OUT = ("web_search", "web_search_preview", "image_generation", "tool_search")


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What may be called. `bodies` are the tools as the client hears of them again."""

    calling: Calling
    tools: Sequence[Tool | Opaque]
    bodies: Sequence[Json]


def parse_toolbox(
    bodies: Sequence[Mapping[str, Any]], choice: Any = None, *, is_strict: bool, is_parallel: bool
) -> Toolbox:
    """`is_strict` is for the functions that do not say themselves whether their schema must be followed."""
    given = Field({"tools": [*bodies], "tool_choice": choice, "parallel_tool_calls": is_parallel})
    tools = [tool for tool in parse_tools(given) if not (isinstance(tool, Opaque) and tool.kind in LEFT_OUT)]
    return Toolbox(
        calling=make_calling(tools, parse_choice(given), is_strict=is_strict),
        tools=tools,
        bodies=[_render_tool(body, is_strict) for body in bodies if body.get("type") not in LEFT_OUT],
    )


def _render_tool(body: Mapping[str, Any], is_strict: bool) -> Json:
    """As given; what was not said about a function is filled in."""
    if body["type"] != "function":
        return dict(body)
    filled = {"description": None, "parameters": None, **body}
    return {**filled, "strict": is_strict if body.get("strict") is None else body["strict"]}
