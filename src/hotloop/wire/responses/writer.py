"""An answer as OpenAI's response, whole or as the events of a stream, numbered from 0.

response.created response.in_progress (output_item.added ... output_item.done)* response.completed
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from hotloop.core.errors import RemoteError
from hotloop.core.message import Thought
from hotloop.core.stream import CallDelta, CallOpened, TextDelta, ThoughtClosed, ThoughtDelta
from hotloop.wire.arguments import answer_stem
from hotloop.wire.builtin import CALL_ITEMS, find_call_item
from hotloop.wire.event import Begun, CallOrder, Ended, EndReason, Event
from hotloop.wire.field import Json
from hotloop.wire.part import Call, Opaque, carry_text, seal_thought
from hotloop.wire.request import ApiRequest, ApiTool
from hotloop.wire.responses.render import render_call
from hotloop.wire.sse import write_typed

ItemStatus = Literal["in_progress", "completed", "incomplete"]

_INCOMPLETE: dict[EndReason, str] = {
    "length": "max_output_tokens",
    "window": "max_output_tokens",
    "refusal": "content_filter",
}
NO_SUMMARY = "reasoning.summary: it is the reasoning itself, which nobody has made shorter"
_REPEATED = ("instructions", "max_output_tokens", "temperature", "top_p", "tools", "tool_choice", "metadata", "user")

_USUAL: Json = {"tools": [], "tool_choice": "auto", "metadata": {}, "temperature": 1.0, "top_p": 1.0}


class OutputItem(ABC):
    """One item of the output, opened once, then closed once: what a client hears of it, in OpenAI's order."""

    prefix: str
    kind: str
    """What its deltas are of."""
    index = ""
    """What its parts are numbered by, if it has parts. It has one at most."""

    def __init__(self, stem: str, output_index: int) -> None:
        self.id = f"{self.prefix}_{stem}"
        self.status: ItemStatus = "in_progress"
        self._place: Json = {"output_index": output_index}
        self._where: Json = {"item_id": self.id, **self._place, **({self.index: 0} if self.index else {})}
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def open(self) -> list[Json]:
        return [{"type": "response.output_item.added", **self._place, "item": self.render()}]

    def grow(self, text: str) -> list[Json]:
        self._pieces.append(text)
        return [{"type": f"response.{self.kind}.delta", **self._where, "delta": text}]

    def close(self, status: ItemStatus) -> list[Json]:
        self.status = status
        return [*self._tell_end(), {"type": "response.output_item.done", **self._place, "item": self.render()}]

    @abstractmethod
    def render(self) -> Json: ...

    @abstractmethod
    def _tell_end(self) -> list[Json]: ...


class ReasoningItem(OutputItem):
    """A thought. Its part is opened with its first words: one that is sealed has none."""

    prefix, kind = "rs", "reasoning_text"
    part, part_kind, index = "content_part", "reasoning_text", "content_index"
    thought = Thought("")

    def grow(self, text: str) -> list[Json]:
        is_new = not self._pieces
        added = {"type": f"response.{self.part}.added", **self._where, "part": self._render_part("")}
        return [*([added] if is_new else []), *super().grow(text)]

    def render(self) -> Json:
        about: Json = {"id": self.id, "type": "reasoning", **self._render_parts()}
        return {**about, **seal_thought(self.thought), "status": self.status}

    def _render_parts(self) -> Json:
        return {"summary": [], "content": [self._render_part(self.text)] if self._pieces else []}

    def _render_part(self, text: str) -> Json:
        return {"type": self.part_kind, "text": text}

    def _tell_end(self) -> list[Json]:
        if not self._pieces:
            return []
        done = {"type": f"response.{self.part}.done", **self._where, "part": self._render_part(self.text)}
        return [{"type": f"response.{self.kind}.done", **self._where, "text": self.text}, done]


class SummaryItem(ReasoningItem):
    """A thought for who asked for a summary: the whole of it, in the summary's place."""

    kind, part, part_kind = "reasoning_summary_text", "reasoning_summary_part", "summary_text"
    index = "summary_index"

    def _render_parts(self) -> Json:
        return {"summary": [self._render_part(self.text)] if self._pieces else []}


class TextItem(OutputItem):
    """A message of the assistant. It has one part, from when it was opened."""

    prefix, kind, index = "msg", "output_text", "content_index"

    def __init__(self, stem: str, output_index: int) -> None:
        super().__init__(stem, output_index)
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

    def _tell_end(self) -> list[Json]:
        done = {"text": self.text, "logprobs": [_brief(logprob) for logprob in self._logprobs]}
        return [
            {"type": "response.output_text.done", **self._where, **done},
            {"type": "response.content_part.done", **self._where, "part": self._render_part()},
        ]

    def _render_part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": [*self._logprobs]}


def _brief(logprob: Json) -> Json:
    tops = [{"token": top["token"], "logprob": top["logprob"]} for top in logprob["top_logprobs"]]
    return {"token": logprob["token"], "logprob": logprob["logprob"], "top_logprobs": tops}


class CallItem(OutputItem):
    """A call. What a custom tool takes is inside JSON while it is written, so it is told when it is whole."""

    kind = "function_call_arguments"

    def __init__(self, stem: str, output_index: int, call: Call) -> None:
        self.prefix = CALL_ITEMS[call.item].id_prefix if call.item else "ctc" if call.is_custom else "fc"
        super().__init__(stem, output_index)
        self._call = call

    def grow(self, text: str) -> list[Json]:
        events = super().grow(text)
        return [] if self._call.is_custom else events

    def close(self, status: ItemStatus) -> list[Json]:
        if not self._pieces and status == "completed":
            self._pieces.append("{}")
        return super().close(status)

    def render(self) -> Json:
        return {"id": self.id, **render_call(replace(self._call, arguments=self.text)), "status": self.status}

    def _tell_end(self) -> list[Json]:
        item, where = self.render(), self._where
        if not self._call.is_custom:
            done = {"name": item["name"], "arguments": item["arguments"]}
            return [{"type": "response.function_call_arguments.done", **where, **done}]
        return [
            {"type": "response.custom_tool_call_input.delta", **where, "delta": item["input"]},
            {"type": "response.custom_tool_call_input.done", **where, "input": item["input"]},
        ]


class BuiltinItem(CallItem):
    """A call of a built-in tool. Its item has no place for half a call, so all of it is told when it is whole."""

    def open(self) -> list[Json]:
        return []

    def grow(self, text: str) -> list[Json]:
        self._pieces.append(text)
        return []

    def close(self, status: ItemStatus) -> list[Json]:
        return [*OutputItem.open(self), *super().close(status)]

    def render(self) -> Json:
        rendered = super().render()
        is_cut = self._call.item == "apply_patch_call" and self.status == "incomplete"  # there is no word for that
        return {**rendered, "status": "in_progress"} if is_cut else rendered

    def _tell_end(self) -> list[Json]:
        commands = self.render()["action"]["commands"] if self._call.item == "shell_call" else ()
        return [event for i, command in enumerate(commands) for event in self._tell_command(i, command)]

    def _tell_command(self, index: int, command: str) -> Iterator[Json]:
        for kind, said in ("added", {"command": ""}), ("delta", {"delta": command}), ("done", {"command": command}):
            yield {"type": f"response.shell_call_command.{kind}", **self._place, "command_index": index, **said}


ItemType = TypeVar("ItemType", TextItem, ReasoningItem)


@dataclass(frozen=True, slots=True)
class ThoughtShape:
    """How thoughts are told: in the place of a summary, and with what brings them back where only that is returned."""

    has_summary: bool = False
    is_sealed: bool = False

    @classmethod
    def asked_for(cls, request: ApiRequest) -> "ThoughtShape":
        """A thought comes back whole from whoever keeps what was put out: of one that shows as a summary, or is not
        stored, some clients keep nothing else."""
        include, has_summary = request.own.get("include"), bool(request.own.get("reasoning.summary"))
        is_asked = isinstance(include, list) and "reasoning.encrypted_content" in include
        return cls(has_summary, is_asked or has_summary or request.own.get("store") is False)

    def seal(self, thought: Thought) -> Thought:
        return carry_text(thought) if self.is_sealed else thought


AS_THEY_ARE = ThoughtShape()


class ResponsesWriter:
    """Told the events of one answer. `head` is what the object repeats of its request, and may have the object's id;
    `tools` tell what calls were, `thoughts` how they are told."""

    def __init__(
        self, head: Json, tools: Iterable[ApiTool | Opaque] = (), thoughts: ThoughtShape = AS_THEY_ARE
    ) -> None:
        begun = {"id": "", "created_at": int(time.time()), **head}
        self._response: Json = {**begun, "status": "in_progress", "output": []}
        self._logprobs: list[Json] = []  # of text that has not been told yet
        self._has_begun = False
        self._tools = {tool.flat_name: tool for tool in tools if isinstance(tool, ApiTool)}
        self._thoughts = thoughts
        self._thought_item = SummaryItem if thoughts.has_summary else ReasoningItem
        self._order = CallOrder()
        self._stem = answer_stem(begun["id"]) if begun["id"] else ""
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._num_sent = 0

    def write(self, event: Event) -> Iterator[bytes]:
        return self.number(self.tell(event))

    def fail(self, error: RemoteError) -> bytes:
        """The object says why; what was put out until then is in it."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self._response |= {"status": "failed", "error": {"code": code, "message": str(error)}}
        begun = [] if self._has_begun else self._begin(Begun())
        return b"".join(self.number([*begun, self._tell("response.failed")]))

    def note(self, facts: Json) -> bytes:
        """That it goes on; who knows the field `hotloop` is told how."""
        return b"".join(self.number([{**self._tell("response.in_progress"), "hotloop": facts}]))

    def whole(self, events: Iterable[Event]) -> Json:
        for event in events:
            self.tell(event)
        return self._response

    def tell(self, event: Event) -> list[Json]:
        """What a client hears of an event, not numbered yet."""
        if isinstance(event, TextDelta) and isinstance(self._open, TextItem):  # most of an answer is this
            return self._take(event)
        return [rendered for each in self._order.push(event) for rendered in self._take(each)]

    def render(self) -> Json:
        self._response["output"] = [item.render() for item in self._items]
        return dict(self._response)

    def number(self, events: Iterable[Json]) -> Iterator[bytes]:
        for event in events:
            event["sequence_number"] = self._num_sent
            yield write_typed(event)
            self._num_sent += 1

    def _take(self, event: Event) -> list[Json]:
        match event:
            case Begun():
                return self._begin(event)
            case TextDelta():
                item, opened = self._continue(TextItem)
                logprobs, self._logprobs = self._logprobs, []
                return opened + item.grow(event.text, logprobs)
            case ThoughtDelta():
                thought, opened = self._continue(self._thought_item)
                return opened + thought.grow(event.text)
            case ThoughtClosed():
                thought, opened = self._continue(self._thought_item)
                thought.thought = self._thoughts.seal(event.thought)
                return opened + self._end_item("completed")
            case CallOpened():
                tool = self._tools.get(event.name) or ApiTool(event.name)
                self._logprobs.clear()  # a call has no place for them
                item_kind = find_call_item(tool.builtin) if tool.builtin else ""
                call = Call(event.id, tool.name, "", tool.namespace, tool.is_custom, item_kind)
                return self._begin_item((BuiltinItem if item_kind else CallItem)(*self._next(), call))
            case CallDelta():
                assert self._open
                return self._open.grow(event.arguments)
            case Ended():
                return self._end(event)
        return self._end_item("completed")

    def _begin(self, begun: Begun) -> list[Json]:
        self._has_begun = True
        self._stem = self._stem or answer_stem(begun.id)
        self._response |= {"id": f"resp_{self._stem}", "model": begun.model or self._response["model"]}
        return [self._tell("response.created"), self._tell("response.in_progress")]

    def _end(self, ended: Ended) -> list[Json]:
        reason = _INCOMPLETE.get(ended.reason)
        status: ItemStatus = "incomplete" if reason else "completed"
        events = self._end_item(status) if reason else self._cut_item()
        self._response |= {
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": ended.usage.render_response(),
        }
        return [*events, self._tell(f"response.{status}")]

    def _continue(self, kind: type[ItemType]) -> tuple[ItemType, list[Json]]:
        """The open item, if it is of this kind; else a new one, and what tells of it."""
        if isinstance(self._open, kind):
            return self._open, []
        item = kind(*self._next())
        return item, self._begin_item(item)

    def _next(self) -> tuple[str, int]:
        return f"{self._stem}_{len(self._items)}", len(self._items)

    def _begin_item(self, item: OutputItem) -> list[Json]:
        events = self._cut_item()
        self._items.append(item)
        self._open = item
        return events + item.open()

    def _end_item(self, status: ItemStatus) -> list[Json]:
        item, self._open = self._open, None
        return item.close(status) if item else []

    def _cut_item(self) -> list[Json]:
        """Something else follows: a call that is still open was cut off."""
        return self._end_item("incomplete" if isinstance(self._open, CallItem) else "completed")

    def _tell(self, kind: str) -> Json:
        return {"type": kind, "response": self.render()}


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
