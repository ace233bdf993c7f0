"""A request as spans: what the engine's own clock and counters say about it, told once, when it is over.

    request   ├─────────────────────────────┤   from the first byte of its body
    queue        ├───┤                          from when it was cut into tokens
    prefill          ├──────┤
    decode                  ├───────────────┤

One span for an answer, however many choices it has; its tokens are those the engine counts. Nothing is measured here.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest

from hotloop.chat.compare import find_position, find_words
from hotloop.core.errors import HotloopError
from hotloop.core.request import FinishReason, Priority, Request
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.server.account import Cause
from hotloop.server.explain.inquiry import Explainer
from hotloop.server.job import Job
from hotloop.trace import names
from hotloop.trace.span import TRACEPARENT, Clock, RecentTraces, Span, TraceContext, new_span_id
from hotloop.trace.tracer import Tracer
from hotloop.wire.field import Json

_PARTS = (names.QUEUE, names.PREFILL, names.DECODE)
# Counted for every choice; the usage has them under the same names.
_WORK = (
    *(names.NUM_OUTPUT, names.NUM_FORCED, names.NUM_DRAFTED, names.NUM_ACCEPTED, names.NUM_STEPS),
    *(names.NUM_RESTORED, names.NUM_FROM_HOST, names.NUM_SAMPLED),
)
_BAD = frozenset({FinishReason.ERROR, FinishReason.ABORT})


class RequestRecorder:
    def __init__(self, tracer: Tracer, explainer: Explainer, model: str, sharing: Sharing = UNSHARED) -> None:
        self.tracer = tracer
        self.service = f"server:{model}"
        self.model = model
        self._explainer = explainer
        self._recent = RecentTraces(sharing=sharing)

    def listen_at(self, port: int) -> None:
        """Which of several servers of this model it is."""
        self.service = f"server:{self.model}@{port}"

    def open(self, http: HttpRequest, job: Job, answer_id: str, requests: Sequence[Request]) -> "RequestTrace | None":
        if not self.tracer.is_on:
            return None
        caller, tenant = job.caller, job.caller.tenant
        session = f"{caller.owner} {caller.session_id}" if caller.session_id else ""
        header, own = http.headers.get(TRACEPARENT), tenant.id if tenant.is_apart else ""
        context, parent_id = self._recent.join(header, session, own)
        return RequestTrace(
            self, job, answer_id, requests, context, parent_id, http.state.began_at, getattr(http.state, "body", b"")
        )

    def words_of(self, causes: Sequence[Cause], job: Job) -> Json:
        """Where prompts part, and in which words. Takes a moment."""
        spell, found, words = self._explainer.spell, [], []
        for cause in causes:
            spot = find_position(cause.divergence, job.prepared.prompts[0], spell) if cause.divergence else None
            found.append({**_render_cause(cause), **({"kind": spot.kind, "index": spot.index} if spot else {})})
            words.append(find_words(cause.divergence, spell)._asdict() if cause.divergence else None)
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
        self._num_over += 1
        if self._num_over == len(self._requests):
            ended_at = time.monotonic()
            if self._recorder.tracer.keeps_content:
                asyncio.get_running_loop().run_in_executor(None, self._record, ended_at)
            else:
                self._record(ended_at)

    def refuse(self, error: HotloopError) -> None:
        clock = Clock()
        start_ns, end_ns = clock.unix_ns(self._began_at), clock.unix_ns(time.monotonic())
        self._recorder.tracer.record(self._span(names.REQUEST, start_ns, end_ns, self._facts(), str(error)))

    def _record(self, ended_at: float) -> None:
        """On the event loop, after every answer: what can be left undone is."""
        clock, record = Clock(), self._recorder.tracer.record
        bad = next((each.finish_reason for each in self._requests if each.finish_reason in _BAD), None)
        facts = {**self._facts(), **self._counts(), **self._content()}
        start_ns, end_ns = clock.unix_ns(self._began_at), clock.unix_ns(max(self._began_at, ended_at))
        record(self._span(names.REQUEST, start_ns, end_ns, facts, bad.value if bad else ""))
        since, *moments = self._moments()
        for name, until in zip(_PARTS, moments, strict=True):
            if since is None:
                break
            record(self._span(name, clock.unix_ns(since), clock.unix_ns(max(since, until or ended_at))))
            since = until

    def _moments(self) -> Sequence[float | None]:
        """Where the parts begin and end; None from where on it did not get."""
        arrivals = [request.arrived_at for request in self._requests]
        scheduled = [request.first_scheduled_at for request in self._requests if request.first_scheduled_at]
        firsts = [request.first_token_at for request in self._requests if request.first_token_at]
        lasts = [request.last_token_at for request in self._requests if request.last_token_at]
        return min(arrivals), min(scheduled, default=None), min(firsts, default=None), max(lasts, default=None)

    def _span(self, name: str, start_ns: int, end_ns: int, facts: Json | None = None, error: str = "") -> Span:
        is_whole, context = name == names.REQUEST, self._context
        return Span(
            trace_id=context.trace_id,
            span_id=context.span_id if is_whole else new_span_id(),
            parent_id=self._parent_id if is_whole else context.span_id,
            name=name,
            service=self._recorder.service,
            start_ns=start_ns,
            end_ns=end_ns,
            session=self._job.caller.session_id,
            tenant=self._job.caller.owner,
            attributes=facts or {},
            error=error,
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
            **({names.IS_PREFILL_ONLY: True} if self._job.is_prefill_only else {}),
        }

    def _counts(self) -> Json:
        """As the engine counts them: what the usage says, and for what was only prefilled a token that nobody got."""
        usages = [request.usage for request in self._requests]
        prompts = usages[:: self._job.num_choices]  # the choices of a prompt share it
        num_prompt = sum([usage.num_prompt for usage in prompts])
        num_cached = sum([usage.num_cached for usage in prompts])
        accounts = self._job.inquiry.accounts()
        num_recomputed = sum([account.num_recomputed for account in accounts])
        return {
            names.NUM_PROMPT: num_prompt,
            names.NUM_CACHED: num_cached,
            names.NUM_NEW: num_prompt - num_cached - num_recomputed,
            names.NUM_RECOMPUTED: num_recomputed,
            names.CAUSES: [_render_cause(cause) for account in accounts for cause in account.causes],
            **{name: sum([getattr(usage, name) for usage in usages]) for name in _WORK},
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
            names.CONTENT_ANSWER: "" if self._job.is_prefill_only else self._recorder.text_of(self._requests[0]),
            **(self._recorder.words_of(causes, self._job) if len(accounts) == 1 else {}),
        }


def _render_cause(cause: Cause) -> Json:
    place = {"token_index": cause.divergence.index} if cause.divergence else {}
    return {"reason": cause.reason, "num_tokens": cause.num_tokens, **place}
