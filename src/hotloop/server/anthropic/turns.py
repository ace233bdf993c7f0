"""A conversation in content blocks, as turns of plain text, calls and results, and where it says it is worth keeping.

    user       [tool_result, tool_result, text, text]  ->  tool, tool, user
    assistant  [thinking, text, tool_use, tool_use]    ->  assistant, with two calls

Turns of the same role that follow each other are one. Thinking is dropped: it is another model's, and signed by its
maker. Anything else that is not text is refused.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Role, ToolCall
from hotloop.server.anthropic.cache import CacheControlBody, CacheHint, message_hint, tool_hint
from hotloop.server.anthropic.wire import BlockBody, PartBody, PromptBody

_THINKING = ("thinking", "redacted_thinking")
# An answer comes back in as many blocks as it was given out in, and was one text; other texts are lines of their own.
_JOINERS: dict[Role, str] = {"assistant": "", "user": "\n", "system": "\n"}


class Turns:
    """The messages so far, and the breakpoints between them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.hints: list[CacheHint] = []

    def say(self, role: Role, text: str) -> None:
        if not self.messages or self.messages[-1].role != role:
            self.messages.append(Message(role, text))
            return
        content = self.messages[-1].content
        joined = _JOINERS[role].join((content, text)) if content and text else content + text
        self.messages[-1] = replace(self.messages[-1], content=joined)

    def call(self, call: ToolCall) -> None:
        last = self.messages[-1]
        assert last.role == "assistant"
        self.messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))

    def answer(self, call_id: str, text: str) -> None:
        self.messages.append(Message("tool", text, tool_call_id=call_id))

    def mark(self, control: CacheControlBody | None) -> None:
        """All there is so far is worth keeping."""
        if control and self.messages:
            self.hints.append(message_hint(control, len(self.messages) - 1, len(self.messages[-1].content)))


def parse_turns(body: PromptBody) -> Turns:
    turns = Turns()
    turns.hints += [tool_hint(tool.cache_control, i) for i, tool in enumerate(body.tools or ()) if tool.cache_control]
    if body.system:
        _add_turn(turns, "system", "system", body.system)
    for i, turn in enumerate(body.messages):
        _add_turn(turns, turn.role, f"messages[{i}].content", turn.content)
    if not turns.messages:
        raise RequestError("messages: there is nothing to answer", param="messages")
    turns.mark(body.cache_control)
    return turns


def _add_turn(turns: Turns, role: Role, place: str, content: str | Sequence[BlockBody]) -> None:
    if isinstance(content, str):
        turns.say(role, content)
        return
    if role == "assistant":
        turns.say(role, "")  # it was its turn, even if nothing of it is left
    for i, block in enumerate(content):
        _add_block(turns, role, f"{place}[{i}]", block)
        turns.mark(block.cache_control)


def _add_block(turns: Turns, role: Role, place: str, block: BlockBody) -> None:
    if block.type == "text":
        turns.say(role, _expect(block.text, f"{place}.text"))
    elif block.type == "tool_use" and role == "assistant":
        turns.call(_parse_call(place, block))
    elif block.type == "tool_result" and role == "user":
        turns.answer(_expect(block.tool_use_id, f"{place}.tool_use_id"), _parse_result(place, block))
    elif block.type not in _THINKING or role != "assistant":
        raise _unsupported(place, block.type)


def _parse_call(place: str, block: BlockBody) -> ToolCall:
    """The arguments are written as the grammar of a call has them written."""
    name = _expect(block.name, f"{place}.name")
    return ToolCall(_expect(block.id, f"{place}.id"), name, json.dumps(block.input or {}, ensure_ascii=False))


def _parse_result(place: str, block: BlockBody) -> str:
    """Models have no word of their own for a call that failed: the text says so, if it does not already."""
    parts = block.content if isinstance(block.content, list) else ()
    text = "\n".join(_parse_part(f"{place}.content[{i}]", part) for i, part in enumerate(parts))
    if isinstance(block.content, str):
        text = block.content
    is_silent_error = block.is_error and "error" not in text[:32].lower()
    return f"Error: {text}" if is_silent_error else text


def _parse_part(place: str, part: PartBody) -> str:
    if part.type != "text":
        raise _unsupported(place, part.type)
    return _expect(part.text, f"{place}.text")


def _expect(value: str | None, place: str) -> str:
    if value is None:
        raise RequestError(f"{place} is missing", param=place)
    return value


def _unsupported(place: str, kind: str) -> RequestError:
    return RequestError(f"{place}: content of type {kind!r} is not supported here", param=place)
