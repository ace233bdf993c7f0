"""The tools of a response as functions of a chat, and what each of them was, so that calls go back as such.

A custom tool takes plain text: to a chat it is a function with one text. A namespace's tools carry its name.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hotloop.core.errors import RequestError
from hotloop.router.translate.calls import read_arguments
from hotloop.router.translate.field import Field, Json, read_text
from hotloop.router.translate.notes import Notes

_TEXT_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Offer:
    """What a function of the chat was to the client."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    def render(self, call_id: str, arguments: str) -> Json:
        """A call as an item, without the item's own id and status."""
        about: Json = {"call_id": call_id, "name": self.name}
        about |= {"namespace": self.namespace} if self.namespace else {}
        if self.is_custom:
            return {"type": "custom_tool_call", **about, "input": unwrap_input(arguments)}
        return {"type": "function_call", **about, "arguments": arguments}


@dataclass(frozen=True, slots=True)
class Toolbox:
    fields: Json = field(default_factory=dict)
    """What the chat says about tools."""
    offers: Mapping[str, Offer] = field(default_factory=dict)

    def find(self, name: str) -> Offer:
        return self.offers.get(name) or Offer(name)


def model_name(name: str, namespace: str | None) -> str:
    return f"{namespace}__{name}" if namespace else name


def wrap_input(text: str) -> str:
    return json.dumps({"input": text}, ensure_ascii=False)


def unwrap_input(arguments: str) -> str:
    """The text in a custom tool's arguments; nothing if they were cut off."""
    text = (read_arguments(arguments) or {}).get("input")
    return text if isinstance(text, str) else ""


def parse_toolbox(body: Field, notes: Notes) -> Toolbox:
    given = body.get("tools")
    pairs = [pair for tool in (given.each() if given else ()) for pair in _render_tool(tool, notes)]
    choice = body.get("tool_choice")
    rendered = _render_choice(choice) if choice else None
    tools = _allow([tool for tool, _ in pairs], choice, notes)
    if not tools:
        if rendered not in (None, "auto", "none"):
            raise RequestError("tool_choice: there is no tool to call", param="tool_choice")
        return Toolbox()
    fields: Json = {"tools": tools, **({} if rendered is None else {"tool_choice": rendered})}
    if parallel := body.get("parallel_tool_calls"):
        fields["parallel_tool_calls"] = parallel.flag()
    return Toolbox(fields, {tool["function"]["name"]: offer for tool, offer in pairs})


def _render_tool(tool: Field, notes: Notes, namespace: str | None = None) -> Iterable[tuple[Json, Offer]]:
    match tool.kind():
        case "function":
            yield _render_function(tool, namespace)
        case "custom":
            yield _render_custom(tool, namespace)
        case "namespace" if namespace is None:
            for inner in tool.need("tools").each():
                yield from _render_tool(inner, notes, tool.need("name").text())
        case kind:
            notes.add(f"tool of type {kind} left out: the replica has no built-in tools")


def _render_function(tool: Field, namespace: str | None) -> tuple[Json, Offer]:
    name = tool.need("name").text()
    parameters, strict = tool.get("parameters"), tool.get("strict")
    function: Json = {"name": model_name(name, namespace)}
    if description := read_text(tool, "description"):
        function["description"] = description
    function["parameters"] = dict(parameters.object()) if parameters else {"type": "object", "properties": {}}
    if strict:
        function["strict"] = strict.flag()
    return {"type": "function", "function": function}, Offer(name, namespace)


def _render_custom(tool: Field, namespace: str | None) -> tuple[Json, Offer]:
    name, form = tool.need("name").text(), tool.get("format")
    description = read_text(tool, "description") or ""
    if form and (definition := read_text(form, "definition")):
        description += f"\nThe input follows this {read_text(form, 'syntax') or ''} grammar:\n{definition}"
    function = {"name": model_name(name, namespace), "description": description.strip(), "parameters": _TEXT_INPUT}
    return {"type": "function", "function": function}, Offer(name, namespace, is_custom=True)


def _render_choice(choice: Field) -> str | Json:
    mode = choice
    if not choice.is_text:
        if choice.kind() in ("function", "custom"):
            return {"type": "function", "function": {"name": _name(choice)}}
        if choice.kind() != "allowed_tools":
            raise choice.need("type").refuse("expected function, custom or allowed_tools")
        mode = choice.need("mode")
    if mode.text() not in ("auto", "none", "required"):
        raise mode.refuse("expected auto, none or required")
    return mode.text()


def _allow(tools: list[Json], choice: Field | None, notes: Notes) -> list[Json]:
    """Engines know no tools that are shown and not allowed; what may not be called is not shown."""
    if choice is None or choice.is_text or choice.kind() != "allowed_tools":
        return tools
    names = {_name(tool) for tool in choice.need("tools").each()}
    kept = [tool for tool in tools if tool["function"]["name"] in names]
    if len(kept) < len(tools):
        notes.add("tool_choice.tools: the other tools are left out, which changes the prompt")
    return kept


def _name(choice: Field) -> str:
    return model_name(choice.need("name").text(), read_text(choice, "namespace"))
