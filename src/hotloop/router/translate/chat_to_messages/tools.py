"""OpenAI's tools, and which of them may or must be called, in Anthropic's words."""

from hotloop.core.errors import RequestError
from hotloop.router.translate.chat_to_messages.marks import mark
from hotloop.router.translate.field import Field, Json
from hotloop.router.translate.notes import Notes


def render_tools(body: Field, notes: Notes) -> Json:
    """`tools` and `tool_choice`, as far as there is something to call."""
    given = body.get("tools")
    tools = [_render_tool(tool, notes) for tool in (given.each() if given else ())]
    choice = body.get("tool_choice")
    parallel = body.get("parallel_tool_calls")
    rendered: Json = _render_choice(choice) if choice else {"type": "auto"}
    if not tools:
        if rendered["type"] in ("any", "tool"):
            raise RequestError("tool_choice: there is no tool to call", param="tool_choice")
        return {}
    if choice and not choice.is_text and choice.kind() == "allowed_tools":
        tools = _allow(tools, choice, notes)
    if parallel is not None and not parallel.flag() and rendered["type"] != "none":
        rendered["disable_parallel_tool_use"] = True
    return {"tools": tools} if rendered == {"type": "auto"} else {"tools": tools, "tool_choice": rendered}


def _render_tool(tool: Field, notes: Notes) -> Json:
    if tool.kind() != "function":
        raise tool.refuse(f"a tool of type {tool.kind()!r:.60} cannot be carried to this replica")
    function = tool.need("function")
    rendered: Json = {"name": function.need("name").text()}
    if description := function.get("description"):
        rendered["description"] = description.text()
    parameters = function.get("parameters")
    rendered["input_schema"] = {"type": "object", **(parameters.object() if parameters else {"properties": {}})}
    if strict := function.get("strict"):
        rendered["strict"] = strict.flag()
    return mark(tool if tool.get("cache_control") else function, rendered, notes)


def _render_choice(choice: Field) -> Json:
    if choice.is_text:
        return _render_mode(choice)
    match choice.kind():
        case "function":
            return {"type": "tool", "name": choice.need("function").need("name").text()}
        case "allowed_tools":
            return _render_mode(choice.need("allowed_tools").need("mode"))
    raise choice.need("type").refuse("expected function or allowed_tools")


def _render_mode(mode: Field) -> Json:
    modes = {"auto": "auto", "none": "none", "required": "any"}
    if mode.text() not in modes:
        raise mode.refuse("expected auto, none or required")
    return {"type": modes[mode.text()]}


def _allow(tools: list[Json], choice: Field, notes: Notes) -> list[Json]:
    """Anthropic has no tools that are shown and not allowed; what may not be called is not shown."""
    allowed = choice.need("allowed_tools").need("tools")
    names = {tool.need("function").need("name").text() for tool in allowed.each()}
    kept = [tool for tool in tools if tool["name"] in names]
    if not kept:
        raise allowed.refuse("none of these tools is given")
    if len(kept) < len(tools):
        notes.add("tool_choice.allowed_tools: the other tools are left out, which changes the prompt")
    return kept
