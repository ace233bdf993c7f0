"""What a response puts out, item by item: reasoning, text and calls.

Each item says what a client hears when it opens, grows and closes, in OpenAI's order, and what it looks like as a
whole. The events have no sequence numbers yet.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec.structs import replace

from hotloop.core.message import Thought
from hotloop.wire.field import Json
from hotloop.wire.part import Call
from hotloop.wire.responses.render import render_call
from hotloop.wire.thoughts import seal_thought

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputItem(Protocol):
    """One item of the output. Opened once, then closed once."""

    def open(self) -> list[Json]: ...

    def grow(self, text: str) -> list[Json]: ...

    def close(self, status: ItemStatus) -> list[Json]: ...

    def render(self) -> Json: ...


class _Item:
    """What the items have in common: a place, a status and a text that grows."""

    def __init__(self, item_id: str, output_index: int) -> None:
        self.id = item_id
        self.status: ItemStatus = "in_progress"
        self.place: Json = {"output_index": output_index}
        self.where: Json = {"item_id": item_id, **self.place}
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, text: str) -> None:
        self._pieces.append(text)


class ReasoningItem:
    def __init__(self, stem: str, output_index: int) -> None:
        self.thought = Thought("")
        """What is known of it when it is whole, beside its text."""
        self._item = _Item(f"rs_{stem}", output_index)
        self._where = {**self._item.where, "content_index": 0}

    def open(self) -> list[Json]:
        return [{"type": "response.output_item.added", **self._item.place, "item": self.render()}]

    def grow(self, text: str) -> list[Json]:
        self._item.add(text)
        return [{"type": "response.reasoning_text.delta", **self._where, "delta": text}]

    def close(self, status: ItemStatus) -> list[Json]:
        self._item.status = status
        done = {"type": "response.reasoning_text.done", **self._where, "text": self._item.text}
        whole = {"type": "response.output_item.done", **self._item.place, "item": self.render()}
        return [done, whole] if self._item.text else [whole]

    def render(self) -> Json:
        content = [{"type": "reasoning_text", "text": self._item.text}] if self._item.text else []
        about: Json = {"id": self._item.id, "type": "reasoning", "summary": [], "content": content}
        return {**about, **seal_thought(self.thought), "status": self._item.status}


class TextItem:
    """A message of the assistant. It has one part."""

    def __init__(self, stem: str, output_index: int) -> None:
        self._item = _Item(f"msg_{stem}", output_index)
        self._where = {**self._item.where, "content_index": 0}
        self._logprobs: list[Json] = []
        self._has_part = False

    def open(self) -> list[Json]:
        added = {"type": "response.output_item.added", **self._item.place, "item": self.render()}
        self._has_part = True
        return [added, {"type": "response.content_part.added", **self._where, "part": self._render_part()}]

    def grow(self, text: str, logprobs: Sequence[Json] = ()) -> list[Json]:
        self._item.add(text)
        self._logprobs += logprobs
        brief = [_brief(logprob) for logprob in logprobs]
        return [{"type": "response.output_text.delta", **self._where, "delta": text, "logprobs": brief}]

    def close(self, status: ItemStatus) -> list[Json]:
        self._item.status = status
        done = {"text": self._item.text, "logprobs": [_brief(logprob) for logprob in self._logprobs]}
        return [
            {"type": "response.output_text.done", **self._where, **done},
            {"type": "response.content_part.done", **self._where, "part": self._render_part()},
            {"type": "response.output_item.done", **self._item.place, "item": self.render()},
        ]

    def render(self) -> Json:
        about = {"id": self._item.id, "type": "message", "status": self._item.status, "role": "assistant"}
        return {**about, "content": [self._render_part()] if self._has_part else []}

    def _render_part(self) -> Json:
        return {"type": "output_text", "text": self._item.text, "annotations": [], "logprobs": [*self._logprobs]}


def _brief(logprob: Json) -> Json:
    """As events have it: without the bytes."""
    tops = [{"token": top["token"], "logprob": top["logprob"]} for top in logprob["top_logprobs"]]
    return {"token": logprob["token"], "logprob": logprob["logprob"], "top_logprobs": tops}


class CallItem:
    """A call. A custom tool's text is inside JSON while it is written, so it is told when it is whole."""

    def __init__(self, stem: str, output_index: int, call: Call) -> None:
        self._item = _Item(f"{'ctc' if call.is_custom else 'fc'}_{stem}", output_index)
        self._call = call

    def open(self) -> list[Json]:
        return [{"type": "response.output_item.added", **self._item.place, "item": self.render()}]

    def grow(self, text: str) -> list[Json]:
        self._item.add(text)
        if self._call.is_custom:
            return []
        return [{"type": "response.function_call_arguments.delta", **self._item.where, "delta": text}]

    def close(self, status: ItemStatus) -> list[Json]:
        self._item.status = status
        if not self._item.text and status == "completed":
            self._item.add("{}")
        item = self.render()
        return [*self._tell(item), {"type": "response.output_item.done", **self._item.place, "item": item}]

    def render(self) -> Json:
        call = replace(self._call, arguments=self._item.text)
        return {"id": self._item.id, **render_call(call), "status": self._item.status}

    def _tell(self, item: Json) -> list[Json]:
        """That the arguments are whole."""
        where = self._item.where
        if not self._call.is_custom:
            done = {"name": item["name"], "arguments": item["arguments"]}
            return [{"type": "response.function_call_arguments.done", **where, **done}]
        return [
            {"type": "response.custom_tool_call_input.delta", **where, "delta": item["input"]},
            {"type": "response.custom_tool_call_input.done", **where, "input": item["input"]},
        ]
