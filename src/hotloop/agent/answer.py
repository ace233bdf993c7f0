"""An answer as it is written: what was said, and each call the moment it is whole."""

from dataclasses import dataclass, field

from hotloop.agent.model import Answered, ModelEvent
from hotloop.core.message import Message, Thought, ToolCall
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    is_whole: bool = False

    @property
    def value(self) -> ToolCall:
        return ToolCall(self.id, self.name, "".join(self.arguments))


class Answer:
    """Told the events of one answer."""

    def __init__(self) -> None:
        self.end: Answered | None = None
        self._text: list[str] = []
        self._calls: dict[int, _Call] = {}
        self.thoughts: list[Thought] = []

    def push(self, event: ModelEvent) -> ToolCall | None:
        """Take an event; gives the call it completes, if it does."""
        match event:
            case TextDelta():
                self._text.append(event.text)
            case Thought():
                self.thoughts.append(event)
            case CallOpened():
                self._calls[event.index] = _Call(event.id, event.name)
            case CallDelta():
                self._calls[event.index].arguments.append(event.arguments)
            case CallClosed():
                call = self._calls[event.index]
                if not call.is_whole:
                    call.is_whole = True
                    return call.value
            case Answered():
                self.end = event
        return None

    def call_id(self, index: int) -> str:
        return self._calls[index].id

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def message(self) -> Message:
        """What was said, as the next prompt has it; a call that was cut off was never made."""
        calls = tuple(call.value for call in self._calls.values() if call.is_whole)
        return Message("assistant", self.text, tool_calls=calls, thoughts=tuple(self.thoughts))
