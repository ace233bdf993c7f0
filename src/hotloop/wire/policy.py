"""What becomes of what an API has no word for: left out with a note, or refused by name.

Notes travel in a header: plain ASCII, short and few.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

from hotloop.core.errors import RequestError
from hotloop.wire.errors import ThreadUnsupported
from hotloop.wire.field import Json
from hotloop.wire.offered import offered_tools
from hotloop.wire.part import Opaque
from hotloop.wire.request import ApiRequest, ApiTool

Limit = Literal["max_tokens", "max_completion_tokens"]

NOT_CONTINUED = "the last turn is the assistant's: it is answered, not continued"

_MAX_CHARS = 160
_MAX_NOTES = 16
# Fields that no other API has a word for, and that a request does not do without.
_NOT_PORTABLE = {
    "n": "this replica gives one answer at a time",
    "previous_response_id": "the replica keeps no responses: send the whole conversation as input",
    "conversation": "the replica keeps no conversations: send the whole of it as input",
    "prompt": "the replica keeps no prompts: send the instructions themselves",
    "background": "the replica answers at once or not at all",
    "mcp_servers": "the replica calls no MCP servers: offer their tools",
    "web_search_options": "the replica does not search the web",
}
_UNSAFE = re.compile(r"[^ -~]")


class Notes:
    """Each is kept once, in the order they came."""

    def __init__(self) -> None:
        self._said: dict[str, None] = {}

    def add(self, note: str) -> None:
        if len(self._said) < _MAX_NOTES:
            self._said.setdefault(_UNSAFE.sub("?", note)[:_MAX_CHARS])

    def lose(self, names: list[str]) -> None:
        """Fields that mean nothing where the request goes."""
        if names:
            self.add(f"not known to the replica's API: {', '.join(sorted(names))}")

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._said)


@dataclass(frozen=True, slots=True)
class RenderTarget:
    notes: Notes = field(default_factory=Notes)
    is_strict: bool = False
    """Whether it refuses fields it does not know, as hosted APIs do and engines do not."""
    is_plain: bool = False
    """Whether it is asked only what all servers have known for long."""
    takes_signatures: bool = False
    """Whether it is given the signatures of thoughts, since it gave them out."""
    limit: Limit | None = None
    """What a chat calls the most tokens of an answer, if that does not follow from the rest."""

    def keeps(self, mark: Json | None) -> Json:
        """A cache mark as a field, for APIs that have no such field, though gateways and engines read it."""
        if self.is_strict:
            self.lose_mark(mark)
        return {} if mark is None or self.is_strict else {"cache_control": mark}

    def lose_mark(self, mark: Json | None) -> None:
        if mark is not None:
            self.notes.add("cache_control left out: the replica's API has no place for it")

    def leave_out(self, part: Opaque, what: str = "content") -> None:
        """Raises RequestError for one that others cannot do without."""
        if not part.is_private:
            raise part.refuse(f"{what} of type {part.kind!r:.60} cannot be carried to this replica")
        self.notes.add(f"{what} of type {part.kind} left out")
        self.lose_mark(part.mark)


def check_portable(request: ApiRequest) -> None:
    """Raises RequestError for what no other API can say."""
    if request.own.get("thread") is not None:
        raise ThreadUnsupported
    for name, reason in _NOT_PORTABLE.items():
        value = request.own.get(name)
        if value not in (None, "", False, []) and (name, value) != ("n", 1):
            raise RequestError(f"{name}: {reason}", param=name)


def check_hosted(request: ApiRequest) -> None:
    """Hosted tools are left out: clients offer them unasked. Raises RequestError where a request asks for one: its
    choice names it, or it demands a call and there is no other tool."""
    hosted = [tool for tool in request.tools if isinstance(tool, Opaque) and tool.is_private]
    chosen = request.choice.name
    named = [tool for tool in hosted if chosen is not None and tool.value.get("name") == chosen]
    is_only = bool(hosted) and len(hosted) == len(request.tools) and request.choice.mode == "required"
    if named or is_only:
        tool = (named or hosted)[0]
        raise tool.refuse(f"nothing here runs {tool.kind!r:.60}: offer a tool that you run yourself")


def offer_tools(request: ApiRequest, target: RenderTarget) -> list[ApiTool]:
    """The tools as plain functions, for another API. Raises RequestError if one must be called that is not there."""
    check_hosted(request)
    choice, offered = request.choice, offered_tools(request)
    tools = [tool.as_function() for tool in offered.callable]
    if len(offered.head) < len(request.tools):
        target.notes.add("late tools are listed with the others once they are found")
    for tool in offered.head:
        if isinstance(tool, ApiTool):
            continue
        if tool.is_private:
            target.notes.add(f"tool of type {tool.kind} left out: the replica has no built-in tools")
            target.lose_mark(tool.mark)
        else:
            raise tool.refuse(f"a tool of type {tool.kind!r:.60} cannot be carried to this replica")
    if choice.allowed is not None and tools:  # other APIs have no tools that are shown and not allowed
        kept = [tool for tool in tools if tool.name in choice.allowed]
        if not kept:
            raise RequestError("tool_choice: none of the allowed tools is given", param="tool_choice")
        if len(kept) < len(tools):
            target.notes.add("tool_choice: tools that are not allowed are left out, which changes the prompt")
        tools = kept
    if not tools and choice.mode == "required":
        raise RequestError("tool_choice: there is no tool to call", param="tool_choice")
    if choice.name is not None and choice.name not in [tool.name for tool in tools]:
        raise RequestError(f"tool_choice: there is no tool {choice.name!r:.100}", param="tool_choice")
    return tools
