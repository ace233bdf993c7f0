"""A request's way through the router as spans: one for all of it, and one for each try that failed.

The trace goes on at the replica: the parent it is told is the router's own span, not the client's.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec

from hotloop.core.errors import RemoteError
from hotloop.core.request import Priority
from hotloop.core.stream import CallDelta, CallOpened, TextDelta, ThoughtDelta
from hotloop.http.logs import Facts, first_token
from hotloop.router.kinds import Api
from hotloop.router.placement.policy import ReplicaChoice
from hotloop.router.request import RoutedRequest
from hotloop.router.summary import AnswerSummary
from hotloop.trace import names
from hotloop.trace.span import TRACEPARENT, Clock, RecentTraces, Span, TraceContext, new_span_id, render_traceparent
from hotloop.trace.tracer import Tracer
from hotloop.wire.formats import FORMATS
from hotloop.wire.reader import name_call
from hotloop.wire.sse import EventReader

Headers = Mapping[bytes, bytes]

_HEADER = TRACEPARENT.encode()


class RouteRecorder:
    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.service = "router"
        self._recent = RecentTraces()

    def open(self, request: RoutedRequest, headers: Headers, request_id: str) -> "RouteSpan":
        """To be entered: it is recorded when it is left. Where nobody listens, the client's own headers go on."""
        if not self.tracer.is_on or request.is_question:
            return RouteSpan(self, request, headers, request_id)
        header, own = request.headers.get(TRACEPARENT), request.tenant.id if request.tenant.is_apart else ""
        context, parent_id = self._recent.join(header, request.session, own)
        sent = {**headers, _HEADER: render_traceparent(context).encode()}
        return RouteSpan(self, request, sent, request_id, context, parent_id)


@dataclass(slots=True)
class RouteSpan(AbstractContextManager["RouteSpan"]):
    """What is known of one request's way so far. `headers` are those to send on."""

    recorder: RouteRecorder
    request: RoutedRequest
    headers: Headers
    request_id: str
    context: TraceContext | None = None
    parent_id: str | None = None
    facts: dict[str, Any] = field(init=False)
    _began_at: float = field(default_factory=time.monotonic)
    _clock: Clock = field(default_factory=Clock)
    _error: str = ""
    _has_ended: bool = False
    answer: bytearray | None = None
    """What the client is sent, for as long as it is to be recorded."""

    def __post_init__(self) -> None:
        self.facts = {
            names.ENDPOINT: self.request.api,
            names.MODEL: self.request.model,
            names.PRIORITY: Priority(self.request.priority).name.lower(),
            names.REQUEST_ID: self.request_id,
            names.TRIED: [],
            names.QUEUE_NS: 0,
        }
        if self.context and self.recorder.tracer.keeps_content:
            self.answer = bytearray()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._error = str(error) or type(error).__name__
        if self.context and self.answer is not None:  # to read it takes a while
            asyncio.get_running_loop().run_in_executor(None, self._record_said, self.context, self._clock.now_ns())
        elif self.context:
            self._record_route(self.context, self._clock.now_ns())

    def hang_up(self) -> None:
        """The client has left; an answer that had ended is no error."""
        if not self._has_ended:
            self._error = "the client disconnected"

    def claim(self, replica: str, wait_s: float) -> None:
        self.facts[names.TRIED].append(replica)
        self.facts[names.QUEUE_NS] += round(wait_s * 1e9)

    def fail(self, replica: str, why: str, since: float) -> None:
        if self.context:
            context = TraceContext(self.context.trace_id, new_span_id())
            when = since, self._clock.now_ns()
            self._record(names.ATTEMPT, context, self.context.span_id, when, {names.REPLICA: replica}, why)

    def begin(self, choice: ReplicaChoice, status: int) -> None:
        self.facts |= {
            names.REPLICA: choice.name,
            names.REASON: choice.reason,
            names.NUM_MATCHED: choice.matched_tokens,
            names.STATUS: status,
            names.FIRST_BYTE_NS: self._clock.now_ns(),
        }

    def end(self, summary: AnswerSummary) -> None:
        facts = {
            names.ANSWER_ID: summary.answer_id,
            names.NUM_PROMPT: summary.num_prompt,
            names.NUM_CACHED: summary.num_cached,
            names.NUM_OUTPUT: summary.num_output,
        }
        self.facts |= {name: value for name, value in facts.items() if value is not None}
        self._error = "the answer broke off" if summary.is_broken else ""
        self._has_ended = True

    def describe_access(self) -> Facts:
        """What the access log says of it."""
        facts, first_ns = self.facts, self.facts.get(names.FIRST_BYTE_NS)
        since_s = self._clock.unix_ns(self._began_at) / 1e9
        return {
            "session": self.request.session_name,
            "model": self.request.model,
            "class": facts[names.PRIORITY],
            "replica": facts.get(names.REPLICA),
            **first_token(since_s, first_ns / 1e9 if first_ns else None),
            "prompt_tokens": facts.get(names.NUM_PROMPT),
            "cached_tokens": facts.get(names.NUM_CACHED),
            "output_tokens": facts.get(names.NUM_OUTPUT),
            "tried": len(facts[names.TRIED]),
            "error": self._error,
        }

    def _record_said(self, context: TraceContext, end_ns: int) -> None:
        self.facts[names.CONTENT_REQUEST] = self.request.raw.decode("utf-8", "replace")
        self.facts[names.CONTENT_ANSWER] = read_answer(self.request.api, bytes(self.answer or b""))
        self._record_route(context, end_ns)

    def _record_route(self, context: TraceContext, end_ns: int) -> None:
        self._record(names.ROUTE, context, self.parent_id, (self._began_at, end_ns), self.facts, self._error)

    def _record(
        self,
        name: str,
        context: TraceContext,
        parent_id: str | None,
        when: tuple[float, int],
        facts: dict[str, Any],
        error: str,
    ) -> None:
        since, end_ns = when
        self.recorder.tracer.record(
            Span(
                trace_id=context.trace_id,
                span_id=context.span_id,
                parent_id=parent_id,
                name=name,
                service=self.recorder.service,
                start_ns=self._clock.unix_ns(since),
                end_ns=end_ns,
                session=self.request.session_name,
                tenant=self.request.tenant.id,
                attributes=facts,
                error=error,
            )
        )


class _Choice(msgspec.Struct):
    text: str = ""


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []


_decoder = msgspec.json.Decoder(_Completion)


def read_answer(api: Api, answer: bytes) -> str:
    """The words and calls of an answer as the client got it, put together: a pattern that redacts would not find what
    is spread over several events. What cannot be read is left out."""
    words: list[str] = []
    with suppress(RemoteError, msgspec.MsgspecError, UnicodeError, RecursionError):
        words.extend(_words(api, answer))
    return "".join(words)


def _words(api: Api, answer: bytes) -> Iterator[str]:
    events = [] if answer.lstrip().startswith(b"{") else [*EventReader().push(answer)]
    if api == "completions":
        for piece in [event.data for event in events if event.data != b"[DONE]"] if events else [answer]:
            yield from (choice.text for choice in _decoder.decode(piece).choices)
        return
    if api == "tokenize" or api == "embeddings":  # these have no words
        return
    reader = FORMATS["responses" if api == "compaction" else api].reader(name_call)
    read = (each for event in events for each in reader.push(event)) if events else reader.whole(answer)
    for event in read:
        match event:
            case TextDelta(text) | ThoughtDelta(text):
                yield text
            case CallOpened(name=name):
                yield f"\n{name} "
            case CallDelta(arguments=arguments):
                yield arguments
