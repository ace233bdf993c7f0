"""What a response puts out, item by item, while it is written: the assistant's text, and calls.

Each item says what a client hears when it opens, grows and closes, in OpenAI's order, and what it looks like as a
whole. The events have no sequence numbers yet.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol

from hotloop.core.stream import CallOpened
from hotloop.server.openai.render import Json
from hotloop.server.responses.items import Called, render_call
from hotloop.server.responses.tools import Offer

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputItem(Protocol):
    """One item of the output. Opened once, then closed once."""

    def open(self) -> list[Json]: ...

    def grow(self, text: str) -> list[Json]: ...

    def close(self, status: ItemStatus) -> list[Json]: ...

    def render(self) -> Json: ...


class TextItem:
    """A message of the assistant. It has one part."""

    def __init__(self, output_index: int) -> None:
        self._id = f"msg_{secrets.token_hex(12)}"
        self._place = {"output_index": output_index}
        self._where = {"item_id": self._id, **self._place, "content_index": 0}
        self._status: ItemStatus = "in_progress"
        self._texts: list[str] = []
        self._logprobs: list[Json] = []
        self._has_part = False

    def open(self) -> list[Json]:
        added = {"type": "response.output_item.added", **self._place, "item": self.render()}
        self._has_part = True
        return [added, {"type": "response.content_part.added", **self._where, "part": self._render_part()}]

    def grow(self, text: str, logprobs: Sequence[Json] = ()) -> list[Json]:
        self._texts.append(text)
        self._logprobs += logprobs
        delta = {"delta": text, "logprobs": [_brief(logprob) for logprob in logprobs]}
        return [{"type": "response.output_text.delta", **self._where, **delta}]

    def close(self, status: ItemStatus) -> list[Json]:
        self._status = status
        part = self._render_part()
        done = {"text": part["text"], "logprobs": [_brief(logprob) for logprob in self._logprobs]}
        return [
            {"type": "response.output_text.done", **self._where, **done},
            {"type": "response.content_part.done", **self._where, "part": part},
            {"type": "response.output_item.done", **self._place, "item": self.render()},
        ]

    def render(self) -> Json:
        content = [self._render_part()] if self._has_part else []
        return {"id": self._id, "type": "message", "status": self._status, "role": "assistant", "content": content}

    def _render_part(self) -> Json:
        return {"type": "output_text", "text": "".join(self._texts), "annotations": [], "logprobs": [*self._logprobs]}


class FunctionItem:
    """A call to a function."""

    prefix = "fc"

    def __init__(self, output_index: int, opened: CallOpened, offer: Offer) -> None:
        self._id = f"{self.prefix}_{secrets.token_hex(12)}"
        self._place = {"output_index": output_index}
        self._where = {"item_id": self._id, **self._place}
        self._status: ItemStatus = "in_progress"
        self._call = Called(opened.id, offer.name, "", offer.namespace, offer.is_custom)
        self._arguments: list[str] = []

    def open(self) -> list[Json]:
        return [{"type": "response.output_item.added", **self._place, "item": self.render()}]

    def grow(self, text: str) -> list[Json]:
        self._arguments.append(text)
        return [{"type": "response.function_call_arguments.delta", **self._where, "delta": text}]

    def close(self, status: ItemStatus) -> list[Json]:
        self._status = status
        item = self.render()
        return [*self._tell(item), {"type": "response.output_item.done", **self._place, "item": item}]

    def render(self) -> Json:
        call = replace(self._call, arguments="".join(self._arguments))
        return {"id": self._id, **render_call(call), "status": self._status}

    def _tell(self, item: Json) -> list[Json]:
        """That the arguments are whole."""
        done = {"name": item["name"], "arguments": item["arguments"]}
        return [{"type": "response.function_call_arguments.done", **self._where, **done}]


class CustomItem(FunctionItem):
    """A call to a custom tool. Its text is inside JSON while the model writes it, so it is told when it is whole."""

    prefix = "ctc"

    def grow(self, text: str) -> list[Json]:
        super().grow(text)
        return []

    def _tell(self, item: Json) -> list[Json]:
        return [
            {"type": "response.custom_tool_call_input.delta", **self._where, "delta": item["input"]},
            {"type": "response.custom_tool_call_input.done", **self._where, "input": item["input"]},
        ]


def _brief(logprob: Json) -> Json:
    """As events have it: without the bytes."""
    tops = [{"token": top["token"], "logprob": top["logprob"]} for top in logprob["top_logprobs"]]
    return {"token": logprob["token"], "logprob": logprob["logprob"], "top_logprobs": tops}
