"""What a request of any chat API asks for, as `chat` takes it: its tools, its reasoning and the shape of its answer.

Errors that name a field of the client's API are raised here or in `turns`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hotloop.chat.prompt import ChatInput
from hotloop.chat.reasoning import ReasoningWish
from hotloop.chat.structure import Structure
from hotloop.chat.tools import Calling, ToolChoice
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Tool
from hotloop.server.options import Options
from hotloop.server.turns import parse_transcript
from hotloop.stable.late import LateTools, name_some
from hotloop.wire.offered import OfferedTools, offered_tools
from hotloop.wire.part import Api, Opaque
from hotloop.wire.policy import check_hosted
from hotloop.wire.request import ApiRequest, ApiTool

_SCHEMA_FIELDS: dict[Api, str] = {"chat": "function.parameters", "responses": "parameters", "messages": "input_schema"}
_MAX_DEPTH = 128  # of nested JSON in one tool's parameters
_NAME = re.compile(r"[a-zA-Z0-9_.-]+")


class ChatTools(NamedTuple):
    head: tuple[Tool, ...]
    """Those the model is shown before the conversation begins."""
    late: tuple[LateTools, ...]
    """For each place of the conversation that changes them, in its order."""
    calling: Calling
    changes: tuple[str, ...]
    """What was left out."""


def parse_chat_input(
    request: ApiRequest, options: Options, *, is_strict: bool, is_prefill_only: bool = False
) -> ChatInput:
    """`is_strict` is for tools that do not say it themselves."""
    tools, transcript = parse_tools(request, is_strict=is_strict), parse_transcript(request)
    messages, is_continued = transcript.messages, request.is_continued
    return ChatInput(
        messages=messages[:-1] if is_continued else messages,
        tools=tools.head,
        late=[*zip(transcript.late, tools.late, strict=True)],
        calling=tools.calling,
        structures=[*find_structures(request, options)],
        reasoning=parse_reasoning(request),
        breakpoints=transcript.breakpoints,
        retention_s=options.retention_s,
        is_answer_next=is_continued or request.api == "messages" or not is_prefill_only,
        begun=_parse_beginning(messages, request.turns_param) if is_continued else "",
        extra=options.chat_template_kwargs or {},
        is_prefill_only=is_prefill_only,
        changes=tools.changes + transcript.changes,
    )


def _parse_beginning(messages: Sequence[Message], param: str) -> str:
    """The last message, as the beginning of the answer."""
    *before, last = messages
    if not before:
        raise RequestError(f"{param} must contain at least one message before the one to continue", param=param)
    if last.tool_calls or last.thoughts:
        what = "calls" if last.tool_calls else "reasoning"
        raise RequestError(f"{param}: the last assistant message contains {what} and cannot be continued", param=param)
    return last.content


def parse_reasoning(request: ApiRequest) -> ReasoningWish:
    given, effort = request.thinking or {}, request.effort
    kind, budget = given.get("type"), given.get("budget_tokens")
    if budget is not None and (type(budget) is not int or budget < 0):
        raise RequestError(f"thinking.budget_tokens: expected a whole number, got {budget!r:.100}", param="thinking")
    if kind == "disabled" or effort == "none":
        return ReasoningWish(is_wanted=False)
    return ReasoningWish(True if kind in ("enabled", "adaptive") or effort else None, effort, budget)


def find_structures(request: ApiRequest, options: Options) -> Iterator[Structure]:
    """Every field that asks for a structure, in all the words clients have for it: the schema each API takes, vLLM's
    `structured_outputs` and its older `guided_*` fields."""
    if request.shape:
        assert request.shape.at, "it stands somewhere in the body"
        param, schema, about = request.shape.at.place, request.shape.schema, request.shape.about
        is_named = request.api == "chat" and "name" in about  # else it stands beside the type
        field_name = "json_schema.schema" if is_named else "schema"
        is_strict = None if request.api == "messages" else about.get("strict") is not False
        if schema is None:
            yield Structure(param, "json_object")
        else:
            yield Structure(f"{param}.{field_name}", "json", schema, is_strict)
    if options.structured_outputs:
        for kind in ("json", "json_object", "regex", "choice", "grammar"):
            if value := getattr(options.structured_outputs, kind):
                yield Structure(f"structured_outputs.{kind}", kind, value)
    for kind in ("json", "regex", "choice", "grammar"):
        for param in (f"guided_{kind}", kind):
            if (value := getattr(options, param, None)) is not None:
                yield Structure(param, kind, value)


def parse_tools(request: ApiRequest, *, is_strict: bool) -> ChatTools:
    """Raises RequestError if tools and choice do not fit.

    Hosted tools, which coding agents offer unasked, are left out: nobody would run them here. A chat has none."""
    check_hosted(request)
    choice, schema_field = request.choice, "parameters" if request.is_legacy else _SCHEMA_FIELDS[request.api]
    given = [tool for tool in request.tools if isinstance(tool, ApiTool) or not tool.is_private]
    kinds = dict.fromkeys(tool.kind for tool in request.tools if isinstance(tool, Opaque) and tool.is_private)
    changes = tuple(f"tools: {kind:.100} was left out, since nothing here runs it" for kind in kinds)
    made = {id(tool): _make_tool(tool, is_strict) for tool in given}
    offered = offered_tools(request)
    head = tuple(made[id(tool)] for tool in offered.head if id(tool) in made)
    late = tuple(LateTools(tuple(made[id(tool)] for tool in found.added), found.removed) for found in offered.changes)
    tools = tuple(made[id(tool)] for tool in offered.callable)
    is_parallel = choice.is_parallel is not False and choice.name is None
    chosen = ToolChoice(choice.mode or "auto", choice.name, is_parallel=is_parallel)
    _check(request, made, schema_field)
    _check_choice(tools, chosen, is_legacy=request.is_legacy)
    allowed = tools if choice.allowed is None else _allow(tools, choice.allowed)
    places = {tool.flat_name: _place(tool, schema_field) for tool in offered.callable}
    strict_names = frozenset(tool.flat_name for tool in offered.callable if tool.is_strict)
    calling = Calling(allowed, chosen, places, strict_names)
    return ChatTools(head, late, calling, changes + tuple(_tell(offered)))


def _check(request: ApiRequest, made: Mapping[int, Tool], schema_field: str) -> None:
    """Each tool, and that those which are listed together have names of their own."""
    names: set[str] = set()
    for tool in request.tools:
        if isinstance(tool, ApiTool):
            name, place = made[id(tool)].name, tool.at.place if tool.at else "tools"
            check_tool(made[id(tool)], place, schema_field, 128 if request.api == "messages" else 64)
            if name in names and not tool.is_inline:
                raise RequestError(f"{place}: there is another tool named {name!r}", param=place)
            names |= set() if tool.is_inline else {name}


def check_tool(tool: Tool, place: str, schema_field: str = "parameters", max_name: int = 64) -> None:
    """Raises RequestError for a tool that cannot be offered."""
    if len(tool.name) > max_name or not _NAME.fullmatch(tool.name):
        reason = f"{tool.name!r:.100} is not 1 to {max_name} letters, digits, '_', '-' or '.'"
        raise RequestError(f"{place}: the name {reason}", param=place)
    place = f"{place}.{schema_field}"
    kind = tool.parameters.get("type", "object")
    if kind not in ("object", ["object"]):
        raise RequestError(f"{place}: the type must be 'object', not {kind!r:.100}", param=place)
    if not _fits(tool.parameters, _MAX_DEPTH):
        raise RequestError(f"{place}: nested more than {_MAX_DEPTH} levels deep", param=place)
    if not isinstance(tool.parameters.get("properties", {}), dict):
        raise RequestError(f"{place}: 'properties' must be an object", param=place)
    required = tool.parameters.get("required", [])
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        raise RequestError(f"{place}: 'required' must be a list of strings", param=place)


def _fits(value: Any, max_depth: int) -> bool:
    """Whether a value is nested at most so deep."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return max_depth > 0 and all(_fits(part, max_depth - 1) for part in parts)


def _tell(offered: OfferedTools) -> Iterator[str]:
    if offered.is_loaded:
        yield "tools: deferred ones are all loaded, since nothing here runs the search for them"
    unknown = [*dict.fromkeys(name for found in offered.changes for name in found.unknown)]
    if unknown:
        yield f"tools: {name_some(unknown)} named in the conversation, not defined: left out"


def _make_tool(tool: ApiTool | Opaque, is_strict: bool) -> Tool:
    if isinstance(tool, Opaque):
        reason = f"{tool.place}: tools of type {tool.kind!r:.100} are not supported, only functions and custom tools"
        raise RequestError(f"{reason} are", param=f"{tool.place}.type" if tool.api == "chat" else tool.place)
    if not tool.name:
        within = next((name for name in ("function", "custom") if tool.at and tool.at.get(name)), "")
        place = f"{tool.at.place}.{within}.name" if tool.at and within else "tools"
        raise RequestError(f"{place} is empty", param=place)
    function = tool.as_function()
    strict = tool.is_custom or tool.builtin is not None or (is_strict if tool.is_strict is None else tool.is_strict)
    return Tool(function.name, function.description or "", function.schema or {}, strict)


def _check_choice(tools: Sequence[Tool], choice: ToolChoice, *, is_legacy: bool) -> None:
    param, kind = ("function_call", "functions") if is_legacy else ("tool_choice", "tools")
    if choice.mode == "required" and not tools:
        raise RequestError(f"{param} asks for a call, but there are no {kind}", param=param)
    if choice.name is not None and choice.name not in {tool.name for tool in tools}:
        raise RequestError(f"{param} names {choice.name!r:.100}, which is not among the {kind}", param=param)


def _allow(tools: tuple[Tool, ...], names: tuple[str, ...]) -> tuple[Tool, ...]:
    unknown = {*names} - {tool.name for tool in tools}
    if unknown or not names:
        problem = f"there is no tool {min(unknown)!r}" if unknown else "no tool is allowed"
        raise RequestError(f"tool_choice: {problem}", param="tool_choice")
    return tuple(tool for tool in tools if tool.name in names)


def _place(tool: ApiTool, schema_field: str) -> str:
    place = tool.at.place if tool.at else "tools"
    return place if tool.is_custom or tool.builtin else f"{place}.{schema_field}"
