"""The turns of a request as messages of plain text, calls and results, and where it says it is worth keeping.

    user       [result, result, text, text]       ->  tool, tool, user
    assistant  [thought, text, text, call, call]  ->  assistant, with what it thought and two calls

Thoughts that somebody signed are dropped: they are another model's. Anything else that is not text is refused, but for
notes that a hosted tool left for itself, where they are known to be no more than that.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Role, Thought, ToolCall
from hotloop.server.breakpoints import CacheControlBody, CacheHint, message_hint
from hotloop.server.decoding import convert
from hotloop.wire.part import Call, Opaque, Part, Result, Text, Turn

# An answer comes back in as many parts as it was given out in, and was one text; other texts are lines of their own.
_JOINERS: dict[Role, str] = {"assistant": "", "user": "\n", "system": "\n"}


class Turns:
    """The messages so far, and the breakpoints between them.

    `joins` is Anthropic's way: turns of one role that follow each other are one, and parts may be marked. `dropped` are
    the kinds of items that are left out.
    """

    def __init__(self, turns: Iterable[Turn] = (), *, joins: bool = False, dropped: Collection[str] = ()) -> None:
        self.messages: list[Message] = []
        self.hints: list[CacheHint] = []
        self._joins = joins
        self._dropped = dropped
        for turn in turns:
            self.add(turn)

    def add(self, turn: Turn) -> None:
        if not self._joins and (message := _plain_message(turn)):
            self.messages.append(message)
            return
        is_answer = turn.role == "assistant"
        has_begun = is_answer or (not turn.parts and not self._joins)
        if has_begun:  # it was its turn, even if nothing of it is left
            self._begin(turn, is_new=not self._joins)
        calls: list[ToolCall] = []
        thoughts: list[Thought] = []
        for part in turn.parts:
            match part:
                case Text():
                    self._say(turn, part.text, is_new=not has_begun and not self._joins)
                    has_begun = True
                case Call() if is_answer:
                    calls.append(ToolCall(part.id, part.flat_name, part.arguments))
                case Result() if turn.role == "user":
                    self.messages.append(Message("tool", _result_text(part), tool_call_id=part.call_id or None))
                case Thought() if is_answer:
                    thoughts += [] if part.maker else [part]
                case Opaque() if part.kind in self._dropped:
                    pass
                case _:
                    raise _unsupported(part, turn)
            self._mark_part(part)
        if calls or thoughts:
            last = self.messages[-1]
            all_calls, all_thoughts = (*last.tool_calls, *calls), (*last.thoughts, *thoughts)
            self.messages[-1] = replace(last, tool_calls=all_calls, thoughts=all_thoughts)

    def mark(self, control: CacheControlBody | None) -> None:
        """All there is so far is worth keeping."""
        if control and self.messages:
            self.hints.append(message_hint(control, len(self.messages) - 1, len(self.messages[-1].content)))

    def _mark_part(self, part: Part) -> None:
        if self._joins and not isinstance(part, Thought) and part.mark is not None and part.at:
            self.mark(convert(part.mark, CacheControlBody, f"{part.at.place}.cache_control"))

    def _begin(self, turn: Turn, *, is_new: bool) -> None:
        if is_new or not self.messages or self.messages[-1].role != turn.role:
            self.messages.append(Message(turn.role, "", name=turn.name))

    def _say(self, turn: Turn, text: str, *, is_new: bool) -> None:
        self._begin(turn, is_new=is_new)
        content = self.messages[-1].content
        joined = _JOINERS[turn.role].join((content, text)) if content and text else content + text
        self.messages[-1] = replace(self.messages[-1], content=joined)


def _plain_message(turn: Turn) -> Message | None:
    """The message of a turn that has texts and calls only, or one result: most are, and histories are long."""
    first = turn.parts[0] if turn.parts else None
    if isinstance(first, Result) and len(turn.parts) == 1:
        return Message("tool", _result_text(first), tool_call_id=first.call_id or None)
    texts: list[str] = []
    calls: list[ToolCall] = []
    for part in turn.parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, Call) and turn.role == "assistant":
            calls.append(ToolCall(part.id, part.flat_name, part.arguments))
        else:
            return None
    return Message(turn.role, _JOINERS[turn.role].join(filter(None, texts)), turn.name, tuple(calls))


def _result_text(result: Result) -> str:
    for part in result.parts:
        if not isinstance(part, Text):
            raise _unsupported(part)
    return result.text


def _unsupported(part: Part, turn: Turn | None = None) -> RequestError:
    at = turn.at if turn and isinstance(part, Thought) else None if isinstance(part, Thought) else part.at
    kind = "thinking" if isinstance(part, Thought) else at.value.get("type") if at else None
    place = at.place if at else ""
    return RequestError(f"{place}: content of type {kind!r:.100} is not supported here, only text is", param=place)
