"""A whole answer, gathered from its events."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hotloop.core.message import Thought
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta
from hotloop.wire.event import Begun, Ended, Event, ThoughtClosed
from hotloop.wire.part import Call, Text


@dataclass(frozen=True, slots=True)
class Answer:
    """`parts` are in the order in which they began; texts that follow each other are one."""

    id: str = ""
    model: str = ""
    parts: tuple[Text | Thought | Call, ...] = ()
    ended: Ended = field(default_factory=Ended)
    cut: frozenset[str] = frozenset()
    """The ids of calls that were cut off."""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def thoughts(self) -> list[Thought]:
        return [part for part in self.parts if isinstance(part, Thought)]


def gather(events: Iterable[Event]) -> Answer:
    begun, ended = Begun(), Ended()
    parts: list[Thought | CallOpened | list[str]] = []  # a list is a text
    arguments: dict[int, list[str]] = {}
    open_calls: dict[int, str] = {}
    for event in events:
        match event:
            case Begun():
                begun = event
            case Ended():
                ended = event
            case TextDelta():
                if not parts or not isinstance(parts[-1], list):
                    parts.append([])
                last = parts[-1]
                assert isinstance(last, list)
                last.append(event.text)
            case ThoughtClosed():
                parts.append(event.thought)
            case CallOpened():
                parts.append(event)
                open_calls[event.index] = event.id
            case CallDelta():
                arguments.setdefault(event.index, []).append(event.arguments)
            case CallClosed():
                open_calls.pop(event.index, None)
    whole = tuple(_whole(part, arguments) for part in parts)
    return Answer(begun.id, begun.model, whole, ended, frozenset(open_calls.values()))


def _whole(part: Thought | CallOpened | list[str], arguments: dict[int, list[str]]) -> Text | Thought | Call:
    if isinstance(part, list):
        return Text("".join(part))
    if isinstance(part, Thought):
        return part
    return Call(part.id, part.name, "".join(arguments.get(part.index, ())))
