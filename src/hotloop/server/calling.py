"""The tools of a request, and which of them may, or must, be called.

Everything here is about the request: what a tool call looks like to the model is the tool format's business.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hotloop.chat.assembly.late import LateTools, name_some
from hotloop.chat.tools import ToolChoice, check_choice, check_tools
from hotloop.core.errors import RequestError
from hotloop.core.message import Tool
from hotloop.wire.offered import OfferedTools, offered_tools
from hotloop.wire.part import Api, Opaque
from hotloop.wire.policy import check_hosted
from hotloop.wire.request import ApiRequest, ApiTool

_SCHEMA_FIELDS: dict[Api, str] = {
    "chat": "function.parameters",
    "responses": "parameters",
    "messages": "input_schema",
}
_MAX_NAMES: dict[Api, int] = {"chat": 64, "responses": 64, "messages": 128}


@dataclass(frozen=True, slots=True)
class Calling:
    """What a request says about tools: those the model is shown, those it may call, and whether it must."""

    tools: tuple[Tool, ...] = ()
    """Those it is shown before the conversation begins."""
    late: tuple[LateTools, ...] = ()
    """For each place of the conversation that changes them, in its order."""
    allowed: tuple[Tool, ...] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)
    places: Mapping[str, str] = field(default_factory=dict)
    """Where in the body a tool's schema is, by the tool's name."""
    changes: tuple[str, ...] = ()
    """What was left out."""
    is_legacy: bool = False
    """Whether they are called functions, and a call is the message's `function_call`."""
    custom: frozenset[str] = frozenset()
    """The tools whose calls are one text."""
    strict_names: frozenset[str] = frozenset()
    """The tools of which the request says `strict: true`: these are enforced as a whole, or refused."""

    @property
    def is_possible(self) -> bool:
        """Whether the answer may hold calls. If not, whatever looks like one is text."""
        return bool(self.allowed) and self.choice.mode != "none"

    @property
    def is_required(self) -> bool:
        return self.choice.mode == "required"


def parse_calling(request: ApiRequest, *, is_strict: bool) -> Calling:
    """`is_strict` is for tools that do not say it themselves. Raises RequestError if tools and choice do not fit.

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
    with _legacy_function_errors(request):
        _check(request.tools, made, request.api, schema_field)
        check_choice(tools, chosen)
    allowed = tools if choice.allowed is None else _allow(tools, choice.allowed)
    places = {tool.flat_name: _place(tool, schema_field) for tool in offered.callable}
    strict_names = frozenset(tool.flat_name for tool in offered.callable if tool.is_strict)
    changes += tuple(_tell(offered))
    return Calling(head, late, allowed, chosen, places, changes, request.is_legacy, request.custom_names, strict_names)


def _check(tools: Iterable[ApiTool | Opaque], made: Mapping[int, Tool], api: Api, schema_field: str) -> None:
    """Those that are listed together, and each that was defined by itself."""
    limits: Any = {"schema_field": schema_field, "max_name": _MAX_NAMES[api]}
    known = [tool for tool in tools if isinstance(tool, ApiTool)]
    check_tools([made[id(tool)] for tool in known if not tool.is_inline], ToolChoice(), **limits)
    for tool in known:
        if tool.is_inline:
            try:
                check_tools([made[id(tool)]], ToolChoice(), **limits)
            except RequestError as error:
                place = tool.at.place if tool.at else "tools[0]"
                message, param = (text.replace("tools[0]", place) for text in (str(error), error.param or ""))
                raise RequestError(message, param=param) from None


def _tell(offered: OfferedTools) -> Iterator[str]:
    if offered.is_loaded:
        yield "tools: deferred ones are all loaded, since nothing here runs the search for them"
    unknown = [*dict.fromkeys(name for found in offered.changes for name in found.unknown)]
    if unknown:
        yield f"tools: {name_some(unknown)} named in the conversation, not defined: left out"


@contextmanager
def _legacy_function_errors(request: ApiRequest) -> Iterator[None]:
    """What is wrong is told in the words of who asks."""
    try:
        yield
    except RequestError as error:
        if not request.is_legacy:
            raise
        message, param = (
            text.replace("tool_choice", "function_call").replace("tools", "functions")
            for text in (str(error), error.param or "")
        )
        raise RequestError(message, param=param) from None


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


def _allow(tools: tuple[Tool, ...], names: tuple[str, ...]) -> tuple[Tool, ...]:
    unknown = {*names} - {tool.name for tool in tools}
    if unknown or not names:
        problem = f"there is no tool {min(unknown)!r}" if unknown else "no tool is allowed"
        raise RequestError(f"tool_choice: {problem}", param="tool_choice")
    return tuple(tool for tool in tools if tool.name in names)


def _place(tool: ApiTool, schema_field: str) -> str:
    place = tool.at.place if tool.at else "tools"
    return place if tool.is_custom or tool.builtin else f"{place}.{schema_field}"
