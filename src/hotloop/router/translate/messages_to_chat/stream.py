"""The chunks of a chat completion as the events of a message.

    message_start ping (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

At most one block is open, and it is the last. The counts of the prompt come with the end, since a chat tells them then.
"""

from collections.abc import Iterator
from typing import Literal

from hotloop.border.sse import ServerEvent, write_event
from hotloop.core.errors import RemoteError
from hotloop.router.translate.call_pieces import Calls
from hotloop.router.translate.calls import answer_id
from hotloop.router.translate.chat_shapes import CallPiece, Choice, Completion, Function, Said, read_completion
from hotloop.router.translate.failures import bad_answer, read_event_failure, render_message_failure
from hotloop.router.translate.field import Json
from hotloop.router.translate.messages_to_chat.answer import call_id, render_frame, render_stop
from hotloop.router.translate.stream import broke_off
from hotloop.router.translate.usage import Counts

_DONE = b"[DONE]"

BlockKind = Literal["thinking", "text", "tool_use"]


class MessageComposer:
    """Told the chunks of one answer."""

    def __init__(self, model: str) -> None:
        self.is_whole = False
        self._model = model
        self._stem = ""
        self._counts = Counts()
        self._ending: Choice | None = None
        self._open: BlockKind | None = None
        self._num_blocks = 0
        self._calls = Calls()

    def push(self, event: ServerEvent) -> Iterator[bytes]:
        if event.data.strip() == _DONE:
            yield from self._close()
            return
        if event.name == "error":
            raise read_event_failure(event.data.decode(errors="replace"))
        chunk = read_completion(event.data)
        yield from self._begin(chunk)
        if chunk.usage:
            self._counts = chunk.usage.counts
        if choice := chunk.first:
            yield from self._grow(choice.said)
            self._ending = choice if choice.finish_reason else self._ending

    def finish(self) -> Iterator[bytes]:
        if self._ending is None:
            raise broke_off()
        yield from self._close()

    def fail(self, error: RemoteError) -> bytes:
        _, body = render_message_failure(error)
        return write_event("error", error=body["error"])

    def _begin(self, chunk: Completion) -> Iterator[bytes]:
        if self._stem:
            return
        self._stem = answer_id(chunk.id, "")
        frame = render_frame(f"msg_{self._stem}", chunk.model or self._model, self._counts)
        yield write_event("message_start", message=frame)
        yield write_event("ping")

    def _grow(self, said: Said) -> Iterator[bytes]:
        if said.thought:
            yield from self._open_block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta(type="thinking_delta", thinking=said.thought)
        if said.text:
            yield from self._open_block("text", {"type": "text", "text": ""})
            yield self._delta(type="text_delta", text=said.text)
        for piece in said.tool_calls or ():
            yield from self._grow_call(piece)

    def _grow_call(self, piece: CallPiece) -> Iterator[bytes]:
        function = piece.function or Function()
        if self._calls.is_new(piece, function):
            block = {"type": "tool_use", "id": call_id(piece, self._stem, self._calls.num), "name": function.name or ""}
            self._calls.begin(piece)
            yield from self._begin_block("tool_use", {**block, "input": {}})
        elif self._open != "tool_use":
            raise bad_answer("a call goes on after it ended")
        if function.text:
            yield self._delta(type="input_json_delta", partial_json=function.text)

    def _close(self) -> Iterator[bytes]:
        if not self._stem:
            raise broke_off()
        yield from self._end_block()
        stop = render_stop(self._ending or Choice(), has_calls=self._calls.num > 0)
        yield write_event("message_delta", delta=stop, usage=self._counts.render_message())
        yield write_event("message_stop")
        self.is_whole = True

    def _open_block(self, kind: BlockKind, block: Json) -> Iterator[bytes]:
        if self._open != kind:
            yield from self._begin_block(kind, block)

    def _begin_block(self, kind: BlockKind, block: Json) -> Iterator[bytes]:
        yield from self._end_block()
        yield write_event("content_block_start", index=self._num_blocks, content_block=block)
        self._open = kind
        self._num_blocks += 1

    def _end_block(self) -> Iterator[bytes]:
        if self._open:
            yield write_event("content_block_stop", index=self._num_blocks - 1)
        self._open = None

    def _delta(self, **delta: str) -> bytes:
        return write_event("content_block_delta", index=self._num_blocks - 1, delta=delta)
