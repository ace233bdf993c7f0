"""The body of `/v1/responses` as a `Request`.

message, reasoning, message (assistant), function_call, function_call, function_call_output  ->
user, assistant with a thought, a text and two calls, user with a result
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from hotloop.core.errors import RequestError
from hotloop.core.message import Thought
from hotloop.wire.arguments import wrap_input
from hotloop.wire.builtin import (
    CALL_ITEMS,
    RESULT_ITEMS,
    choose_openai,
    find_openai,
    read_call_id,
    read_call_item,
    read_result_item,
)
from hotloop.wire.chat.parse import EFFORTS, ROLES, parse_choice, parse_common, parse_function, parse_shape, parse_stop
from hotloop.wire.field import Body, Field, present, read_choice, read_flag, read_object, read_text
from hotloop.wire.part import (
    Call,
    File,
    Image,
    Opaque,
    Part,
    Text,
    ToolChange,
    ToolResult,
    Turn,
    open_thought,
    parse_content,
    unseal_text,
)
from hotloop.wire.policy import Notes
from hotloop.wire.request import ApiRequest, ApiTool

_OWN = {
    *("store", "background", "previous_response_id", "conversation", "prompt", "include", "truncation", "metadata"),
    *("top_logprobs", "max_tool_calls", "context_management"),
}
# Notes that a hosted tool left for itself: nobody else can read them.
_PRIVATE = {
    *("web_search_call", "image_generation_call", "file_search_call", "code_interpreter_call", "compaction"),
    *("tool_search_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
}
_CHANGES = ("additional_tools", "tool_search_output")
# An assistant's turn is thoughts, then text, then calls: an item that comes before what there is begins another.
_RANKS: dict[type, int] = {Thought: 0, Text: 1, Image: 1, File: 1, Call: 2, Opaque: 2}
_SUMMARY = "This is a summary of the conversation so far, which has been left out:"
_SUMMARIES = ("auto", "concise", "detailed")
_TEXTS = ("input_text", "output_text", "text")


def parse_request(body: Mapping[str, Any], notes: Notes | None = None) -> ApiRequest:
    fields = Body(body)
    given = Field(fields)
    given.get("stream_options")  # how the stream is obscured: nobody else does that
    instructions, limit, reasoning, text = (
        given.get(name) for name in ("instructions", "max_output_tokens", "reasoning", "text")
    )
    turns = parse_input(given.need("input"))
    if instructions and instructions.text():
        turns.insert(0, Turn("system", (Text(instructions.text()),), is_plain=True, at=instructions))
    if not turns:
        raise RequestError("input must contain at least one message", param="input")
    request = ApiRequest(
        api="responses",
        model=given.need("model").text(),
        turns=tuple(turns),
        tools=(
            *(tool for each in given.items("tools") for tool in _parse_tool(each)),
            *_parse_inline_tools(given.need("input")),
        ),
        choice=parse_choice(given, _name),
        shape=parse_shape(text.get("format") if text else None, None),
        max_tokens=limit.count(1) if limit else None,
        stop=parse_stop(given.get("stop")),
        effort=read_choice(reasoning, "effort", EFFORTS),
        verbosity=read_text(text, "verbosity"),
        own=present(**{"reasoning.summary": _parse_summary(reasoning)}),
        **parse_common(given),
    )
    return request.with_rest(fields, _OWN)


def _parse_summary(reasoning: Field | None) -> str | None:
    """Which summary of its thoughts is asked for; an older name of the field is `generate_summary`."""
    given = reasoning and (reasoning.get("summary") or reasoning.get("generate_summary"))
    if not given or given.text() == "none":
        return None
    if given.text() not in _SUMMARIES:
        raise given.refuse(f"expected {', '.join(_SUMMARIES)}")
    return given.text()


def parse_input(given: Field) -> list[Turn]:
    if given.is_text:
        return [Turn("user", (Text(given.text(), at=given),), is_plain=True, at=given)]
    turns: list[Turn] = []
    parts: list[Part] = []  # of an assistant's turn that goes on
    rank, is_plain = 0, False
    for item in given.each():
        turn = _parse_item(item)
        is_answer = turn.role == "assistant"
        if parts and (not is_answer or _RANKS[type(turn.parts[0])] < rank or _RANKS[type(turn.parts[0])] == rank == 1):
            turns.append(Turn("assistant", tuple(parts), is_plain))
            parts, rank, is_plain = [], 0, False
        if is_answer:
            parts += turn.parts
            rank, is_plain = _RANKS[type(parts[-1])], is_plain or turn.is_plain
        else:
            turns.append(turn)
    return _join_summaries([*turns, Turn("assistant", tuple(parts), is_plain)] if parts else turns)


def _join_summaries(turns: list[Turn]) -> list[Turn]:
    """A summary and what the user says around it are one turn: in many templates user and assistant take turns."""
    if not any(map(_is_summary, turns)):
        return turns
    joined: list[Turn] = []
    for is_said, run in groupby(turns, _is_said):
        said = [*run]
        if is_said and any(map(_is_summary, said)):
            said = [Turn("user", tuple(part for turn in said for part in turn.parts), at=said[0].at)]
        joined += said
    return joined


def _is_said(turn: Turn) -> bool:
    return turn.role == "user" and not any(isinstance(part, ToolResult) for part in turn.parts)


def _is_summary(turn: Turn) -> bool:
    return turn.role == "user" and turn.at is not None and turn.at.value.get("type") == "compaction"


def _parse_item(item: Field) -> Turn:
    kind = read_text(item, "type") or "message"
    match kind:
        case "message":
            return _parse_message(item)
        case "reasoning":
            return Turn("assistant", (_parse_thought(item),), at=item)
        case "function_call" | "custom_tool_call":
            return Turn("assistant", (_parse_call(item, is_custom=kind == "custom_tool_call"),), at=item)
        case "function_call_output" | "custom_tool_call_output":
            output, call_id = item.need("output"), item.need("call_id").text()
            is_custom = kind == "custom_tool_call_output"
            parts = parse_content(output, _parse_part)
            result = ToolResult(call_id, parts, output.is_text, is_custom=is_custom, at=item)
            return Turn("user", (result,), at=item)
        case _ if kind in _CHANGES:
            names = tuple(tool.flat_name for tool in _parse_functions(item))
            change = ToolChange("responses", kind, item.object(), names=names, is_definition=True, at=item)
            return Turn("system", (change,), at=item)
        case "compaction" if (summary := unseal_text(read_text(item, "encrypted_content") or "")) is not None:
            return Turn("user", (Text(f"{_SUMMARY}\n\n{summary}", at=item),), at=item)
        case _ if kind in CALL_ITEMS:
            call = Call(read_call_id(item), CALL_ITEMS[kind].name, read_call_item(item, kind), item=kind, at=item)
            return Turn("assistant", (call,), at=item)
        case _ if kind in RESULT_ITEMS:
            parts, has_failed = read_result_item(item, kind)
            result = ToolResult(read_call_id(item), parts, is_error=has_failed, item=item.object(), at=item)
            return Turn("user", (result,), at=item)
    part = Opaque("responses", kind, item.object(), is_private=kind in _PRIVATE, at=item)
    return Turn("assistant", (part,), at=item)


def _parse_message(item: Field) -> Turn:
    role, content = item.need("role"), item.need("content")
    if role.text() not in ROLES:
        raise role.refuse("expected user, assistant, system or developer")
    parts = parse_content(content, _parse_part)
    if role.text() == "assistant" and not parts:
        parts = (Text("", at=item),)  # it was its turn, even if it said nothing
    return Turn(ROLES[role.text()], parts, content.is_text, at=item)


def _parse_thought(item: Field) -> Thought:
    text = "".join(part.need("text").text() for part in item.items("content"))
    summary = "".join(part.need("text").text() for part in item.items("summary"))
    return open_thought(text, summary, read_text(item, "encrypted_content") or "")


def _parse_call(item: Field, *, is_custom: bool) -> Call:
    call_id, name, namespace = item.need("call_id").text(), item.need("name").text(), read_text(item, "namespace")
    arguments = wrap_input(item.need("input").text()) if is_custom else item.need("arguments").text()
    return Call(call_id, name, arguments, namespace, is_custom, at=item)


def _parse_part(part: Field) -> Part:
    kind = part.kind()
    if kind in _TEXTS:
        return Text(part.need("text").text(), at=part)
    if kind == "refusal":
        return Text(part.need("refusal").text(), is_refusal=True, at=part)
    if kind == "input_image" and part.get("image_url"):
        detail = read_text(part, "detail")
        return Image(part.need("image_url").text(), None if detail == "auto" else detail, at=part)
    if kind == "input_file" and part.get("file_data"):
        return File(part.need("file_data").text(), name=read_text(part, "filename"), at=part)
    return Opaque("responses", kind, part.object(), at=part)


def _parse_tool(tool: Field, namespace: str | None = None) -> Iterable[ApiTool | Opaque]:
    kind = tool.kind()
    if kind == "namespace" and namespace is None:
        for inner in tool.need("tools").each():
            yield from _parse_tool(inner, tool.need("name").text())
    elif kind in ("function", "custom"):
        form = read_object(tool, "format")
        is_deferred = bool(read_flag(tool, "defer_loading"))
        about = {"namespace": namespace, "is_custom": kind == "custom", "form": form, "is_deferred": is_deferred}
        yield parse_function(tool, **about, at=tool)
    elif found := find_openai(tool.object()):
        yield ApiTool(found.name, found.description, found.schema, builtin=tool.object(), at=tool)
    else:
        yield Opaque("responses", kind, tool.object(), is_private=kind != "namespace", at=tool)


def _parse_functions(item: Field) -> Iterator[ApiTool]:
    for each in item.items("tools"):
        for tool in _parse_tool(each):
            if isinstance(tool, ApiTool):
                yield replace(tool, is_inline=True)


def _parse_inline_tools(given: Field) -> Iterator[ApiTool]:
    for item in () if given.is_text else given.each():
        if read_text(item, "type") in _CHANGES:
            yield from _parse_functions(item)


def _name(choice: Field) -> str | None:
    kind = read_text(choice, "type") or "function"
    if kind not in ("function", "custom"):
        return choose_openai(kind)
    return ApiTool(choice.need("name").text(), namespace=read_text(choice, "namespace")).flat_name
