"""Tools that come late, in the words that the model's family has for tools.

The template is asked for a prompt with one tool and for one with more; what it puts in between is how it words those.
Where it does more than that, each is a line of JSON.
"""

import json
import threading
from collections.abc import Callable

from hotloop.chat.assembly.spans import num_common
from hotloop.core.errors import RequestError
from hotloop.core.lru import LruCache
from hotloop.core.message import Tool
from hotloop.stable.late import LateTools, word_late

_MAX_CHARS = 2_000_000
_PROBE = Tool("example", "An example.", {"type": "object", "properties": {"key": {"type": "string"}}})


class ToolWords:
    """Used from any thread."""

    def __init__(self, render: Callable[[tuple[Tool, ...]], str]) -> None:
        """`render`: a prompt with these tools in its head."""
        self._render = render
        self._known: LruCache[str, str] = LruCache(_MAX_CHARS)
        self._lock = threading.Lock()

    def say(self, late: LateTools) -> str:
        return word_late(late, self._describe)

    def _describe(self, tools: tuple[Tool, ...]) -> str:
        key = repr(tools)
        with self._lock:
            known = self._known.find(key)
        if known is None:
            known = self._derive(tools) or "\n".join(map(_as_json, tools))
            with self._lock:
                self._known.put(key, known, len(key) + len(known))
        return known

    def _derive(self, tools: tuple[Tool, ...]) -> str | None:
        try:
            one, more = self._render((_PROBE,)), self._render((_PROBE, *tools))
        except RequestError:
            return None
        words = _inserted(one, more)
        return words if words and all(tool.name in words for tool in tools) else None


def _inserted(text: str, longer: str) -> str | None:
    """What the longer one has in between; it begins a line if it may be taken for that."""
    begin, size = num_common(text, longer), len(longer) - len(text)
    if size <= 0 or text[begin:] != longer[begin + size :]:
        return None
    first = begin
    while first and longer[first - 1] == longer[first - 1 + size]:
        first -= 1
    begins = (at for at in range(begin, first - 1, -1) if longer[at - 1 : at] == "\n" and not longer[at].isspace())
    at = next(begins, begin)
    return longer[at : at + size].strip(", \n")


def _as_json(tool: Tool) -> str:
    fields = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return json.dumps(fields, ensure_ascii=False)
