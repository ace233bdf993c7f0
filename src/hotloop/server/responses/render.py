"""Renders a response: the object as it is at any moment, and the events of its stream."""

import time
from collections.abc import Callable, Iterable, Sequence

from hotloop.core.errors import HotloopError
from hotloop.core.request import FinishReason, Usage
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.delivery import Piece
from hotloop.server.errors import Cancelled, Disconnected, kind_of
from hotloop.server.explain.inquiry import NO_INQUIRY, CacheExplanation
from hotloop.server.explain.render import answer_usage, render_diagnosis
from hotloop.server.openai.render import render_logprobs
from hotloop.wire.builtin import find_openai
from hotloop.wire.event import Begun, Ended
from hotloop.wire.field import Json
from hotloop.wire.part import Opaque
from hotloop.wire.request import ApiRequest, ApiTool
from hotloop.wire.responses import writer as wire
from hotloop.wire.sse import COMMENT

_TOLD = ("function", "custom", "namespace")


class Composer(wire.ResponsesWriter):
    """One response while it is written. `on_end` is called before the last event of a stream is handed out: who hears
    of the end may ask for the response at once."""

    def __init__(
        self,
        head: Json,
        tokenizer: Tokenizer,
        inquiry: CacheExplanation = NO_INQUIRY,
        tools: Iterable[ApiTool | Opaque] = (),
        reasoning: wire.ThoughtShape = wire.AS_THEY_ARE,
    ) -> None:
        super().__init__({**head, "completed_at": None, "error": None, "incomplete_details": None}, tools, reasoning)
        self.id: str = head["id"]
        self.on_end: Callable[[], object] = lambda: None
        self._tokenizer = tokenizer
        self._inquiry = inquiry
        self._is_cut = False
        self._is_queued = False
        self._is_alive = False

    def queue(self) -> list[Json]:
        """It was asked for, and nobody has begun with it."""
        self._is_queued = True
        self._response["status"] = "queued"
        return [self._tell("response.created"), self._tell("response.queued")]

    def ping(self) -> bytes:
        """A comment at first, which says nothing yet; then events, since some clients take no comment for a sign."""
        if not self._is_alive:
            self._is_alive = True
            return COMMENT
        return b"".join(self.number(self.add(()) or [self._tell("response.in_progress")]))

    def send(self, pieces: Iterable[tuple[int, Piece]]) -> bytes:
        return b"".join(self.number(self.add(pieces)))

    def close(self, usages: Sequence[Usage]) -> bytes:
        return self._end_stream(self.finish(usages[0]))

    def break_off(self, error: HotloopError, request_id: str) -> bytes:
        return self._end_stream(self.add(()) + self.stop(error))

    def add(self, pieces: Iterable[tuple[int, Piece]]) -> list[Json]:
        events: list[Json] = [] if self._has_begun else self.tell(Begun())
        for _, piece in pieces:
            self._logprobs += render_logprobs(piece.logprobs, self._tokenizer)
            self._is_cut |= piece.finish_reason is FinishReason.LENGTH
            for part in piece.parts:
                events += self.tell(part)
        return events

    def finish(self, usage: Usage) -> list[Json]:
        events = [] if self._items else self._continue(wire.TextItem)[1]
        if diagnosis := self._inquiry.diagnose():
            self._response["prompt_cache_diagnostics"] = render_diagnosis(diagnosis)
        if not self._is_cut:
            self._response["completed_at"] = int(time.time())
        ended = Ended("length" if self._is_cut else "stop", None, answer_usage([usage], self._inquiry))
        return events + self.tell(ended)

    def stop(self, error: HotloopError) -> list[Json]:
        """It will not be finished. OpenAI has no event for one that was cancelled; its status tells it from others."""
        if isinstance(error, Cancelled | Disconnected):
            self._response["status"] = "cancelled"
        else:
            code = "rate_limit_exceeded" if kind_of(error).status == 429 else "server_error"
            self._response |= {"status": "failed", "error": {"code": code, "message": str(error)}}
        return [self._tell("response.failed")]

    def _begin(self, begun: Begun) -> list[Json]:
        self._response["status"] = "in_progress"
        events = super()._begin(begun)
        return events[1:] if self._is_queued else events

    def _end_stream(self, events: list[Json]) -> bytes:
        self.on_end()
        return b"".join(self.number(events))


def render_head(body: Json, request: ApiRequest, response_id: str, *, is_strict: bool) -> Json:
    """What the object says about its request. `truncation` is what was done, not what was asked for."""
    repeated = {name: body.get(name) for name in ("max_output_tokens", "prompt_cache_key", "safety_identifier")}
    tools = [_render_tool(tool, is_strict) for tool in body.get("tools") or () if _is_told(tool)]
    return {
        **wire.render_head(body),
        **repeated,
        "id": response_id,
        "background": bool(body.get("background")),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": {"effort": request.effort, "summary": request.own.get("reasoning.summary")},
        "service_tier": "flex" if request.service_tier == "flex" else "default",
        "store": body.get("store") is not False,
        "text": {"format": (body.get("text") or {}).get("format") or {"type": "text"}},
        "tools": tools,
        "top_logprobs": body.get("top_logprobs") or 0,
        "truncation": "disabled",
    }


def _is_told(tool: Json) -> bool:
    """Whether it is in the prompt."""
    return tool["type"] in _TOLD or find_openai(tool) is not None


def _render_tool(body: Json, is_strict: bool) -> Json:
    if body["type"] != "function":
        return body
    filled = {"description": None, "parameters": None, **body}
    return {**filled, "strict": is_strict if body.get("strict") is None else body["strict"]}
