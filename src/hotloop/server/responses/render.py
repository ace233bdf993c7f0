"""A response on its way out: the object as it is at any moment, and the events that tell how it came about.

`Composer` is told what the engine gave and how it ended. It ends once, and knows neither a socket nor the store.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from hotloop.core.errors import HotloopError
from hotloop.core.request import FinishReason, TokenLogprob, Usage
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.delivery import Piece
from hotloop.server.errors import Cancelled, Disconnected, kind_of
from hotloop.server.explain.inquiry import NOTHING_ASKED, Inquiry
from hotloop.server.openai.render import Json, clamp, render_diagnosis, render_work
from hotloop.server.responses.tools import Toolbox
from hotloop.server.responses.wire import ResponsesBody
from hotloop.wire import usage as wire
from hotloop.wire.event import Begun, Ended
from hotloop.wire.responses.output import TextItem
from hotloop.wire.responses.writer import ResponsesWriter

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class Composer(ResponsesWriter):
    """One response while it is written. `head` is what the object repeats of its request.

    Every method that changes something returns the events which tell of it.
    """

    def __init__(self, head: Json, toolbox: Toolbox, tokenizer: Tokenizer, inquiry: Inquiry = NOTHING_ASKED) -> None:
        super().__init__({**head, "completed_at": None, "error": None, "incomplete_details": None}, toolbox.tools)
        self._tokenizer = tokenizer
        self._inquiry = inquiry
        self._is_cut = False

    @property
    def id(self) -> str:
        return str(self._response["id"])

    @property
    def status(self) -> Status:
        status: Status = self._response["status"]
        return status

    def begin(self) -> list[Json]:
        return [*self.tell(Begun())]

    def add(self, piece: Piece) -> list[Json]:
        """What one step gave."""
        self._logprobs += [self._render_logprob(logprob) for logprob in piece.logprobs]
        self._is_cut |= piece.finish_reason is FinishReason.LENGTH
        return [told for part in piece.parts for told in self.tell(part)]

    def finish(self, usage: Usage) -> list[Json]:
        """The model has ended its answer, or was cut off."""
        told = [] if self._items else [*self._begin_item(TextItem(*self._next()))]
        if diagnosis := self._inquiry.diagnose():
            self._response["prompt_cache_diagnostics"] = render_diagnosis(diagnosis)
        if not self._is_cut:
            self._response["completed_at"] = int(time.time())
        ended = Ended("length" if self._is_cut else "stop", None, response_usage(usage, self._inquiry))
        return [*told, *self.tell(ended)]

    def break_off(self, error: HotloopError) -> list[Json]:
        """It will not be finished. OpenAI has no event for one that was cancelled; its status tells it from others."""
        if isinstance(error, Cancelled | Disconnected):
            self._response["status"] = "cancelled"
        else:
            code = "rate_limit_exceeded" if kind_of(error).status == 429 else "server_error"
            self._response |= {"status": "failed", "error": {"code": code, "message": str(error)}}
        return [self._tell("response.failed")]

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
        self._has_begun = False

    def write(self, pieces: Sequence[tuple[int, Piece]]) -> bytes:
        begun = [] if self._has_begun else self._composer.begin()
        self._has_begun = True
        return self._send([*begun, *(told for _, piece in pieces for told in self._composer.add(piece))])

    def close(self, usages: Sequence[Usage]) -> bytes:
        return self._end(self._composer.finish(usages[0]))

    def fail(self, error: HotloopError, request_id: str) -> bytes:
        return self._end(self._composer.break_off(error))

    def _end(self, told: Iterable[Json]) -> bytes:
        self._on_end()
        return self._send(told)

    def _send(self, told: Iterable[Json]) -> bytes:
        return b"".join(self._composer.number(told))


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
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": toolbox.bodies,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        **named,
    }


def response_usage(usage: Usage, inquiry: Inquiry) -> wire.Usage:
    """What was read and not found cached is cached now."""
    num_written = usage.num_prompt - usage.num_cached
    work = render_work([usage], inquiry)
    return wire.Usage(usage.num_prompt, usage.num_cached, usage.num_output, num_written, hotloop=work)


def _render_format(body: ResponsesBody) -> Json:
    form = body.text.format if body.text else None
    rendered: Json = {"type": "text"} if form is None else msgspec.to_builtins(form)
    return rendered
