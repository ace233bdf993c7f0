"""What a run says, in the words of an API: its texts are the answer's, and what its tools do are notes beside it."""

import json
from collections.abc import Iterator
from typing import Any

import pydantic_core

from hotloop.agent import events
from hotloop.agent.service.running import as_failure
from hotloop.core.errors import HotloopError
from hotloop.core.stream import TextDelta
from hotloop.wire import event as wire
from hotloop.wire.chat.writer import ChatWriter
from hotloop.wire.field import Json
from hotloop.wire.responses.writer import ResponsesWriter

Writer = ChatWriter | ResponsesWriter


class AnswerStream:
    """Bytes for the events of a run. Texts of several turns are set apart by an empty line; an answer that has a type
    is JSON, told when it is whole."""

    def __init__(self, writer: Writer, name: str, *, is_text: bool) -> None:
        self._writer = writer
        self._name = name
        self._is_text = is_text
        self._has_text = self._is_apart = False

    def write(self, event: events.Event) -> Iterator[bytes]:
        match event:
            case events.RunStarted():
                yield from self._writer.write(wire.Begun(event.run_id, self._name))
            case events.Text() if self._is_text:
                yield from self._say(event.text)
            case events.TurnFinished() if event.num_calls:
                self._is_apart = self._has_text
            case events.RunEnded(error=None):
                if not self._is_text:
                    yield from self._say(render_output(event.output))
                yield from self._writer.write(end_of(event))
            case events.RunEnded():
                assert event.error
                yield self.fail(event.error)
            case _ if note := describe(event):
                yield self._writer.note(note)

    def fail(self, error: HotloopError) -> bytes:
        return self._writer.fail(as_failure(error))

    def _say(self, text: str) -> Iterator[bytes]:
        if self._is_apart:
            yield from self._writer.write(TextDelta("\n\n"))
        self._is_apart, self._has_text = False, True
        yield from self._writer.write(TextDelta(text))


def whole_answer(writer: Writer, name: str, run_id: str, ended: events.RunEnded) -> Json:
    return writer.whole([wire.Begun(run_id, name), TextDelta(render_output(ended.output)), end_of(ended)])


def render_output(output: Any) -> str:
    return output if isinstance(output, str) else pydantic_core.to_json(output, fallback=str).decode()


def end_of(ended: events.RunEnded) -> wire.Ended:
    return wire.Ended("length" if ended.is_cut else "stop", usage=ended.spent.usage)


def describe(event: events.Event) -> Json | None:
    """The progress event of a step: the tool and how long it took, not its arguments or result."""
    match event:
        case events.CallDispatched():
            return {"event": "call_dispatched", "turn": event.turn, "call_id": event.call_id, "name": event.name}
        case events.CallFinished():
            about = {"turn": event.turn, "call_id": event.call_id, "name": event.name, "is_error": event.is_error}
            return {"event": "call_finished", **about, "duration_s": round(event.duration_s, 4)}
        case events.HandedOver():
            return {"event": "handed_over", "turn": event.turn, "agent": event.agent}
        case events.TurnRestarted() | events.TurnStarted():
            kind = "turn_started" if isinstance(event, events.TurnStarted) else "turn_restarted"
            return {"event": kind, "turn": event.turn}
        case events.SubAgentEvent() if inner := describe(event.inner):
            return {"event": "sub_agent", "turn": event.turn, "agent": event.agent, "inner": inner}
    return None


def line(note: Json) -> str:
    """A note as a line for people."""
    words = {key: value for key, value in note.items() if key != "event"}
    return f"{note['event']} {json.dumps(words)}"
