"""The items of a response's input as the messages of a chat.

    message, reasoning, message (assistant), function_call, function_call, function_call_output  ->
    user, assistant with reasoning_content and two calls, tool

Calls belong to the turn of the assistant that they directly follow, or begin one.
"""

from collections.abc import Sequence
from typing import Any

from hotloop.core.errors import RequestError
from hotloop.router.translate.field import Field, Json, read_text
from hotloop.router.translate.notes import Notes
from hotloop.router.translate.responses_to_chat.tools import model_name, wrap_input

# Notes that a hosted tool left for itself: nobody else can read them.
_LEFT_OUT = frozenset(
    {
        *("web_search_call", "image_generation_call", "file_search_call", "code_interpreter_call", "compaction"),
        *("tool_search_call", "tool_search_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    }
)
_ROLES = {"user": "user", "system": "system", "developer": "system"}


class Turns:
    """The messages so far; the last may be an assistant's that is still to gain calls."""

    def __init__(self, notes: Notes, *, is_strict: bool) -> None:
        self.messages: list[Json] = []
        self._notes = notes
        self._is_strict = is_strict
        self._is_open = False
        self._thought = ""

    def add(self, item: Field) -> None:
        kind = read_text(item, "type") or "message"
        match kind:
            case "message":
                self._say(item)
            case "function_call":
                self._call(item, item.need("arguments").text())
            case "custom_tool_call":
                self._call(item, wrap_input(item.need("input").text()))
            case "function_call_output" | "custom_tool_call_output":
                content = _render_content(item.need("output"), _TEXTS)
                self._put({"role": "tool", "tool_call_id": item.need("call_id").text(), "content": content})
            case "reasoning":
                self._think(item)
            case _ if kind in _LEFT_OUT:
                self._notes.add(f"items of type {kind} left out")
            case _:
                raise item.refuse(f"an item of type {kind!r:.60} cannot be carried to this replica")

    def _say(self, item: Field) -> None:
        role, content = item.need("role"), item.need("content")
        if role.text() == "assistant":
            self._put({"role": "assistant", "content": _join(content)} | self._take_thought())
            self._is_open = True
        elif role.text() in _ROLES:
            self._put({"role": _ROLES[role.text()], "content": _render_content(content, _PARTS)})
        else:
            raise role.refuse("expected user, assistant, system or developer")

    def _call(self, item: Field, arguments: str) -> None:
        if not self._is_open:
            self._put({"role": "assistant", "content": None} | self._take_thought())
            self._is_open = True
        name = model_name(item.need("name").text(), read_text(item, "namespace"))
        call = {"id": item.need("call_id").text(), "type": "function"}
        self.messages[-1].setdefault("tool_calls", []).append(
            {**call, "function": {"name": name, "arguments": arguments}}
        )

    def _put(self, message: Json) -> None:
        self._is_open = False
        self.messages.append(message)

    def _think(self, item: Field) -> None:
        """What an engine thought it takes back; what is sealed or summed up is of use to its maker only."""
        content = item.get("content")
        thought = "".join(part.need("text").text() for part in content.each()) if content else ""
        if not thought or self._is_strict:
            self._notes.add("items of type reasoning left out")
        else:
            self._thought += thought
            self._is_open = False

    def _take_thought(self) -> Json:
        thought, self._thought = self._thought, ""
        return {"reasoning_content": thought} if thought else {}


def render_items(body: Field, notes: Notes, *, is_strict: bool) -> list[Json]:
    turns = Turns(notes, is_strict=is_strict)
    if instructions := read_text(body, "instructions"):
        turns.messages.append({"role": "system", "content": instructions})
    given = body.need("input")
    if given.is_text:
        turns.messages.append({"role": "user", "content": given.text()})
    else:
        for item in given.each():
            turns.add(item)
    if not turns.messages:
        raise RequestError("input: there is nothing to answer", param="input")
    return turns.messages


def _render_text(part: Field) -> Json:
    return {"type": "text", "text": part.need("text").text()}


def _render_refusal(part: Field) -> Json:
    return {"type": "text", "text": part.need("refusal").text()}


def _render_image(part: Field) -> Json:
    image: Json = {"url": part.need("image_url").text()}
    detail = read_text(part, "detail")
    return {"type": "image_url", "image_url": {**image, "detail": detail} if detail else image}


def _render_file(part: Field) -> Json:
    file = {"filename": read_text(part, "filename") or "file", "file_data": part.need("file_data").text()}
    return {"type": "file", "file": file}


_TEXTS: dict[str, Any] = {
    **dict.fromkeys(("input_text", "output_text", "text"), _render_text),
    "refusal": _render_refusal,
}
_PARTS: dict[str, Any] = {**_TEXTS, "input_image": _render_image, "input_file": _render_file}


def _render_content(content: Field, known: dict[str, Any]) -> str | list[Json]:
    return content.text() if content.is_text else [_render_part(part, known) for part in content.each()]


def _render_part(part: Field, known: dict[str, Any]) -> Json:
    kind = part.kind()
    if kind not in known:
        raise part.refuse(f"content of type {kind!r:.60} cannot be carried to this replica")
    rendered: Json = known[kind](part)
    return rendered


def _join(content: Field) -> str:
    """An answer was one text, in however many parts it comes back."""
    rendered = _render_content(content, _TEXTS)
    return rendered if isinstance(rendered, str) else _join_parts(rendered)


def _join_parts(parts: Sequence[Json]) -> str:
    return "".join(part["text"] for part in parts)
