"""Tools that appear mid-session, described in a body where they appeared: `tools` stays as the session began.

words     behind the message that was the newest then, a line of JSON each: where a call of any name is read
changes   a system message with `tool_addition` and `tool_removal`: Anthropic's API
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hotloop.core.message import Message, Tool
from hotloop.stable.late import LateTools, ToolHistory, join_late, name_some, word_late
from hotloop.wire.field import Json

LateWay = Literal["", "words", "changes"]
BETAS = ("mid-conversation-tool-changes-2026-07-01", "inline-tools-2026-09-15")
"""What a request with `changes` has to name in `anthropic-beta`."""

_OF_FUNCTIONS = (None, "function", "custom")


class BodyTools:
    """Remembers which tools sessions began with, and where others came. Used from any thread."""

    def __init__(self) -> None:
        self._history = ToolHistory()

    def settle(
        self, tools: Sequence[Json], messages: Sequence[Message], way: LateWay, *, scope: str
    ) -> tuple[list[Json], dict[int, LateTools]]:
        """The tools for the head, and by message those that are told behind it. A client that says itself what comes
        late is left alone, what is no function stays in the head, and so do all where some are strict and others would
        only be told in words: what enforces the former lets nobody call the latter."""
        functions = [tool for tool in tools if is_function(tool)]
        is_strict = way == "words" and any(_function_of(tool).get("strict") is True for tool in functions)
        if is_strict or any("defer_loading" in tool for tool in tools) or not functions:
            return [*tools], {}
        head, late = self._history.settle(messages, tuple(map(_as_tool, functions)), scope=scope)
        mark = {"cache_control": tools[-1]["cache_control"]} if "cache_control" in tools[-1] else {}
        kept = [{**tool.parameters} for tool in head]
        kept += [tool for tool in tools if not is_function(tool)]
        return [*kept[:-1], kept[-1] | mark] if mark else kept, {**join_late(head, late)}


def is_function(tool: Json) -> bool:
    is_described = isinstance(_function_of(tool).get("name"), str)
    return is_described and tool.get("type") in _OF_FUNCTIONS and "format" not in tool


def name_of(tool: Json) -> str:
    return str(_function_of(tool)["name"])


def word_tools(late: LateTools) -> str:
    return word_late(late, lambda tools: "\n".join(_as_line(tool.parameters) for tool in tools))


def render_changes(late: LateTools) -> Json:
    """The system message that says so; what is told again was defined before."""
    added = [{"type": "tool_definition", "definition": {**tool.parameters}} for tool in late.added]
    again = [{"type": "tool_reference", "name": name} for name in late.again]
    gone = [{"type": "tool_reference", "name": name} for name in late.removed]
    blocks = [{"type": "tool_addition", "tool": tool} for tool in added + again]
    return {"role": "system", "content": blocks + [{"type": "tool_removal", "tool": tool} for tool in gone]}


def tell_changes(late: Mapping[int, LateTools]) -> tuple[str, ...]:
    added = [tool.name for change in late.values() for tool in change.added]
    removed = [name for change in late.values() for name in change.removed]
    told = [f"late_tools: {name_some(added)} described after the history"] if added else []
    return (*told, f"late_tools: {name_some(removed)} removed, noted after the history") if removed else (*told,)


def _as_tool(tool: Json) -> Tool:
    """As a value that is compared, and has the body's own object in it."""
    return Tool(name_of(tool), parameters={name: value for name, value in tool.items() if name != "cache_control"})


def _function_of(tool: Json) -> Json:
    function = tool.get("function")
    return function if isinstance(function, dict) else tool


def _as_line(tool: Any) -> str:
    """As most templates have them, whatever API it came by."""
    function = _function_of(tool)
    schema = function.get("parameters", function.get("input_schema", {}))
    told = {"name": function["name"], "description": function.get("description") or "", "parameters": schema}
    return json.dumps({"type": "function", "function": told}, ensure_ascii=False)
