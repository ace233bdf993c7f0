"""The events of a message as the chunks of a chat completion.

    role, (content | reasoning_content | tool_calls)*, finish_reason, usage if it was asked for, [DONE]

A call is named once, with its index and id; what follows are its arguments.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from hotloop.border.sse import DONE, ServerEvent, write_data
from hotloop.core.errors import RemoteError
from hotloop.router.translate.calls import dump
from hotloop.router.translate.chat_to_messages.answer import Envelope, render_call, render_finish, render_signed
from hotloop.router.translate.failures import render_chat_failure
from hotloop.router.translate.field import Json
from hotloop.router.translate.message_shapes import Block, Delta, Message, MessageEvent, read_message_event
from hotloop.router.translate.stream import broke_off
from hotloop.router.translate.usage import MessageUsage

_SIGNED = ("thinking", "redacted_thinking")


class ChunkComposer:
    """Told the events of one answer."""

    def __init__(self, model: str, *, has_usage: bool) -> None:
        self.is_whole = False
        self._model = model
        self._has_usage = has_usage
        self._envelope: Envelope | None = None
        self._usage = MessageUsage()
        self._is_finished = False
        self._block = Block()
        self._num_calls = 0
        self._has_arguments = False

    def push(self, event: ServerEvent) -> Iterator[bytes]:
        heard = read_message_event(event.data)
        match heard.type:
            case "message_start":
                yield from self._begin(heard.message or Message())
            case "content_block_start" | "content_block_delta" | "content_block_stop" | "message_delta":
                if self._envelope is None:
                    yield from self._begin(Message())
                yield from self._go_on(heard)
            case "message_stop":
                yield from self._close()

    def finish(self) -> Iterator[bytes]:
        if not self._is_finished:
            raise broke_off()
        yield from self._close()

    def fail(self, error: RemoteError) -> bytes:
        """Nothing follows it, so that no client takes half an answer for a whole one."""
        return write_data(render_chat_failure(error)[1])

    def _begin(self, message: Message) -> Iterator[bytes]:
        self._envelope = Envelope.of(message, self._model)
        self._usage = self._usage.updated(message.usage)
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def _go_on(self, heard: MessageEvent) -> Iterator[bytes]:
        match heard.type:
            case "content_block_start":
                yield from self._begin_block(heard.content_block or Block())
            case "content_block_delta":
                yield from self._grow(heard.delta or Delta())
            case "content_block_stop":
                yield from self._end_block()
            case "message_delta":
                self._usage = self._usage.updated(heard.usage)
                delta = heard.delta or Delta()
                if delta.stop_reason and not self._is_finished:
                    self._is_finished = True
                    yield self._chunk({}, **render_finish(delta.stop_reason, delta.stop_sequence))

    def _begin_block(self, block: Block) -> Iterator[bytes]:
        self._block = block
        self._has_arguments = False
        if block.type == "tool_use":
            yield self._call(render_call(block, ""))
            self._num_calls += 1
            if block.input:
                yield from self._grow(Delta(partial_json=dump(block.input)))
        elif block.type == "text" and block.text:
            yield self._chunk({"content": block.text})
        elif block.type == "thinking" and block.thinking:
            yield self._chunk({"reasoning_content": block.thinking})

    def _grow(self, delta: Delta) -> Iterator[bytes]:
        match self._block.type:
            case "tool_use" if delta.partial_json:
                self._has_arguments = True
                yield self._arguments(delta.partial_json)
            case "text" if delta.text:
                yield self._chunk({"content": delta.text})
            case "thinking":
                thought = (self._block.thinking or "") + (delta.thinking or "")
                signature = (self._block.signature or "") + (delta.signature or "")
                self._block = msgspec.structs.replace(self._block, thinking=thought, signature=signature)
                if delta.thinking:
                    yield self._chunk({"reasoning_content": delta.thinking})

    def _end_block(self) -> Iterator[bytes]:
        """Clients parse the arguments: a call without any has an empty object."""
        if self._block.type == "tool_use" and not self._has_arguments:
            yield self._arguments("{}")
        elif self._block.type in _SIGNED and (self._block.signature or self._block.data):
            yield self._chunk({"thinking_blocks": [render_signed(self._block)]})
        self._block = Block()

    def _close(self) -> Iterator[bytes]:
        if not self._is_finished:
            raise broke_off()
        if self._has_usage:
            yield self._write([], usage=self._usage.counts.render_chat())
        yield DONE
        self.is_whole = True

    def _arguments(self, text: str) -> bytes:
        return self._chunk({"tool_calls": [{"index": self._num_calls - 1, "function": {"arguments": text}}]})

    def _call(self, call: Json) -> bytes:
        return self._chunk({"tool_calls": [{"index": self._num_calls, **call}]})

    def _chunk(self, delta: Json, **finish: Any) -> bytes:
        return self._write([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **finish}])

    def _write(self, choices: list[Json], usage: Json | None = None) -> bytes:
        assert self._envelope
        body = {**self._envelope.render("chat.completion.chunk"), "choices": choices}
        return write_data({**body, "usage": usage} if self._has_usage else body)
