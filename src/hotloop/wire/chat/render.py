"""A `Request` as the body of `/v1/chat/completions`.

A text stays a text and a list stays a list, whatever is marked in it: marks move from turn to turn, and the prompt made
from a message must not. Each turn is rendered from itself alone, so a longer conversation begins with exactly what the
shorter one was.
"""

import hashlib
from collections.abc import Iterable

from msgspec.structs import replace

from hotloop.core.message import Thought
from hotloop.wire.arguments import unwrap_input
from hotloop.wire.field import Json, present
from hotloop.wire.part import Api, Call, File, Image, Opaque, Part, ToolResult, Turn, is_signed, render_block, text_of
from hotloop.wire.policy import NOT_CONTINUED, RenderTarget, offer_tools
from hotloop.wire.request import ApiRequest, ApiTool

MAX_USER_CHARS = 64
"""Of `user`, to OpenAI; the hash that stands for a longer one has as many."""

SHARED = {"safety_identifier", "metadata"}
"""Fields that are spelt and meant alike in both of OpenAI's APIs, and are not read here."""

_EFFORTS = ("none", "minimal", "low", "medium", "high")


def render_request(request: ApiRequest, target: RenderTarget) -> Json:
    return {
        **render_rest(request, target, "chat"),
        "model": request.model,
        "messages": _render_turns(request, target),
        **_render_tools(request, target),
        **_render_sampling(request, target),
        **_render_output(request, target),
        **render_common(request, target),
        **_render_continued(request, target),
    }


def _render_continued(request: ApiRequest, target: RenderTarget) -> Json:
    """In the words that engines have for it; OpenAI has none."""
    is_said = request.is_continued and not target.is_strict
    return {"continue_final_message": True, "add_generation_prompt": False} if is_said else {}


def render_rest(request: ApiRequest, target: RenderTarget, home: Api) -> Json:
    """Engines take many fields of their own, and ignore the rest; OpenAI refuses what it does not know."""
    is_home = request.api == home
    lost = [] if is_home else [name for name, value in request.own.items() if value]
    unknown = [name for name in request.fields if name not in SHARED] if target.is_strict and not is_home else []
    target.notes.lose(lost + unknown)
    kept = {name: value for name, value in request.fields.items() if name not in unknown}
    return {**(request.own if is_home else {}), **kept}


def render_common(request: ApiRequest, target: RenderTarget) -> Json:
    rendered = present(
        temperature=request.temperature,
        top_p=request.top_p,
        user=None if request.user is None else _render_user(request.user, target),
        service_tier=request.service_tier,
        prompt_cache_key=request.cache.key,
        prompt_cache_retention=request.cache.retention,
        prompt_cache_options=request.cache.options,
    )
    return rendered | target.keeps(request.cache.mark)


def render_effort(request: ApiRequest, target: RenderTarget) -> str | None:
    effort = request.effort
    if effort is None or request.api != "messages" or effort in _EFFORTS:
        return effort
    target.notes.add(f"output_config.effort: {effort} becomes high")
    return "high"


def render_call(call: Call) -> Json:
    if call.is_custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": unwrap_input(call.arguments)}}
    return {"id": call.id, "type": "function", "function": {"name": call.flat_name, "arguments": call.arguments}}


def _render_turns(request: ApiRequest, target: RenderTarget) -> list[Json]:
    messages = [message for turn in request.turns for message in _render_turn(turn, request.api, target)]
    if request.is_continued and target.is_strict:
        target.notes.add(NOT_CONTINUED)
    return messages


def _render_turn(turn: Turn, api: Api, target: RenderTarget) -> list[Json]:
    named = present(name=turn.name)
    match turn.role:
        case "assistant":
            return [_render_assistant(turn, api, target) | named]
        case "user":
            return _render_user_turn(turn, target, named)
    content = _render_content(turn.parts, turn.is_plain, target)
    return [{"role": "system", "content": content, **named}] if content else []


def _render_user_turn(turn: Turn, target: RenderTarget, named: Json) -> list[Json]:
    """Results are messages of their own, and come first: they answer the calls before."""
    results = [part for part in turn.parts if isinstance(part, ToolResult)]
    rest = [part for part in turn.parts if not isinstance(part, ToolResult)]
    if not results:
        return [{"role": "user", "content": _render_content(rest, turn.is_plain, target) or "", **named}]
    messages = [_render_result(result, target) for result in results]
    shown = [part for result in results for part in _show(result, target)]
    parts = shown + _render_parts(rest, target)
    return [*messages, {"role": "user", "content": parts, **named}] if parts else messages


def _render_result(result: ToolResult, target: RenderTarget) -> Json:
    for part in result.parts:
        if not isinstance(part, Thought):
            target.lose_mark(part.mark)
        if isinstance(part, Opaque) and text_of(part) is None:
            target.leave_out(part)
    marked = target.keeps(result.mark)
    content = [{"type": "text", "text": result.text, **marked}] if marked else result.text
    return {"role": "tool", "tool_call_id": result.call_id, "content": content}


def _show(result: ToolResult, target: RenderTarget) -> list[Json]:
    """The pictures in a tool's result: a chat has them in the user's messages only."""
    pictures = [part for part in result.parts if isinstance(part, Image) or (isinstance(part, File) and part.url)]
    if not pictures:
        return []
    target.notes.add("images in tool results are sent as user content")
    caption = {"type": "text", "text": f"From the result of call {result.call_id}:"}
    return [caption, *(_render_part(part) for part in pictures)]


def _render_assistant(turn: Turn, api: Api, target: RenderTarget) -> Json:
    """An answer comes back in as many parts as it was given out in, and was one text."""
    for part in turn.parts:
        if isinstance(part, Opaque):
            target.leave_out(part)
        elif not isinstance(part, Thought):
            target.lose_mark(part.mark)
    text = "".join(turn.texts)
    calls = [part if api == "chat" else replace(part, is_custom=False) for part in turn.parts if isinstance(part, Call)]
    message: Json = {"role": "assistant", "content": text or None if calls else text}
    message |= _render_thoughts([part for part in turn.parts if isinstance(part, Thought)], target)
    return {**message, "tool_calls": [*map(render_call, calls)]} if calls else message


def _render_thoughts(thoughts: list[Thought], target: RenderTarget) -> Json:
    """Engines that give reasoning out as such take it back the same way, and templates know where it belongs."""
    signed = [render_block(thought) for thought in thoughts if is_signed(thought)]
    rendered: Json = {"thinking_blocks": signed} if signed and target.takes_signatures else {}
    if any(thought.is_sealed for thought in thoughts) and not rendered:
        target.notes.add("content of type redacted_thinking left out")
    text = "".join(thought.text for thought in thoughts if not thought.is_sealed)
    if text and target.is_strict:
        target.notes.add("thinking left out: the replica's API has no place for it")
    elif text:
        rendered["reasoning_content"] = text
    elif any(thought.maker == "responses" for thought in thoughts):
        target.notes.add("items of type reasoning left out")
    return rendered


def _render_content(parts: Iterable[Part], is_plain: bool, target: RenderTarget) -> str | list[Json]:
    rendered = _render_parts(parts, target)
    if is_plain and len(rendered) == 1 and set(rendered[0]) == {"type", "text"}:
        return str(rendered[0]["text"])
    return rendered


def _render_parts(parts: Iterable[Part], target: RenderTarget) -> list[Json]:
    rendered = []
    for part in parts:
        if isinstance(part, Opaque) and part.text is None:
            target.leave_out(part)
        elif not isinstance(part, Thought):
            rendered.append({**_render_part(part), **target.keeps(part.mark)})
    return rendered


def _render_part(part: Part) -> Json:
    match part:
        case Image():
            return {"type": "image_url", "image_url": {"url": part.url, **present(detail=part.detail or None)}}
        case File() if part.url:
            return {"type": "file", "file": {"filename": part.name or "document.pdf", "file_data": part.url}}
    return {"type": "text", "text": text_of(part) or ""}


def _render_tools(request: ApiRequest, target: RenderTarget) -> Json:
    tools, choice = offer_tools(request, target), request.choice
    if not tools:
        return {}
    custom = {tool.name: tool for tool in request.tools if isinstance(tool, ApiTool) and tool.is_custom}
    own = custom if request.api == "chat" else {}
    kind = "custom" if choice.name in own else "function"
    named = None if choice.name is None else {"type": kind, kind: {"name": choice.name}}
    return present(
        tools=[_render_tool(own.get(tool.name, tool), target) for tool in tools],
        tool_choice=named or choice.mode,
        parallel_tool_calls=choice.is_parallel,
    )


def _render_tool(tool: ApiTool, target: RenderTarget) -> Json:
    if tool.is_custom:
        return _render_custom(tool, target)
    function = present(
        name=tool.name,
        description=tool.description,
        parameters={"type": "object", "properties": {}} if tool.schema is None else dict(tool.schema),
        strict=None if target.is_plain else tool.is_strict,
    )
    return {"type": "function", "function": function, **target.keeps(tool.mark)}


def _render_custom(tool: ApiTool, target: RenderTarget) -> Json:
    form = tool.form
    if form and form.get("type") == "grammar":
        form = {"type": "grammar", "grammar": {name: value for name, value in form.items() if name != "type"}}
    custom = present(name=tool.name, description=tool.description, format=form)
    return {"type": "custom", "custom": custom, **target.keeps(tool.mark)}


def _render_sampling(request: ApiRequest, target: RenderTarget) -> Json:
    limit = target.limit or ("max_completion_tokens" if target.is_strict else "max_tokens")
    if request.max_tokens == 0:
        target.notes.add("max_tokens: 0 becomes 1, since chat completions cannot only prefill")
    if request.top_k is not None and target.is_strict:
        target.notes.lose(["top_k"])
    return present(
        **{limit: None if request.max_tokens is None else max(request.max_tokens, 1)},
        top_k=None if target.is_strict else request.top_k,
        stop=[*request.stop] or None,
    )


def _render_output(request: ApiRequest, target: RenderTarget) -> Json:
    form, shape = None, request.shape
    if shape:
        named = {"name": "answer", "schema": shape.schema, **shape.about}
        form = {"type": "json_object"} if shape.schema is None else {"type": "json_schema", "json_schema": named}
    rendered = present(
        stream=request.is_stream or None,
        stream_options={"include_usage": True} if request.is_stream and not target.is_plain else None,
        response_format=form,
        reasoning_effort=render_effort(request, target),
        verbosity=request.verbosity,
    )
    return rendered | _render_thinking(request, target)


def _render_thinking(request: ApiRequest, target: RenderTarget) -> Json:
    """Models that can think are told when they should not. Whether they do otherwise is up to them."""
    thinking = request.thinking
    if thinking is None:
        return {}
    is_off = thinking.get("type") == "disabled"
    if is_off and not target.is_strict:
        given = request.fields.get("chat_template_kwargs")
        return {"chat_template_kwargs": {**(given if isinstance(given, dict) else {}), "enable_thinking": False}}
    if is_off or "budget_tokens" in thinking:
        target.notes.lose(["thinking" if is_off else "thinking.budget_tokens"])
    return {}


def _render_user(user: str, target: RenderTarget) -> str:
    """Clients put whole objects into it; to OpenAI its hash names the same user."""
    if target.is_strict and len(user) > MAX_USER_CHARS:
        target.notes.add("metadata.user_id is too long for the replica's API: its hash is sent")
        return hashlib.sha256(user.encode()).hexdigest()
    return user
