"""Tool calls as the model wrote them, for clients that send them back in other words and templates that have others.

Many clients parse the JSON of a call and write it anew: other spaces, other escapes. Where a call comes back with its
id and arguments of the same value, the cached text is used. And where the template would word the calls otherwise than
the model did, the whole answer is given to it as plain text.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hotloop.chat.stream import CallParser, WrappedParser
from hotloop.core.errors import RequestError
from hotloop.core.lru import LruCache
from hotloop.core.message import Message, ToolCall
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.core.stream import CallDelta, CallOpened, StreamEvent, TextDelta
from hotloop.stable.arguments import call_key, is_same_json

_MAX_CHARS = 4_000_000

Render = Callable[[Message], str]


@dataclass(slots=True)
class _Answer:
    """An answer with calls, and what a client was told of it."""

    text: str = ""
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    is_reworded: bool | None = None
    """Whether the template has other words for it; None until that was tried."""

    def matches(self, message: Message) -> bool:
        """Whether the message says what this answer said. Its calls may have got their ids from another API, and some
        clients put a space where there was no text."""
        same_calls = [(call.name, call.arguments) for call in message.tool_calls]
        return message.content.strip() == self.content.strip() and same_calls == [
            (call.name, call.arguments) for call in self.calls
        ]


class WrittenCalls:
    """Answers with calls, by the ids of the calls. Used from any thread."""

    def __init__(self, sharing: Sharing = UNSHARED) -> None:
        self._answers: LruCache[str, _Answer] = LruCache(_MAX_CHARS)
        self._lock = threading.Lock()
        self.keep = sharing.share("answer", _Answer, self._keep)

    def watch(self, parser: CallParser) -> CallParser:
        return _Watched(parser, self)

    def _keep(self, answer: _Answer) -> None:
        with self._lock:
            for call in answer.calls:
                self._answers.put(call_key(call.id), answer, len(answer.text))

    def restore(self, messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
        """The messages with the arguments of their calls as they were written, and what was done to them."""
        restored = tuple(
            replace(message, tool_calls=tuple(map(self._restore, message.tool_calls)))
            if message.tool_calls
            else message
            for message in messages
        )
        return restored, _changes(messages, restored, "arguments are as the model wrote them")

    def verbatim(self, messages: Sequence[Message], render: Render) -> tuple[tuple[Message, ...], tuple[str, ...]]:
        """The messages, those as plain text whose calls `render` would word differently, and what was done to them."""
        given = tuple(self._verbatim(message, render) for message in messages)
        return given, _changes(messages, given, "calls are worded as the model did")

    def _find(self, call: ToolCall) -> _Answer | None:
        with self._lock:
            return self._answers.find(call_key(call.id))

    def _restore(self, call: ToolCall) -> ToolCall:
        answer = self._find(call)
        calls, key = answer.calls if answer else (), call_key(call.id)
        written = next((other.arguments for other in calls if call_key(other.id) == key), call.arguments)
        is_reworded = written != call.arguments and is_same_json(written, call.arguments)
        return replace(call, arguments=written) if is_reworded else call

    def _verbatim(self, message: Message, render: Render) -> Message:
        answer = self._find(message.tool_calls[0]) if message.tool_calls else None
        if answer is None or not answer.matches(message):
            return message
        content, text = answer.content, answer.text
        if message.thoughts:  # the template has the space behind them
            content, text = content.lstrip(), text.lstrip()
        message = replace(message, content=content)
        plain = replace(message, content=text, tool_calls=())
        if answer.is_reworded is None:
            answer.is_reworded = _is_reworded(render, message, plain)
        return plain if answer.is_reworded else message


class _Watched(WrappedParser):
    def __init__(self, parser: CallParser, written: WrittenCalls) -> None:
        super().__init__(parser)
        self._written = written
        self._answer = _Answer()

    def push(self, text: str) -> list[StreamEvent]:
        self._answer.text += text
        return super().push(text)

    def finish(self, *, is_cut: bool = False) -> list[StreamEvent]:
        events = super().finish(is_cut=is_cut)
        if self._answer.calls:
            self._written.keep(self._answer)
        return events

    def _pass(self, events: list[StreamEvent]) -> list[StreamEvent]:
        answer = self._answer
        for event in events:
            match event:
                case TextDelta():
                    answer.content += event.text
                case CallOpened():
                    answer.calls.append(ToolCall(event.id, event.name, ""))
                case CallDelta():
                    call = answer.calls[event.index]
                    answer.calls[event.index] = replace(call, arguments=call.arguments + event.arguments)
        return events


def _is_reworded(render: Render, message: Message, plain: Message) -> bool:
    """Whether the template begins the answer otherwise than the model did, and says the model's text as it is."""
    text, as_text = plain.content.strip(), _say(render, plain)
    begin = as_text.find(text)
    return begin >= 0 and not _say(render, message).startswith(as_text[: begin + len(text)])


def _say(render: Render, message: Message) -> str:
    try:
        return render(message)
    except RequestError:  # it cannot be said by itself: the template is left to it
        return ""


def _changes(given: Sequence[Message], changed: Sequence[Message], what: str) -> tuple[str, ...]:
    return tuple(
        f"messages[{i}]: {what}" for i, pair in enumerate(zip(given, changed, strict=True)) if pair[0] != pair[1]
    )
