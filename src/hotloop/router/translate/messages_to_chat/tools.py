"""Anthropic's tools, and which of them may or must be called, in OpenAI's words."""

from hotloop.core.errors import RequestError
from hotloop.router.translate.field import Field, Json, read_flag
from hotloop.router.translate.messages_to_chat.writing import Writing

_KNOWN = {"type", "name", "description", "input_schema", "strict", "cache_control"}


def render_tools(body: Field, writing: Writing) -> Json:
    """`tools`, `tool_choice` and `parallel_tool_calls`, as far as there is something to call."""
    given = body.get("tools")
    tools = [tool for each in (given.each() if given else ()) for tool in _render_tool(each, writing)]
    choice = body.get("tool_choice")
    rendered = _render_choice(choice) if choice else {}
    if tools:
        _check_choice(rendered, tools)
        return {"tools": tools, **rendered}
    if rendered.get("tool_choice", "auto") not in ("auto", "none"):
        raise RequestError("tool_choice: there is no tool to call", param="tool_choice")
    return {}


def _render_tool(tool: Field, writing: Writing) -> list[Json]:
    """One tool; none if it is a hosted one, which this replica cannot run."""
    kind = tool.get("type")
    if kind and kind.text() != "custom":
        writing.notes.add(f"tool of type {kind.text()} left out: the replica has no built-in tools")
        writing.lose_mark(tool)
        return []
    writing.notes.lose([f"tools.{name}" for name in tool.object() if name not in _KNOWN], "the replica's API")
    function: Json = {"name": tool.need("name").text()}
    if description := tool.get("description"):
        function["description"] = description.text()
    function["parameters"] = dict(tool.need("input_schema").object())
    if strict := tool.get("strict"):
        function["strict"] = strict.flag()
    return [writing.mark(tool, {"type": "function", "function": function})]


def _render_choice(choice: Field) -> Json:
    alone = {"parallel_tool_calls": False} if read_flag(choice, "disable_parallel_tool_use") else {}
    match choice.kind():
        case "auto" | "none" as mode:
            return {"tool_choice": mode, **alone}
        case "any":
            return {"tool_choice": "required", **alone}
        case "tool":
            name = choice.need("name").text()
            return {"tool_choice": {"type": "function", "function": {"name": name}}, **alone}
    raise choice.need("type").refuse("expected auto, any, tool or none")


def _check_choice(rendered: Json, tools: list[Json]) -> None:
    match rendered:
        case {"tool_choice": {"function": {"name": name}}} if name not in [each["function"]["name"] for each in tools]:
            raise RequestError(f"tool_choice.name: there is no tool {name!r:.100}", param="tool_choice.name")
