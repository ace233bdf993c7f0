"""A `Request` as the body of `/v1/responses`."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from hotloop.core.message import Thought
from hotloop.wire.arguments import unwrap_input
from hotloop.wire.chat.render import render_common, render_effort, render_rest
from hotloop.wire.field import Json
from hotloop.wire.part import Api, Call, File, Image, Opaque, Part, Result, Text, Turn, text_of
from hotloop.wire.policy import Target, offer_tools
from hotloop.wire.request import Request, Tool
from hotloop.wire.thoughts import seal_thought


def render_request(request: Request, target: Target) -> Json:
    turns, instructions = request.turns, {}
    first = turns[0] if turns else Turn("user", ())
    if first.role == "system" and first.is_plain and len(turns) > 1:
        turns, instructions = turns[1:], {"instructions": first.texts[0]}
    rest = render_rest(request, target, "responses")
    rendered: Json = {
        **{name: value for name, value in rest.items() if "." not in name},
        "model": request.model,
        **instructions,
        "input": [item for turn in turns for item in _render_turn(turn, request.api, target)],
        **_render_tools(request, target),
        **_render_output(request, target),
        **render_common(request, target),
    }
    if request.api != "responses":
        rendered.setdefault("store", False)
    return rendered


def render_call(call: Call) -> Json:
    """A call as an item, without the item's own id and status."""
    about: Json = {"call_id": call.id, "name": call.name}
    about |= {"namespace": call.namespace} if call.namespace else {}
    if call.is_custom:
        return {"type": "custom_tool_call", **about, "input": unwrap_input(call.arguments)}
    return {"type": "function_call", **about, "arguments": call.arguments}


def _render_turn(turn: Turn, api: Api, target: Target) -> Iterator[Json]:
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
            yield from _render_item(part, target)


def _render_item(part: Part, target: Target) -> Iterable[Json]:
    match part:
        case Thought():
            return _render_thought(part, target)
        case Call():
            target.lose_mark(part.mark)
            return [render_call(part)]
        case Result():
            return [_render_result(part, target)]
        case Opaque() if part.api == "responses":
            return [part.value]
        case Opaque() if part.text is not None:
            content = [_render_part(Text(part.text, mark=part.mark), is_answer=False, target=target)]
            return [{"type": "message", "role": "user", "content": content}]
        case Opaque():
            target.leave_out(part)
    return []


def _render_thought(thought: Thought, target: Target) -> list[Json]:
    """OpenAI takes back only what it has sealed; engines take back what they said."""
    text = "" if thought.is_sealed else thought.text
    is_own = thought.maker == "responses"
    if is_own and not (text or thought.signature):
        return []  # it was kept by its maker, who was not asked to give it out
    if target.is_strict and not is_own:
        target.notes.add("thinking left out: the replica's API has no place for it")
        return []
    item: Json = {"type": "reasoning", "summary": []}
    if thought.summary:
        item["summary"] = [{"type": "summary_text", "text": thought.summary}]
    if text:
        item["content"] = [{"type": "reasoning_text", "text": text}]
    return [item | seal_thought(thought)]


def _render_result(result: Result, target: Target) -> Json:
    target.lose_mark(result.mark)
    kind = "custom_tool_call_output" if result.is_custom else "function_call_output"
    about: Json = {"type": kind, "call_id": result.call_id}
    if result.is_plain or result.is_error:
        return {**about, "output": result.text}
    return {**about, "output": [_render_part(part, is_answer=False, target=target) for part in result.parts]}


def _render_part(part: Part, is_answer: bool, target: Target) -> Json:
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
        case Opaque(text=None):
            raise part.refuse(f"content of type {part.kind!r:.60} cannot be carried to this replica")
    return {"type": "output_text" if is_answer else "input_text", "text": text_of(part) or ""}


def _render_tools(request: Request, target: Target) -> Json:
    choice = request.choice
    if request.api == "responses":
        tools = [*_render_own(request.tools)]
    else:
        tools = [_render_function(tool) for tool in offer_tools(request, target)]
        for tool in request.tools:
            target.lose_mark(tool.mark)
    if not tools:
        return {}
    rendered: Json = {"tools": tools}
    names = {tool.flat_name: tool for tool in request.tools if isinstance(tool, Tool)}
    if choice.name is not None:
        rendered["tool_choice"] = _render_named(choice.name, names)
    elif choice.allowed is not None and request.api == "responses":
        allowed = [_render_named(name, names) for name in choice.allowed]
        rendered["tool_choice"] = {"type": "allowed_tools", "mode": choice.mode or "auto", "tools": allowed}
    elif choice.mode:
        rendered["tool_choice"] = choice.mode
    return rendered | ({} if choice.is_parallel is None else {"parallel_tool_calls": choice.is_parallel})


def _render_named(name: str, tools: dict[str, Tool]) -> Json:
    tool = tools.get(name) or Tool(name)
    about = {"namespace": tool.namespace} if tool.namespace else {}
    return {"type": "custom" if tool.is_custom else "function", "name": tool.name, **about}


def _render_own(tools: Iterable[Tool | Opaque]) -> Iterator[Json]:
    """Tools of one namespace that follow each other are in it together."""
    for namespace, inner in groupby(tools, lambda tool: tool.namespace if isinstance(tool, Tool) else None):
        rendered = [_render_tool(tool) if isinstance(tool, Tool) else tool.value for tool in inner]
        if namespace:
            yield {"type": "namespace", "name": namespace, "tools": rendered}
        else:
            yield from rendered


def _render_function(tool: Tool) -> Json:
    """Functions that do not say are strict here, and are not in other APIs."""
    usual = {"parameters": {"type": "object", "properties": {}}, "strict": False}
    return usual | _render_tool(tool)


def _render_tool(tool: Tool) -> Json:
    rendered: Json = {"type": "custom" if tool.is_custom else "function", "name": tool.name}
    if tool.description is not None:
        rendered["description"] = tool.description
    if tool.is_custom:
        return {**rendered, **({"format": tool.form} if tool.form is not None else {})}
    if tool.schema is not None:
        rendered["parameters"] = dict(tool.schema)
    return {**rendered, **({} if tool.is_strict is None else {"strict": tool.is_strict})}


def _render_output(request: Request, target: Target) -> Json:
    rendered: Json = {"stream": True} if request.is_stream else {}
    if request.max_tokens is not None:
        rendered["max_output_tokens"] = request.max_tokens or 1
    if request.top_k is not None and not target.is_strict:
        rendered["top_k"] = request.top_k
    if request.stop and target.is_strict:
        target.notes.lose(["stop"], "the replica's API")
    elif request.stop:
        rendered["stop"] = list(request.stop)
    if effort := render_effort(request, target):
        rendered["reasoning"] = {"effort": effort}
    if summary := request.own.get("reasoning.summary"):
        rendered["reasoning"] = {**rendered.get("reasoning", {}), "summary": summary}
    text: Json = {"verbosity": request.verbosity} if request.verbosity else {}
    if request.shape:
        text["format"] = {"type": "json_object"}
        if request.shape.schema is not None:
            about = {"name": "answer", **request.shape.about, "schema": request.shape.schema}
            text["format"] = {"type": "json_schema", **about}
    return {**rendered, "text": text} if text else rendered
