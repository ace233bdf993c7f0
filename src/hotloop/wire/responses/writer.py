"""An answer as OpenAI's response, whole or as the events of a stream, numbered from 0.

response.created response.in_progress (output_item.added ... output_item.done)* response.completed
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hotloop.core.errors import RemoteError
from hotloop.core.stream import CallDelta, CallOpened, TextDelta
from hotloop.wire.arguments import answer_stem
from hotloop.wire.event import Begun, CallOrder, Ended, EndReason, Event, ThoughtClosed, ThoughtDelta
from hotloop.wire.field import Json
from hotloop.wire.part import Call, Opaque
from hotloop.wire.request import Tool
from hotloop.wire.responses.output import CallItem, ItemStatus, OutputItem, ReasoningItem, TextItem
from hotloop.wire.sse import write_event

_INCOMPLETE: dict[EndReason, str] = {
    "length": "max_output_tokens",
    "window": "max_output_tokens",
    "refusal": "content_filter",
}
_REPEATED = ("instructions", "max_output_tokens", "temperature", "top_p", "tools", "tool_choice", "metadata", "user")

_USUAL: Json = {"tools": [], "tool_choice": "auto", "metadata": {}, "temperature": 1.0, "top_p": 1.0}


class ResponsesWriter:
    """Told the events of one answer. `head` is what the object repeats of its request; `tools` tell what calls were.

    `head` may have the object's id; else it is made from the answer's.
    """

    def __init__(self, head: Json, tools: Iterable[Tool | Opaque] = ()) -> None:
        begun = {"id": "", "created_at": int(time.time()), **head}
        self._response: Json = {**begun, "status": "in_progress", "output": []}
        self._logprobs: list[Json] = []  # of text that has not been told yet
        self._has_begun = False
        self._tools = {tool.flat_name: tool for tool in tools if isinstance(tool, Tool)}
        self._order = CallOrder()
        self._stem = answer_stem(begun["id"]) if begun["id"] else ""
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._num_sent = 0

    def write(self, event: Event) -> Iterator[bytes]:
        yield from self.number(self.tell(event))

    def fail(self, error: RemoteError) -> bytes:
        """The object says why; what was put out until then is in it."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self._response |= {"status": "failed", "error": {"code": code, "message": str(error)}}
        begun = [] if self._has_begun else self._begin(Begun())
        return b"".join(self.number([*begun, self._tell("response.failed")]))

    def whole(self, events: Iterable[Event]) -> Json:
        for event in events:
            for _ in self.tell(event):
                pass
        return self._response

    def tell(self, event: Event) -> Iterator[Json]:
        """What a client hears of an event, not numbered yet."""
        for each in self._order.push(event):
            yield from self._take(each)

    def _take(self, event: Event) -> Iterator[Json]:
        match event:
            case Begun():
                yield from self._begin(event)
            case TextDelta():
                yield from self._write(event.text)
            case ThoughtDelta():
                yield from self._think(event.text)
            case ThoughtClosed():
                if not isinstance(self._open, ReasoningItem):
                    yield from self._begin_item(ReasoningItem(*self._next()))
                assert isinstance(self._open, ReasoningItem)
                self._open.thought = event.thought
                yield from self._end_item("completed")
            case CallOpened():
                tool = self._tools.get(event.name) or Tool(event.name)
                call = Call(event.id, tool.name, "", tool.namespace, tool.is_custom)
                self._logprobs.clear()  # a call has no place for them
                yield from self._begin_item(CallItem(*self._next(), call))
            case CallDelta():
                assert self._open
                yield from self._open.grow(event.arguments)
            case Ended():
                yield from self._end(event)
            case _:
                yield from self._end_item("completed")

    def _begin(self, begun: Begun) -> list[Json]:
        self._has_begun = True
        self._stem = self._stem or answer_stem(begun.id)
        self._response |= {"id": f"resp_{self._stem}", "model": begun.model or self._response["model"]}
        return [self._tell("response.created"), self._tell("response.in_progress")]

    def _end(self, ended: Ended) -> Iterator[Json]:
        reason = _INCOMPLETE.get(ended.reason)
        status: ItemStatus = "incomplete" if reason else "completed"
        yield from self._end_item(status) if reason else self._cut_item()
        self._response |= {
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": ended.usage.render_response(),
        }
        yield self._tell(f"response.{status}")

    def _write(self, text: str) -> Iterator[Json]:
        if not isinstance(self._open, TextItem):
            yield from self._begin_item(TextItem(*self._next()))
        assert isinstance(self._open, TextItem)
        logprobs, self._logprobs = self._logprobs, []
        yield from self._open.grow(text, logprobs)

    def _think(self, text: str) -> Iterator[Json]:
        if not isinstance(self._open, ReasoningItem):
            yield from self._begin_item(ReasoningItem(*self._next()))
        assert self._open
        yield from self._open.grow(text)

    def _next(self) -> tuple[str, int]:
        return f"{self._stem}_{len(self._items)}", len(self._items)

    def _begin_item(self, item: OutputItem) -> Iterator[Json]:
        yield from self._cut_item()
        self._items.append(item)
        self._open = item
        yield from item.open()

    def _end_item(self, status: ItemStatus) -> Iterator[Json]:
        item, self._open = self._open, None
        if item:
            yield from item.close(status)

    def _cut_item(self) -> Iterator[Json]:
        """Something else follows: a call that is still open was cut off."""
        yield from self._end_item("incomplete" if isinstance(self._open, CallItem) else "completed")

    def render(self) -> Json:
        """The object as it is now."""
        self._response["output"] = [item.render() for item in self._items]
        return dict(self._response)

    def _tell(self, kind: str) -> Json:
        return {"type": kind, "response": self.render()}

    def number(self, told: Iterable[Json]) -> Iterator[bytes]:
        for event in told:
            fields = {name: value for name, value in event.items() if name != "type"}
            yield write_event(event["type"], **fields, sequence_number=self._num_sent)
            self._num_sent += 1


def render_head(body: Mapping[str, Any]) -> Json:
    """What the object says about its request, as it was given."""
    given = {name: body[name] for name in _REPEATED if body.get(name) is not None}
    return {
        "object": "response",
        "model": body["model"],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        **_USUAL,
        **given,
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "store": False,
        "background": False,
    }
