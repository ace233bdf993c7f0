"""A `Request` as the body of `/v1/responses`."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from hotloop.core.message import Thought
from hotloop.wire.arguments import unwrap_input
from hotloop.wire.builtin import write_call_item
from hotloop.wire.chat.render import render_common, render_effort, render_rest
from hotloop.wire.field import Json, present
from hotloop.wire.part import (
    Api,
    Call,
    File,
    Image,
    Opaque,
    Part,
    Text,
    ToolChange,
    ToolResult,
    Turn,
    seal_thought,
    text_of,
)
from hotloop.wire.policy import NOT_CONTINUED, RenderTarget, offer_tools
from hotloop.wire.request import ApiRequest, ApiTool, is_inline


def render_request(request: ApiRequest, target: RenderTarget) -> Json:
    turns, instructions = request.turns, None
    if len(turns) > 1 and turns[0].role == "system" and turns[0].is_plain:
        turns, instructions = turns[1:], turns[0].texts[0]
    rest = render_rest(request, target, "responses")
    rendered: Json = {
        **{name: value for name, value in rest.items() if "." not in name},
        "model": request.model,
        **present(instructions=instructions),
        "input": [item for turn in turns for item in _render_turn(turn, request.api, target)],
        **_render_tools(request, target),
        **_render_output(request, target),
        **render_common(request, target),
    }
    if request.is_continued:
        target.notes.add(NOT_CONTINUED)
    if request.api != "responses":
        rendered.setdefault("store", False)
    return rendered


def render_call(call: Call) -> Json:
    """A call as an item, without the item's own id and status."""
    about = present(call_id=call.id, name=call.name, namespace=call.namespace or None)
    if call.item:
        return {"call_id": call.id, **write_call_item(call.item, call.arguments)}
    if call.is_custom:
        return {"type": "custom_tool_call", **about, "input": unwrap_input(call.arguments)}
    return {"type": "function_call", **about, "arguments": call.arguments}


def _render_turn(turn: Turn, api: Api, target: RenderTarget) -> Iterator[Json]:
    """What belongs to a message is together in it; everything else is an item of its own."""
    is_answer = turn.role == "assistant"
    if not turn.parts:
        yield {"type": "message", "role": turn.role, "content": "" if turn.is_plain else []}
    for is_said, parts in groupby(turn.parts, lambda part: isinstance(part, Text | Image | File)):
        if is_said:
            content = [_render_part(part, is_answer, target) for part in parts]
            is_text = all("text" in part for part in content)
            is_plain = turn.is_plain and len(content) == 1
            if is_text and (is_plain or (is_answer and api != "responses")):  # an answer was one text
                yield {"type": "message", "role": turn.role, "content": "".join(part["text"] for part in content)}
            else:
                yield {"type": "message", "role": turn.role, "content": content}
            continue
        for part in parts:
            yield from _render_item(part, api, target)


def _render_item(part: Part, api: Api, target: RenderTarget) -> Iterable[Json]:
    match part:
        case Thought():
            return _render_thought(part, target)
        case Call():
            target.lose_mark(part.mark)
            return [render_call(part if api == "responses" else replace(part, is_custom=False))]
        case ToolResult():
            return [_render_result(part, target)]
        case Opaque() if part.api == "responses":
            return [part.value]
        case Opaque() if part.text is not None:
            content = [_render_part(Text(part.text, mark=part.mark), is_answer=False, target=target)]
            return [{"type": "message", "role": "user", "content": content}]
        case Opaque():
            target.leave_out(part)
    return []


def _render_thought(thought: Thought, target: RenderTarget) -> list[Json]:
    """OpenAI takes back only what it has sealed; engines take back what they said."""
    text = "" if thought.is_sealed else thought.text
    is_own = thought.maker == "responses"
    if is_own and not (text or thought.signature):
        return []  # it was kept by its maker, who was not asked to give it out
    if target.is_strict and not is_own:
        target.notes.add("thinking left out: the replica's API has no place for it")
        return []
    summary = [{"type": "summary_text", "text": thought.summary}] if thought.summary else []
    content = [{"type": "reasoning_text", "text": text}] if text else None
    return [{"type": "reasoning", "summary": summary, **present(content=content), **seal_thought(thought)}]


def _render_result(result: ToolResult, target: RenderTarget) -> Json:
    target.lose_mark(result.mark)
    if result.item:
        return dict(result.item)
    kind = "custom_tool_call_output" if result.is_custom else "function_call_output"
    about: Json = {"type": kind, "call_id": result.call_id}
    if result.is_plain or result.is_error:
        return {**about, "output": result.text}
    return {**about, "output": [_render_part(part, is_answer=False, target=target) for part in result.parts]}


def _render_part(part: Part, is_answer: bool, target: RenderTarget) -> Json:
    if not isinstance(part, Thought):
        target.lose_mark(part.mark)
    match part:
        case Text(is_refusal=True) if is_answer:
            return {"type": "refusal", "refusal": part.text}
        case Image():
            return {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}
        case File(url=url) if url:
            return {"type": "input_file", "filename": part.name or "document.pdf", "file_data": url}
        case Opaque() if part.api == "responses":
            return part.value
        case Opaque(text=None) if not isinstance(part, ToolChange):
            raise part.refuse(f"content of type {part.kind!r:.60} cannot be carried to this replica")
    return {"type": "output_text" if is_answer else "input_text", "text": text_of(part) or ""}


def _render_tools(request: ApiRequest, target: RenderTarget) -> Json:
    choice = request.choice
    if request.api == "responses":
        tools = [*_render_own(tool for tool in request.tools if not is_inline(tool))]
    else:
        # Functions that do not say are strict here, and are not in other APIs.
        usual = {"parameters": {"type": "object", "properties": {}}, "strict": False}
        tools = [usual | _render_tool(tool) for tool in offer_tools(request, target)]
        for tool in request.tools:
            target.lose_mark(tool.mark)
    if not tools:
        return {}
    chosen: Any = choice.mode
    own = request.tools if request.api == "responses" else ()  # those of others have become functions
    names = {tool.flat_name: tool for tool in own if isinstance(tool, ApiTool)}
    if choice.name is not None:
        chosen = _render_named(choice.name, names)
    elif choice.allowed is not None and request.api == "responses":
        allowed = [_render_named(name, names) for name in choice.allowed]
        chosen = {"type": "allowed_tools", "mode": choice.mode or "auto", "tools": allowed}
    return present(tools=tools, tool_choice=chosen, parallel_tool_calls=choice.is_parallel)


def _render_named(name: str, tools: dict[str, ApiTool]) -> Json:
    tool = tools.get(name) or ApiTool(name)
    if tool.builtin:
        return {"type": tool.builtin["type"]}
    return present(type="custom" if tool.is_custom else "function", name=tool.name, namespace=tool.namespace or None)


def _render_own(tools: Iterable[ApiTool | Opaque]) -> Iterator[Json]:
    """Tools of one namespace that follow each other are in it together."""
    for namespace, inner in groupby(tools, lambda tool: tool.namespace if isinstance(tool, ApiTool) else None):
        rendered = [_render_tool(tool) if isinstance(tool, ApiTool) else tool.value for tool in inner]
        if namespace:
            yield {"type": "namespace", "name": namespace, "tools": rendered}
        else:
            yield from rendered


def _render_tool(tool: ApiTool) -> Json:
    if tool.builtin:
        return dict(tool.builtin)
    about = present(name=tool.name, description=tool.description)
    deferred = present(defer_loading=tool.is_deferred or None)
    if tool.is_custom:
        return {"type": "custom", **about, **present(format=tool.form), **deferred}
    return {"type": "function", **about, **present(parameters=tool.schema, strict=tool.is_strict), **deferred}


def _render_output(request: ApiRequest, target: RenderTarget) -> Json:
    stop = [*request.stop] or None
    if stop and target.is_strict:
        target.notes.lose(["stop"])
        stop = None
    form, shape = None, request.shape
    if shape:
        about = {"name": "answer", **shape.about, "schema": shape.schema}
        form = {"type": "json_object"} if shape.schema is None else {"type": "json_schema", **about}
    return present(
        stream=request.is_stream or None,
        max_output_tokens=None if request.max_tokens is None else max(request.max_tokens, 1),
        top_k=None if target.is_strict else request.top_k,
        stop=stop,
        reasoning=present(effort=render_effort(request, target), summary=request.own.get("reasoning.summary")) or None,
        text=present(verbosity=request.verbosity, format=form) or None,
    )
