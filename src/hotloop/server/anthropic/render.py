"""An answer as Anthropic's clients read it: a message of content blocks, at once or as a stream of events.

    message_start ping (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

Nothing here waits or knows a socket; text and calls are told apart by the tool format's parser.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from hotloop.chat.stream import CallParser
from hotloop.core.errors import HotloopError
from hotloop.core.request import FinishReason, TokenEvent, Usage
from hotloop.core.stream import CallDelta, CallOpened, StreamEvent, TextDelta
from hotloop.server.anthropic.cache import Ttl
from hotloop.server.anthropic.errors import render_failure, translate_status
from hotloop.server.errors import kind_of
from hotloop.server.explain.inquiry import Diagnosis, Inquiry
from hotloop.server.openai.render import Json, render_work

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Frame:
    """What is known about an answer before its first word."""

    id: str
    model: str
    inquiry: Inquiry
    ttl: Ttl | None
    """How long the client wants the prompt kept, if it does."""
    num_kept: int = 0
    """How much of the prompt lies before the last breakpoint."""
    limit: Literal["max_tokens", "model_context_window_exceeded"] = "max_tokens"
    """What it means if the answer gets no longer."""
    is_silent: bool = False
    """Whether there is no answer: the prompt was only to be read."""

    def render(self, content: Sequence[Json], usage: Usage) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._render_usage(usage),
            "diagnostics": render_diagnostics(self.inquiry.diagnose()),
        }

    def render_stop(self, event: TokenEvent, num_calls: int) -> Json:
        """A stop string ends an answer whatever it was about to say; calls count only where the model was done."""
        if event.finish_reason is FinishReason.LENGTH or self.is_silent:
            return {"stop_reason": self.limit, "stop_sequence": None}
        if event.stop_match is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": event.stop_match}
        return {"stop_reason": "tool_use" if num_calls else "end_turn", "stop_sequence": None}

    def render_counts(self, usage: Usage) -> Json:
        """Each token of the prompt is counted once: read from the cache, put there because asked, or neither."""
        num_new = usage.num_prompt - usage.num_cached
        num_created = max(self.num_kept - usage.num_cached, 0)
        return {
            "input_tokens": num_new - num_created,
            "cache_creation_input_tokens": num_created,
            "cache_read_input_tokens": usage.num_cached,
            "output_tokens": 0 if self.is_silent else usage.num_output,
            "hotloop": render_work([usage], self.inquiry),
        }

    def _render_usage(self, usage: Usage) -> Json:
        counts = self.render_counts(usage)
        created = {f"ephemeral_{ttl}_input_tokens": 0 for ttl in ("5m", "1h")}
        if self.ttl:
            created[f"ephemeral_{self.ttl}_input_tokens"] = counts["cache_creation_input_tokens"]
        return {**counts, "cache_creation": created, "service_tier": "standard"}


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


def render_message(frame: Frame, parser: CallParser, event: TokenEvent) -> bytes:
    """The answer at once; the event holds all of it."""
    content = _render_blocks(parser.push(event.text) + parser.finish())
    return _encode({**frame.render(content, event.usage), **frame.render_stop(event, parser.num_calls)})


class EventWriter:
    """Turns events into server-sent ones. At most one block is open, and it is the last."""

    def __init__(self, frame: Frame, parser: CallParser) -> None:
        self._frame = frame
        self._parser = parser
        self._last: TokenEvent | None = None
        self._num_blocks = 0
        self._open: Literal["text", "tool_use"] | None = None

    def write(self, events: Sequence[tuple[int, TokenEvent]]) -> bytes:
        return b"".join(piece for _, event in events for piece in self._write(event))

    def close(self, usages: Sequence[Usage]) -> bytes:
        assert self._last
        delta = self._frame.render_stop(self._last, self._parser.num_calls)
        counts = self._frame.render_counts(usages[0])
        return _event("message_delta", delta=delta, usage=counts) + _event("message_stop")

    def fail(self, error: HotloopError, request_id: str) -> bytes:
        status = translate_status(kind_of(error).status)
        return _event(**render_failure(status, error, request_id))

    def _write(self, event: TokenEvent) -> Iterator[bytes]:
        if self._last is None:
            yield _event("message_start", message=self._frame.render([], event.usage))
            yield _event("ping")
        self._last = event
        for part in self._parser.push(event.text):
            yield from self._write_part(part)
        if event.finish_reason:
            for part in self._parser.finish():
                yield from self._write_part(part)
            yield from self._end_block()

    def _write_part(self, part: StreamEvent) -> Iterator[bytes]:
        match part:
            case TextDelta():
                if self._open != "text":
                    yield from self._begin_block("text", {"type": "text", "text": ""})
                yield self._delta(type="text_delta", text=part.text)
            case CallOpened():
                yield from self._begin_block("tool_use", _render_call(part))
            case CallDelta():
                yield self._delta(type="input_json_delta", partial_json=part.arguments)
            case _:
                yield from self._end_block()

    def _begin_block(self, kind: Literal["text", "tool_use"], block: Json) -> Iterator[bytes]:
        yield from self._end_block()
        yield _event("content_block_start", index=self._num_blocks, content_block=block)
        self._open = kind
        self._num_blocks += 1

    def _end_block(self) -> Iterator[bytes]:
        if self._open:
            yield _event("content_block_stop", index=self._num_blocks - 1)
        self._open = None

    def _delta(self, **delta: str) -> bytes:
        return _event("content_block_delta", index=self._num_blocks - 1, delta=delta)


def _event(type: str, **fields: Any) -> bytes:  # noqa: A002 (it is the wire's own word)
    return b"event: " + type.encode() + b"\ndata: " + _encode({"type": type, **fields}) + b"\n\n"


def _render_blocks(parts: Iterable[StreamEvent]) -> list[Json]:
    blocks: list[Json] = []
    arguments: dict[int, str] = {}
    for part in parts:
        match part:
            case TextDelta():
                if not blocks or blocks[-1]["type"] != "text":
                    blocks.append({"type": "text", "text": ""})
                blocks[-1]["text"] += part.text
            case CallOpened():
                arguments[len(blocks)] = ""
                blocks.append(_render_call(part))
            case CallDelta():
                arguments[len(blocks) - 1] += part.arguments
    for i, text in arguments.items():
        blocks[i]["input"] = _parse_input(text)
    return blocks


def _render_call(part: CallOpened) -> Json:
    return {"type": "tool_use", "id": f"toolu_{part.id.removeprefix('call_')}", "name": part.name, "input": {}}


def _parse_input(arguments: str) -> Json:
    """The arguments as a value; of a call that was cut off there is none, and the stop reason says why."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
