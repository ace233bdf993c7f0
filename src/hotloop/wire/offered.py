"""Which tools of a request may be called, and where its conversation brings in those that come late.

    tools      search, read, weather (deferred)      head: search, read
    user, call of search, result -> weather          change 0: weather
    system: read removed, clock defined              change 1 and 2: without read, clock
                                                     callable: search, weather, clock

A deferred tool that nothing has named yet is neither told of nor callable, unless only a search that a provider runs
could find it: nobody would.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hotloop.wire.part import Opaque, ToolChange, ToolResult, Turn
from hotloop.wire.request import ApiRequest, ApiTool

_SEARCH = "tool_search"


class FoundTools(NamedTuple):
    """What a `ToolChange` comes to: a tool that could be called already is not added once more."""

    added: tuple[ApiTool, ...] = ()
    removed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Names of no tool at all: its server may have gone."""


@dataclass(frozen=True, slots=True)
class OfferedTools:
    head: tuple[ApiTool | Opaque, ...]
    """What a model is told of before the conversation begins."""
    changes: tuple[FoundTools, ...]
    """For each `ToolChange` of the conversation, in its order."""
    callable: tuple[ApiTool, ...]
    """What may be called in the end, those of the head first."""
    is_loaded: bool = False
    """Whether deferred tools are in the head, since nothing here runs the search for them."""


def find_changes(turns: Iterable[Turn]) -> Iterator[ToolChange]:
    for turn in turns:
        for part in turn.parts:
            for inner in part.parts if isinstance(part, ToolResult) else (part,):
                if isinstance(inner, ToolChange):
                    yield inner


def offered_tools(request: ApiRequest) -> OfferedTools:
    inline: dict[str, deque[ApiTool]] = defaultdict(deque)
    declared: list[ApiTool | Opaque] = []
    for tool in request.tools:
        if isinstance(tool, ApiTool) and tool.is_inline:
            inline[tool.flat_name].append(tool)
        else:
            declared.append(tool)
    known = {tool.flat_name: tool for tool in declared if isinstance(tool, ApiTool)}
    has_deferred = any(tool.is_deferred for tool in known.values())
    is_loaded = has_deferred and any(isinstance(tool, Opaque) and tool.kind.startswith(_SEARCH) for tool in declared)
    head = tuple(tool for tool in declared if isinstance(tool, Opaque) or is_loaded or not tool.is_deferred)
    current = {tool.flat_name: tool for tool in head if isinstance(tool, ApiTool)}
    changes = []
    for change in find_changes(request.turns):
        if change.is_definition:
            known |= {name: inline[name].popleft() for name in change.names if inline[name]}
        changes.append(_apply(change, known, current))
    return OfferedTools(head, tuple(changes), tuple(current.values()), is_loaded)


def _apply(change: ToolChange, known: dict[str, ApiTool], current: dict[str, ApiTool]) -> FoundTools:
    names = tuple(dict.fromkeys(change.names))
    unknown = tuple(name for name in names if name not in known)
    if change.is_removal:
        removed = tuple(name for name in names if current.pop(name, None))
        return FoundTools(removed=removed, unknown=unknown)
    added = tuple(known[name] for name in names if name in known and not _is_same(known[name], current.get(name)))
    current |= {tool.flat_name: tool for tool in added}
    return FoundTools(added, unknown=unknown)


def _is_same(tool: ApiTool, other: ApiTool | None) -> bool:
    one, two = ((each.description, each.schema, each.is_strict, each.form) for each in (tool, other or tool))
    return other is not None and one == two
