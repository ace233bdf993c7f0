"""The seam to a model: one prompt in, its answer out as it is written.

An answer is a stream of the wire's events, the last of them an `Ended`. What goes wrong raises a `HotloopError`; what
it was about to say is then lost. Nothing here knows an API.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hotloop.core.errors import RemoteError
from hotloop.core.message import Message, Thought, Tool, ToolCall
from hotloop.core.request import Priority
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta, ThoughtClosed
from hotloop.trace.span import TraceContext
from hotloop.wire.event import Ended, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Everything an answer depends on.

    messages  [ system | what was said before ...... | what is new ]
              [ the same in every run | the same in every turn     ]
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    choice: Literal["auto", "none", "required"] = "auto"
    schema: Mapping[str, Any] | None = None
    """If given, the answer is JSON of this schema, and no call."""
    max_tokens: int | None = None
    temperature: float | None = None
    session_id: str = ""
    """The same for all turns of a run, so that a server can keep their prefix cached."""
    parent_id: str = ""
    """The session that this one works for."""
    priority: Priority = Priority.INTERACTIVE
    task: str = ""
    """What kind of task it is, by which a router chooses a tier."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields for the wire."""
    trace: TraceContext | None = None
    """What this is part of, for a server that traces."""
    on_fallback: "Callable[[str, RemoteError], None] | None" = None
    """Told which of several models is passed over, and why."""


class Model(Protocol):
    """Whoever answers. One object serves many runs at once."""

    @property
    def name(self) -> str: ...

    @property
    def can_prefill_ahead(self) -> bool:
        """Whether `prefill` saves the next turn anything."""
        ...

    async def find_window(self) -> int | None:
        """Most tokens that a prompt and its answer may have; None where nobody says."""
        ...

    def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        """The answer. Closing the iterator stops the model."""
        ...

    async def prefill(self, ask: Ask) -> None:
        """Have the model prefill a prompt that will go on, and answer nothing."""
        ...

    async def close(self) -> None: ...


class WrappedModel:
    """A model around another: the same but for how a subclass streams its answers."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def can_prefill_ahead(self) -> bool:
        return self._model.can_prefill_ahead

    async def find_window(self) -> int | None:
        return await self._model.find_window()

    async def prefill(self, ask: Ask) -> None:
        await self._model.prefill(ask)

    async def close(self) -> None:
        await self._model.close()


class PartialAnswer:
    """An answer as it is written: told its events, it gives each call the moment it is whole."""

    def __init__(self) -> None:
        self.text = ""
        self.thoughts: list[Thought] = []
        self.ended = Ended()
        self.has_begun = False
        self._calls: dict[int, ToolCall] = {}
        self._arguments: dict[int, list[str]] = {}  # of the calls that are not whole

    def push(self, event: Event) -> ToolCall | None:
        """Take an event; gives the call it completes, if it does."""
        self.has_begun = True
        match event:
            case TextDelta():
                self.text += event.text
            case ThoughtClosed():
                self.thoughts.append(event.thought)
            case CallOpened():
                self._calls[event.index] = ToolCall(event.id, event.name, "")
                self._arguments[event.index] = []
            case CallDelta():
                self._arguments[event.index].append(event.arguments)
            case CallClosed() if event.index in self._arguments:
                opened, arguments = self._calls[event.index], "".join(self._arguments.pop(event.index))
                self._calls[event.index] = whole = ToolCall(opened.id, opened.name, arguments)
                return whole
            case Ended():
                self.ended = event
        return None

    def open_call(self, index: int) -> tuple[str, str]:
        """A call's name, and its arguments so far, if it is not whole yet."""
        return self._calls[index].name, "".join(self._arguments.get(index, ()))

    @property
    def message(self) -> Message:
        """What was said, as the next prompt has it; a call that was cut off was never made."""
        calls = tuple(call for index, call in self._calls.items() if index not in self._arguments)
        return Message("assistant", self.text, tool_calls=calls, thoughts=tuple(self.thoughts))
