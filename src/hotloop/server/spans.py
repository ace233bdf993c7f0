"""A request as spans: what the engine's own clock and counters say about it, told once, when it is over.

    request   ├─────────────────────────────┤   from the first byte of its body
    queue        ├───┤                          from when it was cut into tokens
    prefill          ├──────┤
    decode                  ├───────────────┤

One span for an answer, however many choices it has; its tokens are those the engine counts. Nothing is measured here.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest

from hotloop.chat.compare import find_spot, find_words
from hotloop.core.errors import HotloopError
from hotloop.core.request import FinishReason, Priority, Request, Usage
from hotloop.server.account import Cause
from hotloop.server.explain.inquiry import Explainer
from hotloop.server.job import Job
from hotloop.trace import names
from hotloop.trace.sessions import RecentTraces
from hotloop.trace.span import TRACEPARENT, Clock, Span, TraceContext, new_span_id
from hotloop.trace.tracer import Tracer

Json = dict[str, Any]

_PARTS = (names.QUEUE, names.PREFILL, names.DECODE)
_BAD = frozenset({FinishReason.ERROR, FinishReason.ABORT})


class RequestRecorder:
    """Tells a tracer of every request. Lives on the event loop."""

    def __init__(self, tracer: Tracer, explainer: Explainer, model: str) -> None:
        self.tracer = tracer
        self.service = f"server:{model}"
        self.model = model
        self._explainer = explainer
        self._recent = RecentTraces()

    def listen_at(self, port: int) -> None:
        """Which of several servers of this model it is."""
        self.service = f"server:{self.model}@{port}"

    def open(self, http: HttpRequest, job: Job, answer_id: str, requests: Sequence[Request]) -> "RequestTrace | None":
        """None where nobody listens."""
        if not self.tracer.is_on:
            return None
        caller = job.caller
        session = f"{caller.owner} {caller.session_id}" if caller.session_id else ""
        context, parent_id = self._recent.join(http.headers.get(TRACEPARENT), session)
        return RequestTrace(
            self, job, answer_id, requests, context, parent_id, http.state.began_at, getattr(http.state, "body", b"")
        )

    def words_of(self, causes: Sequence[Cause], job: Job) -> Json:
        """Where prompts part, and in which words. Takes a moment."""
        spell, found, words = self._explainer.spell, [], []
        for cause in causes:
            spot = find_spot(cause.parting, job.prompts[0], spell) if cause.parting else None
            found.append({**_render_cause(cause), **({"kind": spot.kind, "index": spot.index} if spot else {})})
            told = find_words(cause.parting, spell) if cause.parting else None
            words.append({"before": told.before, "previous": told.previous, "current": told.current} if told else None)
        return {names.CAUSES: found, names.CONTENT_WORDS: words}

    def text_of(self, request: Request) -> str:
        return b"".join(map(self._explainer.spell, request.output_ids)).decode("utf-8", "replace")


@dataclass(slots=True)
class RequestTrace:
    """One answer's requests, until the last of them is over."""

    _recorder: RequestRecorder
    _job: Job
    _answer_id: str
    _requests: Sequence[Request]
    _context: TraceContext
    _parent_id: str | None
    _began_at: float
    _body: bytes
    _num_over: int = 0

    def finish(self, request: Request) -> None:
        """A request is over, and accounted for."""
        self._num_over += 1
        if self._num_over == len(self._requests):
            ended_at = time.monotonic()
            if self._recorder.tracer.keeps_content:
                asyncio.get_running_loop().run_in_executor(None, self._record, ended_at)
            else:
                self._record(ended_at)

    def refuse(self, error: HotloopError) -> None:
        """The engine did not take it."""
        whole = self._whole(Clock(), time.monotonic(), self._facts(), str(error))
        self._recorder.tracer.record(whole)

    def _record(self, ended_at: float) -> None:
        """On the event loop, after every answer: what can be left undone is."""
        clock, record = Clock(), self._recorder.tracer.record
        bad = next((each.finish_reason for each in self._requests if each.finish_reason in _BAD), None)
        facts = {**self._facts(), **self._counts(), **self._content()}
        record(self._whole(clock, ended_at, facts, bad.value if bad else ""))
        since, *moments = self._moments()
        for name, until in zip(_PARTS, moments, strict=True):
            if since is None:
                break
            record(self._part(name, clock.unix_ns(since), clock.unix_ns(max(since, until or ended_at))))
            since = until

    def _moments(self) -> Sequence[float | None]:
        """Where the parts begin and end; None from where on it did not get."""
        if len(self._requests) == 1:
            [one] = self._requests
            return one.arrived_at, one.first_scheduled_at, one.first_token_at, one.last_token_at
        return (
            min(request.arrived_at for request in self._requests),
            _first(request.first_scheduled_at for request in self._requests),
            _first(request.first_token_at for request in self._requests),
            max((request.last_token_at for request in self._requests if request.last_token_at), default=None),
        )

    def _whole(self, clock: Clock, ended_at: float, facts: Json, error: str) -> Span:
        return Span(
            trace_id=self._context.trace_id,
            span_id=self._context.span_id,
            parent_id=self._parent_id,
            name=names.REQUEST,
            service=self._recorder.service,
            start_ns=clock.unix_ns(self._began_at),
            end_ns=clock.unix_ns(max(self._began_at, ended_at)),
            session=self._job.caller.session_id,
            attributes=facts,
            error=error,
        )

    def _part(self, name: str, start_ns: int, end_ns: int) -> Span:
        return Span(
            trace_id=self._context.trace_id,
            span_id=new_span_id(),
            parent_id=self._context.span_id,
            name=name,
            service=self._recorder.service,
            start_ns=start_ns,
            end_ns=end_ns,
            session=self._job.caller.session_id,
        )

    def _facts(self) -> Json:
        first = self._requests[0]
        return {
            names.MODEL: self._recorder.model,
            names.ANSWER_ID: self._answer_id,
            names.REQUEST_ID: self._job.caller.request_id,
            names.ENDPOINT: self._job.endpoint,
            names.PRIORITY: Priority(first.priority).name.lower(),
            **({names.FINISH_REASON: first.finish_reason.value} if first.finish_reason else {}),
            **({names.IS_READING: True} if self._job.is_silent else {}),
        }

    def _counts(self) -> Json:
        """As the engine counts them: what the usage says, and for what was only read a token that nobody got."""
        usages = [request.usage for request in self._requests]
        prompts = usages[:: self._job.num_choices]
        usage = usages[0] if len(usages) == 1 else _add_up(usages, prompts)
        accounts = self._job.inquiry.accounts()
        num_again = sum([account.num_again for account in accounts])
        return {
            names.NUM_PROMPT: usage.num_prompt,
            names.NUM_CACHED: usage.num_cached,
            names.NUM_NEW: usage.num_prompt - usage.num_cached - num_again,
            names.NUM_AGAIN: num_again,
            names.CAUSES: [_render_cause(cause) for account in accounts for cause in account.causes],
            names.NUM_OUTPUT: usage.num_output,
            names.NUM_SAMPLED: usage.num_sampled,
            names.NUM_FORCED: usage.num_forced,
            names.NUM_DRAFTED: usage.num_drafted,
            names.NUM_ACCEPTED: usage.num_accepted,
            names.NUM_STEPS: usage.num_steps,
            names.NUM_RESTORED: usage.num_restored,
            names.NUM_FROM_HOST: usage.num_from_host,
            names.NUM_PREEMPTIONS: sum([request.num_preemptions for request in self._requests]),
            names.WAITS: [
                {"reason": wait.value, "wait_s": round(wait_s, 4)} for wait, wait_s in usages[0].waits_s.items()
            ],
        }

    def _content(self) -> Json:
        if not self._recorder.tracer.keeps_content:
            return {}
        accounts = self._job.inquiry.accounts()
        causes = [cause for account in accounts for cause in account.causes]
        return {
            names.CONTENT_REQUEST: self._body.decode("utf-8", "replace"),
            names.CONTENT_ANSWER: "" if self._job.is_silent else self._recorder.text_of(self._requests[0]),
            **(self._recorder.words_of(causes, self._job) if len(accounts) == 1 else {}),
        }


def _render_cause(cause: Cause) -> Json:
    place = {"token_index": cause.parting.index} if cause.parting else {}
    return {"reason": cause.reason, "num_tokens": cause.num_tokens, **place}


def _add_up(usages: Sequence[Usage], prompts: Sequence[Usage]) -> Usage:
    """The choices of a prompt share it."""
    output = ("num_output", "num_forced", "num_drafted", "num_accepted", "num_steps", "num_restored", "num_from_host")
    return Usage(
        num_prompt=sum(usage.num_prompt for usage in prompts),
        num_cached=sum(usage.num_cached for usage in prompts),
        **{name: sum(getattr(usage, name) for usage in usages) for name in output},
    )


def _first(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
