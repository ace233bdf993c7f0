"""A `Request` as the body of `/v1/messages`.

    system, user, assistant + calls, result, result, user  ->  system | user, assistant, user [result, result, text]

Turns of one role that follow each other are one, since Anthropic wants all results of a turn together. Block for block,
a longer conversation begins with what the shorter one was. Anthropic refuses what it does not know.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from hotloop.core.errors import RequestError
from hotloop.core.message import Thought
from hotloop.wire.arguments import read_arguments, tidy_id
from hotloop.wire.field import Json, present
from hotloop.wire.part import Call, File, Image, Opaque, Part, Text, ToolResult, Turn, is_signed, render_block
from hotloop.wire.policy import RenderTarget, offer_tools
from hotloop.wire.request import ApiRequest, ApiTool, is_inline

DEFAULT_MAX_TOKENS = 8192
"""Anthropic wants to be told; every model of the last years can write as much."""
MAX_MARKS = 4
"""As many as Anthropic takes; of more, the last."""

_DATA_URL = re.compile(r"data:(?P<media_type>[\w.+-]+/[\w.+-]+)(;[\w=.+-]+)*;base64,", re.IGNORECASE)
_TTLS = {"5m": "5m", "1h": "1h", "in_memory": "5m", "in-memory": "5m", "30m": "1h", "12h": "1h", "24h": "1h"}
_LONGER = ("12h", "24h")
# Values of other APIs' fields that ask for nothing.
_IDLE: dict[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logprobs": False,
    "store": False,
    "logit_bias": {},
    "modalities": ["text"],
    "metadata": {},
    "top_logprobs": 0,
    "n": 1,
}
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_SERVICE_TIERS = {"auto": "auto", "default": "standard_only"}
_MODES = {"auto": "auto", "none": "none", "required": "any"}


def render_request(request: ApiRequest, target: RenderTarget) -> Json:
    rest = _render_rest(request, target)
    if request.max_tokens is None:
        target.notes.add(f"max_tokens is not given: {DEFAULT_MAX_TOKENS}")
    rendered: Json = {
        "model": request.model,
        "max_tokens": DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        **_render_turns(request, target),
        **_render_tools(request, target),
        **_render_sampling(request, target),
        **_render_output(request),
        **_render_service(request, target),
        **_render_cache(request, target),
        **rest,
    }
    return _limit_marks(rendered, target)


def _render_rest(request: ApiRequest, target: RenderTarget) -> Json:
    if request.api == "messages":
        return {**{name: value for name, value in request.own.items() if "." not in name}, **request.fields}
    given = {**request.own, **request.fields}
    lost = [name for name, value in given.items() if value != _IDLE.get(name) and name != "safety_identifier"]
    if request.verbosity:
        lost.append("verbosity")
    target.notes.lose(lost)
    if request.shape and request.shape.schema is None:
        target.notes.lose(["response_format of type json_object"])
    return {}


def _render_turns(request: ApiRequest, target: RenderTarget) -> Json:
    turns = request.turns
    num_system = next((i for i, turn in enumerate(turns) if turn.role != "system"), len(turns))
    system = [block for turn in turns[:num_system] for block in _render_blocks(turn.parts, target)]
    messages = _join(turns[num_system:], request, target)
    if not messages:
        raise RequestError(f"{request.turns_param} must contain at least one message", param=request.turns_param)
    return {**present(system=system or None), "messages": messages}


def _join(turns: Iterable[Turn], request: ApiRequest, target: RenderTarget) -> list[Json]:
    messages: list[Json] = []
    for turn in turns:
        blocks = _render_blocks(turn.parts, target)
        if turn.role == "system" and request.api == "messages":
            messages.append({"role": "system", "content": blocks})
            continue
        if turn.role == "system":
            target.notes.add("a late system message is sent as a user message")
        role = "assistant" if turn.role == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif any(block["type"] not in ("thinking", "redacted_thinking") for block in blocks):
            messages.append({"role": role, "content": blocks})
    return messages


def _render_blocks(parts: Iterable[Part], target: RenderTarget) -> list[Json]:
    """Texts with nothing in them are left out: Anthropic refuses them."""
    blocks: list[Json] = []
    for part in parts:
        if isinstance(part, Thought):
            blocks += _render_thought(part, target)
        elif isinstance(part, Opaque) and part.api != "messages" and part.text is None:
            target.leave_out(part)
        elif isinstance(part, Text) and not part.text.strip():
            if part.mark is not None:
                target.notes.add("cache_control left out: there is no content to cache")
        else:
            blocks.append({**_render_block(part, target), **_render_mark(part.mark, target)})
    return blocks


def _render_thought(thought: Thought, target: RenderTarget) -> list[Json]:
    if is_signed(thought) and thought.maker == "messages":
        return [render_block(thought)]
    target.notes.add("reasoning left out: it is not signed by the replica's API")
    return []


def _render_block(part: Text | Image | File | Call | ToolResult | Opaque, target: RenderTarget) -> Json:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            return {"type": "image", "source": _render_data(part) or {"type": "url", "url": part.url}}
        case File():
            text = {"type": "text", "media_type": "text/plain", "data": part.text}
            source = _render_data(part) if part.url else text
            if source is None:
                raise part.refuse("expected a data URL")
            return {"type": "document", "source": source, **present(title=part.name or None)}
        case Call():
            return _render_call(part, target)
        case ToolResult():
            return _render_result(part, target)
        case Opaque() if part.api == "messages":
            return dict(part.value)
        case Opaque():
            return {"type": "text", "text": part.text or ""}


def _render_data(part: Image | File) -> Json | None:
    """What a data URL holds; None if it is another sort of address."""
    if part.url[:5].lower() != "data:":
        return None
    head = _DATA_URL.match(part.url)
    if head is None:
        raise part.refuse("expected a data URL with a media type and base64")
    return {"type": "base64", "media_type": head["media_type"], "data": part.url[head.end() :]}


def _render_call(call: Call, target: RenderTarget) -> Json:
    value = read_arguments(call.arguments)
    if value is None:
        target.notes.add("arguments that are no JSON object are left out of the calls before")
    call_id = tidy_id(call.id, f"{call.place}.id")
    return {"type": "tool_use", "id": call_id, "name": call.flat_name, "input": value or {}}


def _render_result(result: ToolResult, target: RenderTarget) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": tidy_id(result.call_id, f"{result.place}.tool_call_id")}
    plain = result.parts[0] if result.is_plain and result.parts else None
    block["content"] = plain.text if isinstance(plain, Text) else _render_blocks(result.parts, target)
    return {**block, "is_error": True} if result.is_error else block


def _render_tools(request: ApiRequest, target: RenderTarget) -> Json:
    is_own = request.api == "messages"
    given = [tool for tool in request.tools if not is_inline(tool)] if is_own else offer_tools(request, target)
    tools = [_render_tool(tool, target) for tool in given]
    if not tools:
        return {}
    choice = request.choice
    rendered: Json = {"type": _MODES[choice.mode or "auto"]}
    if choice.name is not None:
        rendered = {"type": "tool", "name": choice.name}
    if choice.is_parallel is False and rendered["type"] != "none":
        rendered["disable_parallel_tool_use"] = True
    is_usual = rendered == {"type": "auto"} and not (request.api == "messages" and choice.mode)
    return {"tools": tools} if is_usual else {"tools": tools, "tool_choice": rendered}


def _render_tool(tool: ApiTool | Opaque, target: RenderTarget) -> Json:
    mark = _render_mark(tool.mark, target)
    if isinstance(tool, Opaque):
        return {**tool.value, **mark}
    if tool.builtin:
        return {**tool.builtin, **mark}
    schema = {"type": "object", **({"properties": {}} if tool.schema is None else tool.schema)}
    about = present(name=tool.name, description=tool.description, input_schema=schema, strict=tool.is_strict)
    return {**about, **present(defer_loading=tool.is_deferred or None), **mark}


def _render_sampling(request: ApiRequest, target: RenderTarget) -> Json:
    temperature = request.temperature
    if temperature is not None and temperature > 1:
        target.notes.add(f"temperature: {temperature:g} becomes 1, the highest there is")
        temperature = 1.0
    kept = [text for text in request.stop if text.strip()]
    if len(kept) < len(request.stop):
        target.notes.add("stop: whitespace alone is not supported there")
    return present(top_p=request.top_p, top_k=request.top_k, temperature=temperature, stop_sequences=kept or None)


def _render_output(request: ApiRequest) -> Json:
    effort, shape = request.effort, request.shape
    form = {"type": "json_schema", "schema": dict(shape.schema)} if shape and shape.schema is not None else None
    return present(
        stream=request.is_stream or None,
        thinking={"type": "disabled"} if effort == "none" else request.thinking,
        output_config=present(format=form, effort=_EFFORTS.get(effort or "")) or None,
    )


def _render_service(request: ApiRequest, target: RenderTarget) -> Json:
    user = request.user if request.user is not None else request.fields.get("safety_identifier")
    tier = request.service_tier
    if tier not in (None, *_SERVICE_TIERS):
        target.notes.add(f"service_tier: there is no {tier} there")
    metadata = None if user is None else {"user_id": str(user)}
    return present(metadata=metadata, service_tier=_SERVICE_TIERS.get(tier or ""))


def _render_cache(request: ApiRequest, target: RenderTarget) -> Json:
    """The mark for the whole prompt. OpenAI keeps prompts unasked, Anthropic only what is marked: where a request says
    anything about its cache, all of its prompt is marked."""
    cache = request.cache
    if cache.mark is not None:
        return _render_mark(cache.mark, target)
    options = cache.options or {}
    if options.get("mode") == "explicit":
        return {}
    retention = options.get("ttl") or cache.retention
    if retention is None and cache.options is None and cache.key is None:
        return {}
    return _render_mark(present(type="ephemeral", ttl=retention or None), target)


def _render_mark(mark: Json | None, target: RenderTarget) -> Json:
    """Lifetimes are minima, so the next longer one is taken."""
    if mark is None:
        return {}
    ttl = mark.get("ttl")
    if ttl in _LONGER:
        target.notes.add(f"cache_control: {ttl} becomes 1h, the longest there is")
    return {"cache_control": {**mark, **present(ttl=ttl and _TTLS.get(str(ttl), "5m"))}}


def _limit_marks(body: Json, target: RenderTarget) -> Json:
    """The body with no more marks than there may be. OpenAI's clients leave the old ones where they are."""
    marked = [block for block in _all_blocks(body) if "cache_control" in block]
    num_extra = len(marked) - MAX_MARKS + ("cache_control" in body)
    for block in marked[: max(num_extra, 0)]:
        del block["cache_control"]
    if num_extra > 0:
        target.notes.add(f"cache_control: only the last {MAX_MARKS} are kept")
    return body


def _all_blocks(body: Json) -> Iterator[Json]:
    yield from body.get("tools", ())
    yield from body.get("system", ())
    for turn in body["messages"]:
        for block in turn["content"]:
            yield from block["content"] if isinstance(block.get("content"), list) else ()
            yield block
