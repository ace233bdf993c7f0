"""The body of `/v1/messages` as a `Request`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hotloop.core.errors import RequestError
from hotloop.wire.arguments import write_arguments
from hotloop.wire.builtin import find_anthropic
from hotloop.wire.field import Body, Field, Json, read_choice, read_flag, read_number, read_object, read_text
from hotloop.wire.part import (
    Call,
    File,
    Image,
    Opaque,
    Part,
    Role,
    Text,
    ToolChange,
    ToolResult,
    Turn,
    parse_block,
    parse_content,
)
from hotloop.wire.policy import Notes
from hotloop.wire.request import ApiRequest, ApiTool, Cache, Choice, ChoiceMode, OutputShape

_OWN = {
    *("container", "context_management", "diagnostics", "inference_geo", "mcp_servers", "speed", "user_profile_id"),
    *("workspace_id", "betas", "fallbacks", "thread"),
}
_TOOL = {"type", "name", "description", "input_schema", "strict", "cache_control", "defer_loading"}
# Notes that a model or a hosted tool left for itself: nobody else can read them.
_PRIVATE = re.compile(r"server_tool_use|container_upload|mcp_tool_.*|.*_tool_result")
_CHANGES = ("tool_reference", "tool_addition", "tool_removal", "tool_search_tool_result")
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_MODES: dict[str, ChoiceMode] = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_SERVICE_TIERS = {"auto": "auto", "standard_only": "default"}


def parse_request(body: Mapping[str, Any], notes: Notes | None = None) -> ApiRequest:
    fields = Body(body)
    given = Field(fields)
    messages = given.need("messages").each()
    if not messages:
        raise RequestError("messages must contain at least one message", param="messages")
    metadata, config = given.get("metadata"), given.get("output_config")
    labels = metadata.object() if metadata else {}
    tier, top_k = read_text(given, "service_tier"), given.get("top_k")
    if thinking := given.get("thinking"):
        thinking.kind()
        if read_text(thinking, "display") not in (None, "summarized", "omitted"):
            raise thinking.need("display").refuse("expected summarized or omitted")
    request = ApiRequest(
        api="messages",
        model=given.need("model").text(),
        turns=(*_parse_system(given.get("system")), *map(_parse_turn, messages)),
        tools=(*(_parse_tool(tool, notes) for tool in given.items("tools")), *_parse_inline_tools(messages)),
        choice=_parse_choice(given.get("tool_choice")),
        shape=_parse_shape(config, given.get("output_format")),
        max_tokens=given.need("max_tokens").count(),
        temperature=read_number(given, "temperature"),
        top_p=read_number(given, "top_p"),
        top_k=top_k.count() if top_k else None,
        stop=tuple(stop.text() for stop in given.items("stop_sequences")),
        is_stream=bool(read_flag(given, "stream")),
        effort=read_choice(config, "effort", _EFFORTS),
        thinking=thinking.object() if thinking else None,
        user=read_text(metadata, "user_id"),
        service_tier=_SERVICE_TIERS.get(tier, tier) if tier else None,
        cache=Cache(read_object(given, "cache_control")),
        own={f"metadata.{name}": value for name, value in labels.items() if name != "user_id"},
    )
    return request.with_rest(fields, _OWN)


def _parse_system(system: Field | None) -> list[Turn]:
    parts = parse_content(system, _parse_block) if system and system.value != "" else ()
    return [Turn("system", parts, bool(system and system.is_text), at=system)] if parts else []


def _parse_turn(turn: Field) -> Turn:
    role, content = turn.need_text("role"), turn.need("content")
    if role not in _ROLES:
        raise turn.need("role").refuse("expected user, assistant or system")
    return Turn(_ROLES[role], parse_content(content, _parse_block), content.is_text, at=turn)


def _parse_block(block: Field) -> Part:
    kind = block.kind()
    if kind in ("thinking", "redacted_thinking"):
        return parse_block(block)
    part = _parse_known(block, kind)
    mark = read_object(block, "cache_control")
    return part.marked(mark) if mark is not None else part


def _parse_known(block: Field, kind: str) -> Text | Image | File | Call | ToolResult | Opaque:
    match kind:
        case "text":
            return Text(block.need_text("text"), at=block)
        case "image" | "document":
            return _parse_source(block, kind)
        case "search_result":
            words = [block.need(name).text() for name in ("title", "source")]
            return Opaque(
                "messages", kind, _unmarked(block), "\n".join([*words, _join_texts(block.need("content"))]), at=block
            )
        case "tool_use":
            arguments = write_arguments(block.get("input"))
            return Call(block.need_text("id"), block.need_text("name"), arguments, at=block)
        case "tool_result":
            content = block.get("content")
            parts, is_plain = parse_content(content, _parse_block), content is None or content.is_text
            is_error = bool(read_flag(block, "is_error"))
            return ToolResult(block.need_text("tool_use_id"), parts, is_plain, is_error, at=block)
    if kind in _CHANGES:
        return _parse_change(block, kind)
    return Opaque("messages", kind, _unmarked(block), is_private=bool(_PRIVATE.fullmatch(kind)), at=block)


def _parse_source(block: Field, kind: str) -> Image | File | Opaque:
    source, title, text = block.need("source"), read_text(block, "title"), None
    match kind, source.kind():
        case "image", "base64":
            return Image(_data_url(source), at=block)
        case "image", "url":
            return Image(source.need("url").text(), at=block)
        case "document", "text":
            return File(text=source.need("data").text(), name=title, at=block)
        case "document", "base64":
            return File(_data_url(source), name=title, at=block)
        case "document", "content":
            content = source.need("content")
            text = content.text() if content.is_text else _join_texts(content)
    return Opaque("messages", kind, _unmarked(block), text, at=block)


def _parse_change(block: Field, kind: str) -> ToolChange:
    """A reference stands in the result of a search, of the client's own or of Anthropic's, and a change in a system
    message. What is of an MCP server that Anthropic would ask is no tool of ours."""
    names: list[str] = []
    inline = _parse_definition(block) if kind == "tool_addition" else None
    if kind == "tool_reference":
        names = [block.need_text("tool_name")]
    elif kind == "tool_search_tool_result":
        names = [reference.need_text("tool_name") for reference in block.need("content").items("tool_references")]
    elif inline:
        names = [inline.name]
    elif (tool := block.need("tool")).kind() == "tool_reference":
        names = [tool.need_text("name")]
    return ToolChange(
        "messages",
        kind,
        _unmarked(block),
        names=tuple(names),
        is_removal=kind == "tool_removal",
        is_definition=inline is not None,
        at=block,
    )


def _parse_definition(block: Field) -> ApiTool | None:
    tool = block.need("tool")
    parsed = _parse_tool(tool.need("definition"), None) if tool.kind() == "tool_definition" else None
    return replace(parsed, is_inline=True) if isinstance(parsed, ApiTool) else None


def _parse_inline_tools(messages: Iterable[Field]) -> Iterator[ApiTool]:
    """Those that system messages define."""
    for message in messages:
        content = message.get("content") if message.object().get("role") == "system" else None
        for block in content.each() if content and not content.is_text else ():
            if block.kind() == "tool_addition" and (tool := _parse_definition(block)):
                yield tool


def _unmarked(block: Field) -> Json:
    return {name: value for name, value in block.object().items() if name != "cache_control"}


def _join_texts(content: Field) -> str:
    return "\n".join(each.need("text").text() for each in content.each())


def _data_url(source: Field) -> str:
    return f"data:{source.need('media_type').text()};base64,{source.need('data').text()}"


def _parse_tool(tool: Field, notes: Notes | None) -> ApiTool | Opaque:
    kind, mark = read_text(tool, "type"), read_object(tool, "cache_control")
    if kind and (found := find_anthropic(kind, tool.object())):
        name, own = read_text(tool, "name") or found.name, _unmarked(tool)
        return ApiTool(name, found.description, found.schema, builtin=own, mark=mark, at=tool)
    if kind is not None and kind != "custom":
        return Opaque("messages", kind, _unmarked(tool), is_private=True, mark=mark, at=tool)
    if notes:
        notes.lose([f"tools.{name}" for name in tool.object() if name not in _TOOL])
    return ApiTool(
        tool.need("name").text(),
        read_text(tool, "description"),
        tool.need("input_schema").object(),
        read_flag(tool, "strict"),
        is_deferred=bool(read_flag(tool, "defer_loading")),
        mark=mark,
        at=tool,
    )


def _parse_choice(choice: Field | None) -> Choice:
    if choice is None:
        return Choice()
    if choice.kind() not in _MODES:
        raise choice.need("type").refuse("expected auto, any, tool or none")
    name = choice.need("name").text() if choice.kind() == "tool" else None
    is_alone = read_flag(choice, "disable_parallel_tool_use")
    return Choice(_MODES[choice.kind()], name, is_parallel=False if is_alone else None)


def _parse_shape(config: Field | None, older: Field | None) -> OutputShape | None:
    """`output_format` is the beta's word for `output_config.format`."""
    form = config.get("format") if config else None
    if form and older:
        raise older.refuse("cannot be given together with output_config.format, which replaces it")
    form = form or older
    if form is None:
        return None
    if form.kind() != "json_schema":
        raise form.need("type").refuse("expected json_schema")
    return OutputShape(form.need("schema").object(), {"strict": True}, at=form)
