"""A conversation as a predictor sees it: what was called and what came of it, and what was said. Grows with the run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hotloop.agent.predict.values import Leaves, call_key, leaves_of, tokens_of
from hotloop.core.message import Message, ToolCall
from hotloop.wire.arguments import read_arguments

MAX_MESSAGES = 200
"""How far back a predictor looks."""

Tokens = tuple[tuple[str, str], ...]


class PastCall:
    """A call that was made. `result` is empty until it is known."""

    def __init__(self, call: ToolCall) -> None:
        self.id = call.id
        self.name = call.name
        self.arguments = read_arguments(call.arguments)
        self.key = call_key(call.name, self.arguments)
        self.result = ""

    @cached_property
    def leaves(self) -> Leaves:
        return {} if self.is_error else leaves_of(self.result)

    @property
    def is_error(self) -> bool:
        return self.result.startswith("Error")


@dataclass(slots=True)
class History:
    """All that was said so far, in order."""

    calls: list[PastCall] = field(default_factory=list)
    said: list[Tokens] = field(default_factory=list)
    """By the user, message by message."""
    answered: Tokens = ()
    """By the model, when it last said something."""
    trail: list[str] = field(default_factory=list)
    """What happened, without its values: `user`, the name of a tool, or `name!` where the tool failed."""
    _messages: list[Message] = field(default_factory=list)

    def follow(self, messages: Sequence[Message]) -> "History":
        """Read what is new; everything, if the past was rewritten."""
        known = len(self._messages)
        if known > len(messages) or any(a is not b for a, b in zip(self._messages, messages, strict=False)):
            self.__init__()  # type: ignore[misc]
            known = 0
        for message in messages[max(known, len(messages) - MAX_MESSAGES) :]:
            self._read(message)
        self._messages = list(messages)
        return self

    def after(self, call: ToolCall) -> "History":
        """This history and one more call, whose result is not known yet."""
        return History([*self.calls, PastCall(call)], self.said, self.answered, self.trail)

    def has_made(self, key: str | None) -> bool:
        return any(call.key == key for call in self.calls)

    def latest(self, name: str) -> PastCall | None:
        return next((call for call in reversed(self.calls) if call.name == name and not call.is_error), None)

    def value_of(self, name: str, argument: str) -> Any:
        """What the latest call of a tool had as an argument; None if there was none."""
        for call in reversed(self.calls):
            if call.name == name and call.arguments and argument in call.arguments:
                return call.arguments[argument]
        return None

    def _read(self, message: Message) -> None:
        if message.role == "user":
            self.said.append(tuple(tokens_of(message.content)))
            self.trail.append("user")
        elif message.role == "assistant":
            if message.content:
                self.answered = tuple(tokens_of(message.content))
            self.calls += [PastCall(call) for call in message.tool_calls]
        elif message.role == "tool":
            self._read_result(message)

    def _read_result(self, message: Message) -> None:
        for call in reversed(self.calls):
            if call.id == message.tool_call_id:
                call.result = message.content
                self.trail.append(f"{call.name}!" if call.is_error else call.name)
                return
