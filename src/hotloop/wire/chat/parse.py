"""The body of `/v1/chat/completions` as a `Request`."""

from collections.abc import Callable, Mapping
from typing import Any

from hotloop.core.errors import RequestError
from hotloop.core.message import Thought
from hotloop.wire.arguments import wrap_input
from hotloop.wire.field import Body, Field, Json, present, read_choice, read_flag, read_number, read_object, read_text
from hotloop.wire.part import Call, File, Image, Opaque, Part, Role, Text, ToolResult, Turn, parse_block, parse_content
from hotloop.wire.policy import Notes
from hotloop.wire.request import ApiRequest, ApiTool, Cache, Choice, ChoiceMode, OutputShape

_OWN = {"n", "store", "modalities", "audio", "prediction", "web_search_options"}
ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_MARKS = {"cache_control", "prompt_cache_breakpoint"}
_BESIDE = {"refusal", "function_call", "reasoning_content", "reasoning", "thinking_blocks"}
"""What an answer may have beside its content and its calls, and mostly has not."""
_MODES: tuple[ChoiceMode, ...] = ("auto", "none", "required")


def parse_request(body: Mapping[str, Any], notes: Notes | None = None) -> ApiRequest:
    given = Body(body)
    turns = tuple(_parse_message(message, notes) for message in Field(given).need("messages").each())
    if not turns:
        raise RequestError("messages must contain at least one message", param="messages")
    return _parse_fields(given, turns)


def parse_completion(body: Mapping[str, Any]) -> ApiRequest:
    """A plain completion says all that a chat does, but for the messages: its prompt is among the fields not known."""
    return _parse_fields(Body(body), ())


def _parse_fields(body: Body, turns: tuple[Turn, ...]) -> ApiRequest:
    given = Field(body)
    options, older = given.get("stream_options"), given.get("max_tokens")
    limit = given.get("max_completion_tokens") or older
    functions = _parse_functions(given)
    request = ApiRequest(
        api="chat",
        model=given.need("model").text(),
        turns=turns,
        tools=tuple(map(_parse_tool, given.items("tools"))) if functions is None else functions,
        choice=parse_choice(given, _name) if functions is None else _parse_function_choice(given.get("function_call")),
        is_legacy=functions is not None,
        shape=parse_shape(given.get("response_format"), "json_schema"),
        max_tokens=limit.count(1) if limit else None,
        stop=parse_stop(given.get("stop")),
        has_usage=bool(options and read_flag(options, "include_usage")),
        effort=read_choice(given, "reasoning_effort", EFFORTS),
        thinking=read_object(given, "thinking"),
        verbosity=read_text(given, "verbosity"),
        continues_last=_parse_continued(given, turns),
        **parse_common(given),
    )
    return request.with_rest(body, _OWN)


def _parse_continued(given: Field, turns: tuple[Turn, ...]) -> bool:
    """In vLLM's words. What a prompt ends with otherwise is not read here."""
    continued = given.get("continue_final_message")
    if continued is None or not continued.flag():
        return False
    if not turns or turns[-1].role != "assistant":
        raise continued.refuse("the last message must be the assistant's")
    if given.object().get("add_generation_prompt") is True:
        raise continued.refuse("cannot be given together with add_generation_prompt")
    return True


def parse_common(given: Field) -> Json:
    """What both of OpenAI's APIs say in the same words, by the names of a request's fields."""
    top_k = given.get("top_k")
    cache = Cache(
        read_object(given, "cache_control"),
        read_text(given, "prompt_cache_key"),
        read_text(given, "prompt_cache_retention"),
        read_object(given, "prompt_cache_options"),
    )
    return {
        "temperature": read_number(given, "temperature"),
        "top_p": read_number(given, "top_p"),
        "top_k": max(top_k.count(-1), 0) or None if top_k else None,  # engines take -1 for all
        "is_stream": bool(read_flag(given, "stream")),
        "user": read_text(given, "user"),
        "service_tier": read_text(given, "service_tier"),
        "cache": cache,
    }


def parse_shape(form: Field | None, within: str | None) -> OutputShape | None:
    """`within` is the field that holds the schema and what is said about it, if it does not stand beside the type."""
    if form is None or form.kind() == "text":
        return None
    if form.kind() == "json_object":
        return OutputShape(read_object(form, "schema"), at=form)  # where others than OpenAI take it
    if form.kind() != "json_schema":
        raise form.need("type").refuse(f"expected text, json_object or json_schema, got {form.kind()!r:.60}")
    holder = form.need(within) if within else form
    holder.need_text("name")
    about = {name: value for name, value in present(**holder.object()).items() if name not in ("type", "schema")}
    return OutputShape(read_object(holder, "schema") or {}, about, at=form)


def parse_mode(mode: Field | None) -> ChoiceMode:
    if mode is None:
        return "auto"
    for each in _MODES:
        if each == mode.text():
            return each
    raise mode.refuse("expected auto, none or required")


def parse_mark(given: Field) -> Json | None:
    """The `cache_control` that gateways' clients put into a chat, or OpenAI's own word for it."""
    if not _MARKS & given.object().keys():
        return None
    control, breakpoint_ = read_object(given, "cache_control"), given.get("prompt_cache_breakpoint")
    return control or (present(type="ephemeral", ttl=read_text(breakpoint_, "ttl")) if breakpoint_ else None)


def parse_stop(stop: Field | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop.text(),) if stop.is_text else tuple(each.text() for each in stop.each())


def _parse_message(message: Field, notes: Notes | None) -> Turn:
    role = message.need_text("role")
    if role in ("tool", "function"):
        return Turn("user", (_parse_result(message),), at=message)
    if role not in ROLES:
        raise message.need("role").refuse("expected system, developer, user, assistant, tool or function")
    content = message.get("content") if role == "assistant" else message.need("content")
    parts = parse_content(content, _parse_part)
    if role == "assistant":
        if not _BESIDE.isdisjoint(message.object()):
            parts = (*_parse_thoughts(message), *parts, *_parse_beside(message))
        parts += tuple(_parse_call(call) for call in message.items("tool_calls"))
    if mark := parse_mark(message):  # some clients put it on the message: it is behind its last part
        if parts and not isinstance(parts[-1], Thought):
            parts = (*parts[:-1], parts[-1].marked(mark))
        elif notes:
            notes.add("cache_control left out: there is no content to cache")
    is_plain = content is not None and content.is_text
    return Turn(ROLES[role], parts, is_plain, read_text(message, "name"), at=message)


def _parse_thoughts(message: Field) -> list[Thought]:
    """`thinking_blocks` are Anthropic's, with their signatures; without them the text is all there is."""
    if signed := message.get("thinking_blocks"):
        return [parse_block(block) for block in signed.each()]
    text = read_text(message, "reasoning_content") or read_text(message, "reasoning")
    return [Thought(text)] if text else []


def _parse_beside(message: Field) -> list[Part]:
    parts: list[Part] = []
    if refusal := message.get("refusal"):
        parts.append(Text(refusal.text(), is_refusal=True, at=refusal))
    if call := message.get("function_call"):
        arguments = read_text(call, "arguments")
        parts.append(Call(_name_function_call(message), call.need_text("name"), arguments or "", at=call))
    return parts


def _parse_call(call: Field) -> Call:
    if read_text(call, "type") == "custom":
        custom = call.need("custom")
        wrapped = wrap_input(read_text(custom, "input") or "")
        return Call(read_text(call, "id") or "", custom.need_text("name"), wrapped, is_custom=True, at=call)
    function = call.need("function")
    arguments = read_text(function, "arguments")
    return Call(read_text(call, "id") or "", function.need_text("name"), arguments or "", at=call)


def _name_function_call(message: Field) -> str:
    """The older calls have no ids: a result is that of the last call before it, which is known by its place."""
    messages, index = message.within.value if message.within else (), int(message.name)
    earlier = (i for i in range(index, -1, -1) if isinstance(messages[i], dict) and messages[i].get("function_call"))
    return f"call_function_{next(earlier, index)}"


def _parse_result(message: Field) -> ToolResult:
    content = message.get("content")
    is_plain, call_id = content is None or content.is_text, read_text(message, "tool_call_id") or ""
    if message.value["role"] == "function":
        call_id = _name_function_call(message)
    return ToolResult(call_id, parse_content(content, _parse_part), is_plain, mark=parse_mark(message), at=message)


def _parse_part(part: Field) -> Part:
    mark, kind = parse_mark(part), part.kind()
    match kind:
        case "text":
            return Text(part.need("text").text(), mark=mark, at=part)
        case "refusal":
            return Text(part.need("refusal").text(), is_refusal=True, mark=mark, at=part)
        case "image_url":
            image = part.need("image_url")
            return Image(image.need("url").text(), read_text(image, "detail"), mark=mark, at=part)
        case "file" if part.need("file").get("file_data"):
            file = part.need("file")
            return File(file.need("file_data").text(), name=read_text(file, "filename"), mark=mark, at=part)
    return Opaque("chat", kind, part.object(), mark=mark, at=part)


def _parse_functions(given: Field) -> tuple[ApiTool, ...] | None:
    """OpenAI's older words for tools; None where they are not used."""
    functions, choice = given.get("functions"), given.get("function_call")
    if functions and (given.get("tools") or given.get("tool_choice")):
        raise functions.refuse("cannot be given together with tools, which replace them")
    if choice and not functions:
        raise choice.refuse("there are no functions")
    return tuple(parse_function(function, at=function) for function in functions.each()) if functions else None


def _parse_function_choice(choice: Field | None) -> Choice:
    if choice is None or choice.is_text:
        return Choice(parse_mode(choice), is_parallel=False)
    return Choice("required", choice.need("name").text(), is_parallel=False)


def _parse_tool(tool: Field) -> ApiTool | Opaque:
    kind = read_text(tool, "type") or "function"
    if kind == "custom":
        return _parse_custom(tool)
    if kind != "function":
        return Opaque("chat", kind, tool.object(), at=tool)
    function = tool.need("function")
    return parse_function(function, mark=parse_mark(tool) or parse_mark(function), at=tool)


def _parse_custom(tool: Field) -> ApiTool:
    custom = tool.need("custom")
    form, grammar = read_object(custom, "format"), None
    if form and form.get("type") == "grammar":
        grammar = {"type": "grammar", **custom.need("format").need("grammar").object()}
    name, description = custom.need("name").text(), read_text(custom, "description")
    return ApiTool(name, description, is_custom=True, form=grammar or form, mark=parse_mark(tool), at=tool)


def parse_function(function: Field, **more: Any) -> ApiTool:
    name, description = function.need("name").text(), read_text(function, "description")
    return ApiTool(name, description, read_object(function, "parameters"), read_flag(function, "strict"), **more)


def parse_choice(given: Field, name_of: Callable[[Field], str | None]) -> Choice:
    """Both of OpenAI's APIs say it alike, but for how a tool is named. A hosted one has no name; among others that are
    allowed it is left out, as it is among the tools."""
    choice, is_parallel = given.get("tool_choice"), read_flag(given, "parallel_tool_calls")
    if choice is None or choice.is_text:
        return Choice(parse_mode(choice) if choice else None, is_parallel=is_parallel)
    if read_text(choice, "type") != "allowed_tools":
        return Choice("required", _need_name(choice, name_of), is_parallel=is_parallel)
    among = choice.get("allowed_tools") or choice
    tools = among.need("tools").each()
    names = tuple(name for tool in tools if (name := name_of(tool)) is not None)
    if tools and not names:
        _need_name(tools[0], name_of)
    return Choice(parse_mode(among.get("mode")), allowed=names, is_parallel=is_parallel)


def _need_name(choice: Field, name_of: Callable[[Field], str | None]) -> str:
    name = name_of(choice)
    if name is None:
        raise choice.refuse(f"nothing here runs {choice.kind()!r:.60}: offer a tool that you run yourself")
    return name


def _name(choice: Field) -> str:
    kind = read_text(choice, "type") or "function"
    if kind not in ("function", "custom"):
        raise choice.need("type").refuse("expected function, custom or allowed_tools")
    return choice.need(kind).need("name").text()
