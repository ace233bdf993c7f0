"""An answer as a chat completion, whole or as the chunks of a stream.

    role, (content | reasoning_content | tool_calls)*, finish_reason, usage if it was asked for, [DONE]

A call is named once, with its index and id; what follows are its arguments. Thoughts that Anthropic signed are
`thinking_blocks` as well, which it wants back while a turn of calls goes on.
"""

import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from hotloop.core.errors import RemoteError
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta, ThoughtClosed, ThoughtDelta
from hotloop.wire.arguments import answer_stem, unwrap_input
from hotloop.wire.chat.render import render_call
from hotloop.wire.errors import render_chat_failure
from hotloop.wire.event import Answer, Begun, Ended, EndReason, Event, gather
from hotloop.wire.field import Json, present
from hotloop.wire.part import Call, is_signed, render_block
from hotloop.wire.sse import DONE, write_data

FINISH_REASONS: dict[EndReason, str] = {
    "stop": "stop",
    "calls": "tool_calls",
    "length": "length",
    "window": "length",
    "refusal": "content_filter",
}


class ChatWriter:
    """Told the events of one answer. `model` is what it is called if the answer does not say."""

    def __init__(
        self, model: str, *, has_usage: bool = True, is_legacy: bool = False, custom: Collection[str] = ()
    ) -> None:
        self._model = model
        self._has_usage = has_usage
        self._is_legacy = is_legacy
        self._custom = custom
        self._deltas = Deltas(is_legacy=is_legacy, custom=custom)
        self._envelope: Json = {}
        self._bare: set[int] = set()  # calls without arguments so far

    def write(self, event: Event) -> Iterator[bytes]:
        match event:
            case Begun():
                self._envelope = self._render_envelope(event.id, event.model, "chat.completion.chunk")
                yield self._chunk({"role": "assistant", "content": "", "refusal": None})
            case Ended():
                for index in sorted(self._bare):
                    yield self._chunk(self._deltas.render(CallDelta(index, "{}")))
                yield self._chunk({}, **render_finish(event, is_legacy=self._is_legacy))
                if self._has_usage:
                    yield self._write([], event.usage.render_chat())
                yield DONE
            case CallClosed(index=index) if index in self._bare:
                self._bare.discard(index)  # clients parse the arguments: a call without any has an empty object
                yield self._chunk(self._deltas.render(CallDelta(index, "{}")))
            case _:
                if isinstance(event, CallOpened) and event.name not in self._custom:
                    self._bare.add(event.index)
                elif isinstance(event, CallDelta):
                    self._bare.discard(event.index)
                if delta := self._deltas.render(event):
                    yield self._chunk(delta)

    def note(self, facts: Json) -> bytes:
        """A chunk that says nothing, but to who knows the field `hotloop`."""
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
        return write_data({**self._envelope, "choices": [choice], "hotloop": facts})

    def fail(self, error: RemoteError) -> bytes:
        """Nothing follows it, so that no client takes half an answer for a whole one."""
        return write_data(render_chat_failure(error)[1])

    def whole(self, events: Iterable[Event]) -> Json:
        answer = gather(events)
        message = render_message(answer, is_legacy=self._is_legacy, custom=self._custom)
        finish = render_finish(answer.ended, is_legacy=self._is_legacy)
        choice = {"index": 0, "message": message, "logprobs": None, **finish}
        envelope = self._render_envelope(answer.id, answer.model, "chat.completion")
        return {**envelope, "choices": [choice], "usage": answer.ended.usage.render_chat()}

    def _render_envelope(self, answer_id: str, model: str, kind: str) -> Json:
        stem = answer_stem(answer_id)
        return {"id": f"chatcmpl-{stem}", "object": kind, "created": int(time.time()), "model": model or self._model}

    def _chunk(self, delta: Json, **finish: Any) -> bytes:
        return self._write([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **finish}])

    def _write(self, choices: list[Json], usage: Json | None = None) -> bytes:
        body = {**self._envelope, "choices": choices}
        return write_data({**body, "usage": usage} if self._has_usage else body)


def render_finish(ended: Ended, *, is_legacy: bool = False) -> Json:
    reason = "function_call" if is_legacy and ended.reason == "calls" else FINISH_REASONS[ended.reason]
    return {"finish_reason": reason, "stop_reason": ended.stop}


def render_message(answer: Answer, *, is_legacy: bool = False, custom: Collection[str] = ()) -> Json:
    """`is_legacy`: with one `function_call` in place of `tool_calls`, as who offered `functions` expects it."""
    calls = [_render_whole_call(call, answer, is_custom=call.name in custom) for call in answer.calls]
    message: Json = {"role": "assistant", "content": answer.text or None if calls else answer.text, "refusal": None}
    thought = "".join(thought.shown for thought in answer.thoughts)
    signed = [render_block(thought) for thought in answer.thoughts if is_signed(thought)]
    rest = present(reasoning_content=thought or None, thinking_blocks=signed or None)
    if calls and is_legacy:
        return {**message, **rest, "function_call": calls[0]["function"]}
    return {**message, **rest, **present(tool_calls=calls or None)}


def _render_whole_call(call: Call, answer: Answer, *, is_custom: bool) -> Json:
    arguments = call.arguments or ("" if call.id in answer.cut else "{}")
    return render_call(Call(call.id, call.name, arguments, is_custom=is_custom))


class Deltas:
    """What the message of one choice gains. What a custom tool takes is inside JSON while it is written, so it is told
    when it is whole."""

    def __init__(self, *, is_legacy: bool = False, custom: Collection[str] = ()) -> None:
        self._is_legacy = is_legacy
        self._custom = custom
        self._inputs: dict[int, list[str]] = {}  # of the calls of custom tools

    def render(self, event: Event) -> Json:
        match event:
            case CallOpened() if event.name in self._custom:
                self._inputs[event.index] = []
                call = render_call(Call(event.id, event.name, "", is_custom=True))
                return {"tool_calls": [{"index": event.index, **call}]}
            case CallDelta() if event.index in self._inputs:
                self._inputs[event.index].append(event.arguments)
                return {}
            case CallClosed() if event.index in self._inputs:
                text = unwrap_input("".join(self._inputs.pop(event.index)))
                return {"tool_calls": [{"index": event.index, "custom": {"input": text}}]}
        return _render_delta(event, is_legacy=self._is_legacy)


def _render_delta(event: Event, *, is_legacy: bool) -> Json:
    """What a message gains. A chat has no word for the end of a call: the next one begins, or the answer ends."""
    match event:
        case CallOpened() | CallDelta() if is_legacy and event.index:
            return {}
        case CallOpened() if is_legacy:
            return {"function_call": {"name": event.name, "arguments": ""}}
        case CallDelta() if is_legacy:
            return {"function_call": {"arguments": event.arguments}}
        case TextDelta():
            return {"content": event.text}
        case CallOpened():
            return {"tool_calls": [{"index": event.index, **render_call(Call(event.id, event.name, ""))}]}
        case CallDelta():
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.arguments}}]}
        case ThoughtDelta():
            return {"reasoning_content": event.text}
        case ThoughtClosed() if is_signed(event.thought):
            return {"thinking_blocks": [render_block(event.thought)]}
    return {}
