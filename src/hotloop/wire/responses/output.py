"""What a response puts out, item by item: reasoning, text and calls.

Each item says what a client hears when it opens, grows and closes, in OpenAI's order, and what it looks like as a
whole. The events have no sequence numbers yet.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from hotloop.core.message import Thought
from hotloop.wire.field import Json
from hotloop.wire.part import Call
from hotloop.wire.responses.render import render_call
from hotloop.wire.thoughts import seal_thought

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputItem(ABC):
    """One item of the output. Opened once, then closed once."""

    prefix: str

    def __init__(self, stem: str, output_index: int) -> None:
        self.id = f"{self.prefix}_{stem}"
        self.status: ItemStatus = "in_progress"
        self._place: Json = {"output_index": output_index}
        self._where: Json = {"item_id": self.id, **self._place}
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def open(self) -> list[Json]:
        return [{"type": "response.output_item.added", **self._place, "item": self.render()}]

    def grow(self, text: str) -> list[Json]:
        self._pieces.append(text)
        return self._tell_more(text)

    def close(self, status: ItemStatus) -> list[Json]:
        self.status = status
        return [*self._tell_end(), {"type": "response.output_item.done", **self._place, "item": self.render()}]

    @abstractmethod
    def render(self) -> Json: ...

    @abstractmethod
    def _tell_more(self, text: str) -> list[Json]: ...

    @abstractmethod
    def _tell_end(self) -> list[Json]:
        """That its content is whole."""


class ReasoningItem(OutputItem):
    prefix = "rs"
    thought = Thought("")
    """What is known of it when it is whole, beside its text."""

    def render(self) -> Json:
        content = [{"type": "reasoning_text", "text": self.text}] if self._pieces else []
        about: Json = {"id": self.id, "type": "reasoning", "summary": [], "content": content}
        return {**about, **seal_thought(self.thought), "status": self.status}

    def _tell_more(self, text: str) -> list[Json]:
        return [{"type": "response.reasoning_text.delta", **self._where, "content_index": 0, "delta": text}]

    def _tell_end(self) -> list[Json]:
        done = {"type": "response.reasoning_text.done", **self._where, "content_index": 0, "text": self.text}
        return [done] if self._pieces else []


class TextItem(OutputItem):
    """A message of the assistant. It has one part, from when it was opened."""

    prefix = "msg"

    def __init__(self, stem: str, output_index: int) -> None:
        super().__init__(stem, output_index)
        self._where["content_index"] = 0
        self._logprobs: list[Json] = []
        self._has_part = False

    def open(self) -> list[Json]:
        added = super().open()
        self._has_part = True
        return [*added, {"type": "response.content_part.added", **self._where, "part": self._render_part()}]

    def grow(self, text: str, logprobs: Sequence[Json] = ()) -> list[Json]:
        self._logprobs += logprobs
        [delta] = super().grow(text)
        return [{**delta, "logprobs": [_brief(logprob) for logprob in logprobs]}]

    def render(self) -> Json:
        about = {"id": self.id, "type": "message", "status": self.status, "role": "assistant"}
        return {**about, "content": [self._render_part()] if self._has_part else []}

    def _tell_more(self, text: str) -> list[Json]:
        return [{"type": "response.output_text.delta", **self._where, "delta": text}]

    def _tell_end(self) -> list[Json]:
        done = {"text": self.text, "logprobs": [_brief(logprob) for logprob in self._logprobs]}
        return [
            {"type": "response.output_text.done", **self._where, **done},
            {"type": "response.content_part.done", **self._where, "part": self._render_part()},
        ]

    def _render_part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": [*self._logprobs]}


def _brief(logprob: Json) -> Json:
    """As events have it: without the bytes."""
    tops = [{"token": top["token"], "logprob": top["logprob"]} for top in logprob["top_logprobs"]]
    return {"token": logprob["token"], "logprob": logprob["logprob"], "top_logprobs": tops}


class CallItem(OutputItem):
    """A call. A custom tool's text is inside JSON while it is written, so it is told when it is whole."""

    def __init__(self, stem: str, output_index: int, call: Call) -> None:
        self.prefix = "ctc" if call.is_custom else "fc"
        super().__init__(stem, output_index)
        self._call = call

    def close(self, status: ItemStatus) -> list[Json]:
        if not self._pieces and status == "completed":
            self._pieces.append("{}")
        return super().close(status)

    def render(self) -> Json:
        return {"id": self.id, **render_call(replace(self._call, arguments=self.text)), "status": self.status}

    def _tell_more(self, text: str) -> list[Json]:
        delta = {"type": "response.function_call_arguments.delta", **self._where, "delta": text}
        return [] if self._call.is_custom else [delta]

    def _tell_end(self) -> list[Json]:
        item, where = self.render(), self._where
        if not self._call.is_custom:
            done = {"name": item["name"], "arguments": item["arguments"]}
            return [{"type": "response.function_call_arguments.done", **where, **done}]
        return [
            {"type": "response.custom_tool_call_input.delta", **where, "delta": item["input"]},
            {"type": "response.custom_tool_call_input.done", **where, "input": item["input"]},
        ]
