"""An answer as Anthropic's clients read it, with what only this server tells: diagnostics, how its tokens came about.

Nothing here waits or knows a socket.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from hotloop.core.errors import HotloopError
from hotloop.core.request import FinishReason, Usage
from hotloop.core.stream import CallOpened, StreamEvent
from hotloop.server.delivery import Piece
from hotloop.server.errors import render_message_error
from hotloop.server.explain.inquiry import Diagnosis
from hotloop.server.job import Job
from hotloop.server.usage import answer_usage
from hotloop.wire import usage as wire
from hotloop.wire.event import Begun, Ended, Event
from hotloop.wire.field import Json
from hotloop.wire.messages.writer import MessagesWriter
from hotloop.wire.request import Request
from hotloop.wire.sse import write_event

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Frame:
    """What is known about an answer before its first word."""

    id: str
    model: str
    request: Request
    job: Job

    def begin(self, piece: Piece) -> Begun:
        return Begun(self.id, self.model, self._usage(piece.usage))

    def end(self, piece: Piece, usage: Usage) -> Ended:
        """A stop string ends an answer whatever it was about to say; calls count only where the model was done."""
        counts, job = self._usage(usage), self.job
        if piece.finish_reason is FinishReason.LENGTH or job.is_silent:
            is_window = (self.request.max_tokens or 0) > (job.sampling.max_tokens or 0)
            return Ended("window" if is_window else "length", None, counts)
        if piece.stop_match is not None:
            return Ended("stop", str(piece.stop_match), counts)
        return Ended("calls" if piece.num_calls else "stop", None, counts)

    def _usage(self, usage: Usage) -> wire.Usage:
        """Each token of the prompt is counted once: cached, put there because asked, or neither."""
        num_kept = max((pin.num_tokens for pin in self.job.pins), default=0)
        return answer_usage([usage], self.job.inquiry, num_kept=num_kept, is_silent=self.job.is_silent)


def render_diagnostics(diagnosis: Diagnosis | None) -> Json | None:
    """Null where no comparison was asked for, or nothing differed. What Anthropic has no word for is unavailable."""
    if diagnosis is None or diagnosis.outcome == "same":
        return None
    reason: Json = {"type": "unavailable"}
    if diagnosis.outcome == "unknown":
        reason = {"type": "previous_message_not_found"}
    elif diagnosis.outcome == "changed" and diagnosis.kind != "template":
        reason = {"type": _changed_part(diagnosis), "cache_missed_input_tokens": diagnosis.num_missed}
    return {"cache_miss_reason": reason}


def _changed_part(diagnosis: Diagnosis) -> str:
    """A system message that is not the first one is among the messages here."""
    if diagnosis.kind == "tool":
        return "tools_changed"
    return "system_changed" if diagnosis.kind == "system" and diagnosis.index == 0 else "messages_changed"


class FrameWriter(MessagesWriter):
    """A message with what this server says about it beyond its content."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame.model)
        self._frame = frame

    def render_frame(self, begun: Begun) -> Json:
        rendered = super().render_frame(begun)
        created = {f"ephemeral_{ttl}_input_tokens": 0 for ttl in ("5m", "1h")}
        if pins := self._frame.job.pins:
            created["ephemeral_5m_input_tokens" if pins[-1].ttl_s == 300 else "ephemeral_1h_input_tokens"] = (
                begun.usage.num_written
            )
        usage = {**rendered["usage"], "cache_creation": created, "service_tier": "standard"}
        return {**rendered, "usage": usage, "diagnostics": render_diagnostics(self._frame.job.inquiry.diagnose())}


def render_message(frame: Frame, piece: Piece) -> bytes:
    """The answer at once; the piece holds all of it."""
    events = [frame.begin(piece), *map(_rename, piece.parts), frame.end(piece, piece.usage)]
    return _encode(FrameWriter(frame).whole(events))


class EventWriter:
    """Turns what a step gave into server-sent events."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._writer = FrameWriter(frame)
        self._last: Piece | None = None

    def write(self, pieces: Sequence[tuple[int, Piece]]) -> bytes:
        return b"".join(
            data for _, piece in pieces for event in self._events(piece) for data in self._writer.write(event)
        )

    def close(self, usages: Sequence[Usage]) -> bytes:
        assert self._last
        return b"".join(self._writer.write(self._frame.end(self._last, usages[0])))

    def fail(self, error: HotloopError, request_id: str) -> bytes:
        failure = render_message_error(error, request_id)
        return write_event("error", error=failure["error"], request_id=request_id)

    def _events(self, piece: Piece) -> Iterator[Event]:
        if self._last is None:
            yield self._frame.begin(piece)
        self._last = piece
        yield from map(_rename, piece.parts)


def _rename(part: StreamEvent) -> StreamEvent:
    """Ids of calls begin as Anthropic's do."""
    if isinstance(part, CallOpened):
        return replace(part, id=f"toolu_{part.id.removeprefix('call_')}")
    return part
