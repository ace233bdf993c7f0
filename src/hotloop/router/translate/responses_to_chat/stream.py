"""The chunks of a chat completion as the events of a response, numbered from 0. A whole answer is one large chunk.

response.created response.in_progress (output_item.added ... output_item.done)* response.completed
"""

import time
from collections.abc import Iterable, Iterator

from hotloop.border.sse import ServerEvent, write_event
from hotloop.core.errors import RemoteError
from hotloop.router.translate.call_pieces import Calls
from hotloop.router.translate.calls import answer_id
from hotloop.router.translate.chat_shapes import CallPiece, Choice, Completion, Function, Said, read_completion
from hotloop.router.translate.failures import bad_answer, read_event_failure
from hotloop.router.translate.field import Json
from hotloop.router.translate.responses_to_chat.output import CallItem, ItemStatus, OutputItem, ReasoningItem, TextItem
from hotloop.router.translate.responses_to_chat.tools import Toolbox
from hotloop.router.translate.stream import broke_off
from hotloop.router.translate.usage import Counts

_DONE = b"[DONE]"
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseComposer:
    """Told the chunks of one answer. `head` is what the object repeats of its request."""

    def __init__(self, head: Json, toolbox: Toolbox) -> None:
        self.is_whole = False
        self.response: Json = {**head, "id": "", "created_at": int(time.time()), "status": "in_progress", "output": []}
        self._toolbox = toolbox
        self._stem = ""
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._calls = Calls()
        self._counts = Counts()
        self._ending: Choice | None = None
        self._num_sent = 0

    def push(self, event: ServerEvent) -> Iterator[bytes]:
        if event.data.strip() == _DONE:
            yield from self._number(self.close())
            return
        if event.name == "error":
            raise read_event_failure(event.data.decode(errors="replace"))
        yield from self._number(self.take(read_completion(event.data)))

    def finish(self) -> Iterator[bytes]:
        if self._ending is None:
            raise broke_off()
        yield from self._number(self.close())

    def fail(self, error: RemoteError) -> bytes:
        """The object says why; what was put out until then is in it."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self.response |= {"status": "failed", "error": {"code": code, "message": str(error)}}
        begun = [] if self._stem else self._begin(Completion())
        return b"".join(self._number([*begun, self._tell("response.failed")]))

    def take(self, chunk: Completion) -> Iterator[Json]:
        """What a chunk adds."""
        if not self._stem:
            yield from self._begin(chunk)
        if chunk.usage:
            self._counts = chunk.usage.counts
        if choice := chunk.first:
            yield from self._grow(choice.said)
            self._ending = choice if choice.finish_reason else self._ending

    def close(self) -> Iterator[Json]:
        """The last words."""
        if not self._stem:
            raise broke_off()
        reason = _INCOMPLETE.get((self._ending.finish_reason if self._ending else None) or "")
        yield from self._end_item("incomplete" if reason else "completed")
        status = "incomplete" if reason else "completed"
        self.response |= {
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": self._counts.render_response(),
        }
        yield self._tell(f"response.{status}")
        self.is_whole = True

    def _begin(self, chunk: Completion) -> list[Json]:
        self._stem = answer_id(chunk.id, "")
        self.response |= {"id": f"resp_{self._stem}", "model": chunk.model or self.response["model"]}
        return [self._tell("response.created"), self._tell("response.in_progress")]

    def _grow(self, said: Said) -> Iterator[Json]:
        if said.thought:
            yield from self._open_item(ReasoningItem)
            yield from self._write(said.thought)
        if said.text:
            yield from self._open_item(TextItem)
            yield from self._write(said.text)
        for piece in said.tool_calls or ():
            yield from self._grow_call(piece)

    def _grow_call(self, piece: CallPiece) -> Iterator[Json]:
        function = piece.function or Function()
        if self._calls.is_new(piece, function):
            call_id = piece.id or f"call_{self._stem}_{self._calls.num}"
            self._calls.begin(piece)
            offer = self._toolbox.find(function.name or "")
            yield from self._begin_item(CallItem(*self._next(), call_id, offer))
        elif not isinstance(self._open, CallItem):
            raise bad_answer("a call goes on after it ended")
        if function.text:
            yield from self._write(function.text)

    def _write(self, text: str) -> list[Json]:
        assert self._open
        return self._open.grow(text)

    def _open_item(self, kind: type[ReasoningItem] | type[TextItem]) -> Iterator[Json]:
        if not isinstance(self._open, kind):
            yield from self._begin_item(kind(*self._next()))

    def _next(self) -> tuple[str, int]:
        return f"{self._stem}_{len(self._items)}", len(self._items)

    def _begin_item(self, item: OutputItem) -> Iterator[Json]:
        yield from self._end_item("completed")
        self._items.append(item)
        self._open = item
        yield from item.open()

    def _end_item(self, status: ItemStatus) -> Iterator[Json]:
        item, self._open = self._open, None
        if item:
            yield from item.close(status)

    def _tell(self, kind: str) -> Json:
        self.response["output"] = [item.render() for item in self._items]
        return {"type": kind, "response": dict(self.response)}

    def _number(self, told: Iterable[Json]) -> Iterator[bytes]:
        for event in told:
            fields = {name: value for name, value in event.items() if name != "type"}
            yield write_event(event["type"], **fields, sequence_number=self._num_sent)
            self._num_sent += 1
