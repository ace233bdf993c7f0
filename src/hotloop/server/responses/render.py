"""A response on its way out: the object as it is at any moment, and the events that tell how it came about.

`Composer` is told what the engine gave and how it ended. It ends once, and knows neither a socket nor the store.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from hotloop.chat.stream import CallParser
from hotloop.core.errors import HotloopError
from hotloop.core.request import FinishReason, TokenEvent, TokenLogprob, Usage
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, StreamEvent, TextDelta
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.errors import Cancelled, Disconnected, kind_of
from hotloop.server.explain.inquiry import NOTHING_ASKED, Inquiry
from hotloop.server.openai.render import Json, clamp, render_diagnosis, render_work
from hotloop.server.responses.output import CustomItem, FunctionItem, OutputItem, TextItem
from hotloop.server.responses.tools import Toolbox
from hotloop.server.responses.wire import ResponsesBody

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

_encode = msgspec.json.Encoder().encode


class Composer:
    """One response while it is written. `head` is what the object repeats of its request.

    Every method that changes something returns the events which tell of it.
    """

    def __init__(
        self,
        head: Json,
        parser: CallParser,
        toolbox: Toolbox,
        tokenizer: Tokenizer,
        inquiry: Inquiry = NOTHING_ASKED,
    ) -> None:
        self.status: Status = "in_progress"
        self._head = head
        self._parser = parser
        self._toolbox = toolbox
        self._tokenizer = tokenizer
        self._inquiry = inquiry
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._logprobs: list[Json] = []
        self._is_cut = False
        self._tail: Json = {"completed_at": None, "error": None, "incomplete_details": None}

    @property
    def id(self) -> str:
        return str(self._head["id"])

    def begin(self) -> list[Json]:
        return [self._tell("response.created"), self._tell("response.in_progress")]

    def add(self, event: TokenEvent) -> list[Json]:
        """What one step gave."""
        self._logprobs += [self._render_logprob(logprob) for logprob in event.logprobs]
        news = self._parser.push(event.text)
        if event.finish_reason:
            news += self._parser.finish()
            self._is_cut = event.finish_reason is FinishReason.LENGTH
        return [told for one in news for told in self._take(one)]

    def finish(self, usage: Usage) -> list[Json]:
        """The model has ended its answer, or was cut off."""
        told = [] if self._items else self._begin_item(TextItem(0))
        is_whole = isinstance(self._open, TextItem) and not self._is_cut  # a call that is still open was cut off
        told += self._close_item("completed" if is_whole else "incomplete")
        self.status = "incomplete" if self._is_cut else "completed"
        self._tail["usage"] = render_response_usage(usage, self._inquiry)
        if diagnosis := self._inquiry.diagnose():
            self._tail["prompt_cache_diagnostics"] = render_diagnosis(diagnosis)
        if self._is_cut:
            self._tail["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self._tail["completed_at"] = int(time.time())
        return [*told, self._tell(f"response.{self.status}")]

    def fail(self, error: HotloopError) -> list[Json]:
        """It will not be finished. OpenAI has no event for one that was cancelled; its status tells it from others."""
        if isinstance(error, Cancelled | Disconnected):
            self.status = "cancelled"
        else:
            self.status = "failed"
            code = "rate_limit_exceeded" if kind_of(error).status == 429 else "server_error"
            self._tail["error"] = {"code": code, "message": str(error)}
        return [self._tell("response.failed")]

    def render(self) -> Json:
        output = [item.render() for item in self._items]
        return {**self._head, "status": self.status, "output": output, **self._tail}

    def _tell(self, kind: str) -> Json:
        return {"type": kind, "response": self.render()}

    def _take(self, news: StreamEvent) -> list[Json]:
        match news:
            case TextDelta():
                return self._write(news.text)
            case CallOpened():
                return [*self._close_item("completed"), *self._begin_item(self._new_call(news))]
            case CallDelta():
                assert self._open
                return self._open.grow(news.arguments)
            case CallClosed():
                return self._close_item("completed")

    def _write(self, text: str) -> list[Json]:
        """The log probabilities of what was held back until now go with the text."""
        told: list[Json] = []
        if not isinstance(self._open, TextItem):
            told = [*self._close_item("incomplete"), *self._begin_item(TextItem(len(self._items)))]
        assert isinstance(self._open, TextItem)
        logprobs, self._logprobs = self._logprobs, []
        return told + self._open.grow(text, logprobs)

    def _new_call(self, opened: CallOpened) -> OutputItem:
        """A call has no place for log probabilities."""
        self._logprobs.clear()
        offer = self._toolbox.find(opened.name)
        item = CustomItem if offer.is_custom else FunctionItem
        return item(len(self._items), opened, offer)

    def _begin_item(self, item: OutputItem) -> list[Json]:
        self._items.append(item)
        self._open = item
        return item.open()

    def _close_item(self, status: Literal["completed", "incomplete"]) -> list[Json]:
        item, self._open = self._open, None
        return item.close(status) if item else []

    def _render_logprob(self, logprob: TokenLogprob) -> Json:
        tops = [self._render_token(*top) for top in logprob.top]
        return {**self._render_token(logprob.token_id, logprob.logprob), "top_logprobs": tops}

    def _render_token(self, token_id: int, logprob: float) -> Json:
        token_bytes = [*self._tokenizer.token_bytes(token_id)]
        return {"token": self._tokenizer.token_text(token_id), "logprob": clamp(logprob), "bytes": token_bytes}


class ResponseWriter:
    """Turns what the composer tells into server-sent events, numbered from 0.

    `on_end` is called before the last of them is handed out: who hears of the end may ask for the response at once.
    """

    def __init__(self, composer: Composer, on_end: Callable[[], object]) -> None:
        self._composer = composer
        self._on_end = on_end
        self._num_sent = 0

    def write(self, events: Sequence[tuple[int, TokenEvent]]) -> bytes:
        begun = [] if self._num_sent else self._composer.begin()
        return self._send([*begun, *(told for _, event in events for told in self._composer.add(event))])

    def close(self, usages: Sequence[Usage]) -> bytes:
        return self._end(self._composer.finish(usages[0]))

    def fail(self, error: HotloopError, request_id: str) -> bytes:
        return self._end(self._composer.fail(error))

    def _end(self, told: Iterable[Json]) -> bytes:
        self._on_end()
        return self._send(told)

    def _send(self, told: Iterable[Json]) -> bytes:
        return b"".join(map(self._number, told))

    def _number(self, event: Json) -> bytes:
        kind: str = event["type"]
        data = _encode({**event, "sequence_number": self._num_sent})
        self._num_sent += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def render_head(body: ResponsesBody, toolbox: Toolbox, response_id: str, model: str) -> Json:
    """What the object says about its request. `truncation` is what was done, not what was asked for."""
    named = {} if body.user is None else {"user": body.user}
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "flex" if body.service_tier == "flex" else "default",
        "store": body.is_stored,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": _render_format(body)},
        "tool_choice": "auto" if body.tool_choice is None else msgspec.to_builtins(body.tool_choice),
        "tools": toolbox.bodies,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        **named,
    }


def render_response_usage(usage: Usage, inquiry: Inquiry) -> Json:
    """As for completions, in this API's words. What was read and not found cached is cached now."""
    num_cached = usage.num_cached
    return {
        "input_tokens": usage.num_prompt,
        "input_tokens_details": {"cached_tokens": num_cached, "cache_write_tokens": usage.num_prompt - num_cached},
        "output_tokens": usage.num_output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.num_prompt + usage.num_output,
        "hotloop": render_work([usage], inquiry),
    }


def _render_format(body: ResponsesBody) -> Json:
    form = body.text.format if body.text else None
    rendered: Json = {"type": "text"} if form is None else msgspec.to_builtins(form)
    return rendered
