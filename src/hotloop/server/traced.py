"""A request as spans: what the engine's own clock and counters say about it, told once, when it is over.

    request   ├─────────────────────────────┤   from the first byte of its body
    queue        ├───┤                          from when it was cut into tokens
    prefill          ├──────┤
    decode                  ├───────────────┤

One span for an answer, however many choices it has; its tokens are those of its usage. Nothing is measured here.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from starlette.requests import Request as HttpRequest

from hotloop.chat.compare import find_spot, find_words
from hotloop.core.errors import HotloopError
from hotloop.core.request import FinishReason, Priority, Request
from hotloop.server.explain.account import Cause
from hotloop.server.explain.inquiry import Explainer
from hotloop.trace import names
from hotloop.trace.sessions import RecentTraces
from hotloop.trace.span import TRACEPARENT, Clock, Span, TraceContext
from hotloop.trace.tracer import Tracer

if TYPE_CHECKING:
    from hotloop.server.jobs import Job

Json = dict[str, Any]


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

    def open(self, http: HttpRequest, job: "Job", answer_id: str, requests: Sequence[Request]) -> "RequestTrace | None":
        """None where nobody listens."""
        if not self.tracer.is_on:
            return None
        asker = job.asker
        session = f"{asker.owner} {asker.session_id}" if asker.session_id else ""
        context, parent_id = self._recent.join(http.headers.get(TRACEPARENT), session)
        return RequestTrace(
            self, job, answer_id, requests, context, parent_id, http.state.began_at, getattr(http.state, "body", b"")
        )

    def words_of(self, causes: Sequence[Cause], job: "Job") -> Json:
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
    _job: "Job"
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
        clock = Clock()
        self._tell(names.REQUEST, clock, self._began_at, time.monotonic(), self._facts(), str(error))

    def _record(self, ended_at: float) -> None:
        requests, clock = self._requests, Clock()
        reasons = {request.finish_reason for request in requests}
        bad = next((reason for reason in (FinishReason.ERROR, FinishReason.ABORT) if reason in reasons), None)
        facts = {**self._facts(), **self._counts(), **self._content()}
        self._tell(names.REQUEST, clock, self._began_at, ended_at, facts, bad.value if bad else "")
        moments = [
            min(request.arrived_at for request in requests),
            _first(request.first_scheduled_at for request in requests),
            _first(request.first_token_at for request in requests),
            max((request.last_token_at for request in requests if request.last_token_at), default=None),
        ]
        for name, (since, until) in zip((names.QUEUE, names.PREFILL, names.DECODE), pairwise(moments), strict=True):
            if since is not None:
                self._tell(name, clock, since, until if until is not None else ended_at)

    def _tell(
        self, name: str, clock: Clock, since: float, until: float, facts: Json | None = None, error: str = ""
    ) -> None:
        is_whole = name == names.REQUEST
        context = self._context if is_whole else self._context.child()
        self._recorder.tracer.record(
            Span(
                trace_id=context.trace_id,
                span_id=context.span_id,
                parent_id=self._parent_id if is_whole else self._context.span_id,
                name=name,
                service=self._recorder.service,
                start_ns=clock.unix_ns(since),
                end_ns=clock.unix_ns(max(since, until)),
                session=self._job.asker.session_id,
                attributes=facts or {},
                error=error,
            )
        )

    def _facts(self) -> Json:
        first = self._requests[0]
        return {
            names.MODEL: self._recorder.model,
            names.ANSWER_ID: self._answer_id,
            names.REQUEST_ID: self._job.asker.request_id,
            names.ENDPOINT: self._job.endpoint,
            names.PRIORITY: Priority(first.priority).name.lower(),
            **({names.FINISH_REASON: first.finish_reason.value} if first.finish_reason else {}),
            **({names.IS_READING: True} if self._job.is_silent else {}),
        }

    def _counts(self) -> Json:
        """As the usage of the answer has them."""
        usages = [request.usage for request in self._requests]
        prompts = usages[:: self._job.num_choices]
        accounts = self._job.inquiry.accounts()
        num_prompt = sum(usage.num_prompt for usage in prompts)
        num_cached = sum(usage.num_cached for usage in prompts)
        num_again = sum(account.num_again for account in accounts)
        is_silent = self._job.is_silent
        return {
            names.NUM_PROMPT: num_prompt,
            names.NUM_CACHED: num_cached,
            names.NUM_NEW: num_prompt - num_cached - num_again,
            names.NUM_AGAIN: num_again,
            names.CAUSES: [_render_cause(cause) for account in accounts for cause in account.causes],
            names.NUM_OUTPUT: 0 if is_silent else sum(usage.num_output for usage in usages),
            names.NUM_SAMPLED: 0 if is_silent else sum(usage.num_sampled for usage in usages),
            names.NUM_FORCED: sum(usage.num_forced for usage in usages),
            names.NUM_DRAFTED: sum(usage.num_drafted for usage in usages),
            names.NUM_ACCEPTED: sum(usage.num_accepted for usage in usages),
            names.NUM_STEPS: sum(usage.num_steps for usage in usages),
            names.NUM_RESTORED: sum(usage.num_restored for usage in usages),
            names.NUM_PREEMPTIONS: sum(request.num_preemptions for request in self._requests),
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


def _first(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
