"""A run as spans, made from its events and its asks.

    run      ├───────────────────────────────────────┤
    turn       ├─────────────────┤ ├────────────────┤
    chat       ├──────────┤        ├────────────────┤   its id goes along with the request
    tool             ├──────────┤                       begun before it was asked for: from its beginning

A run's span is recorded when it begins, so that it can be watched, and again when it is over. An agent that runs
within a tool of another belongs to that one's trace. Where the tracer is off nothing is wrapped.
"""

import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from hotloop.agent import events
from hotloop.agent.limits import price
from hotloop.agent.model import Ask, Model, WrappedModel
from hotloop.agent.predict.history import call_key
from hotloop.agent.tools.result import render_result
from hotloop.agent.wire.openai import render_ask
from hotloop.core.errors import HotloopError
from hotloop.core.prices import Prices
from hotloop.trace import names
from hotloop.trace.default import default_tracer
from hotloop.trace.journal import JournalRow
from hotloop.trace.span import Clock, Span, TraceContext, new_span_id, new_trace_id
from hotloop.trace.tracer import Tracer
from hotloop.wire import event as wire
from hotloop.wire.arguments import read_arguments
from hotloop.wire.field import Json
from hotloop.wire.usage import ApiUsage

SERVICE = "agent"
_BROKEN_OFF = "broken off"


# What a tool runs within.
_around: ContextVar[tuple[Tracer, TraceContext] | None] = ContextVar("hotloop_around", default=None)


@dataclass(slots=True)
class _Open:
    context: TraceContext
    since: float
    facts: Json
    error: str = ""


class RunTrace:
    """One run. `context` is what is being asked or done now, for whoever is asked."""

    def __init__(
        self,
        tracer: Tracer | None = None,
        *,
        agent: str = "",
        prompt: str = "",
        prices: Prices | None = None,
        row: JournalRow | None = None,
    ) -> None:
        """Without a tracer what is around it is recorded to, else the default one. `row` is of a run that goes on."""
        outer_tracer, outer = _around.get() or (tracer or default_tracer(), None)
        self.tracer = tracer if tracer and tracer.is_on else outer_tracer
        self.session = ""
        self.clock = Clock()
        self.prices = prices or Prices()
        self._parent_id = outer.span_id if outer else None
        context = outer.child() if outer else TraceContext(new_trace_id(), new_span_id())
        since = time.monotonic()
        if row:
            context, since = TraceContext(row.trace_id, row.span_id), self.clock.monotonic_s(row.began_ns)
        facts = {names.AGENT: agent, names.CONTENT_PROMPT: prompt}
        self._run = _Open(context, since, facts)
        self._turn: _Open | None = None
        self._calls: dict[str, _Open] = {}
        self._guesses: dict[str, _Open] = {}

    @property
    def run_context(self) -> TraceContext:
        return self._run.context

    @property
    def context(self) -> TraceContext | None:
        return (self._turn or self._run).context if self.tracer.is_on else None

    def watch(self, model: Model) -> Model:
        return TracedModel(model, self) if self.tracer.is_on else model

    def listening(self, emit: Callable[[events.Event], None]) -> Callable[[events.Event], None]:
        """Hears of everything first: a tool that is dispatched finds itself within its span."""
        if not self.tracer.is_on:
            return emit

        def record_and_emit(event: events.Event) -> None:
            self._hear(event)
            emit(event)

        return record_and_emit

    def tell(self, name: str, span: _Open, parent_id: str | None, until: float) -> None:
        keeps_content = self.tracer.keeps_content
        facts = {key: fact for key, fact in span.facts.items() if keeps_content or not key.startswith(names.CONTENT)}
        self.tracer.record(
            Span(
                trace_id=span.context.trace_id,
                span_id=span.context.span_id,
                parent_id=parent_id,
                name=name,
                service=SERVICE,
                start_ns=self.clock.unix_ns(span.since),
                end_ns=self.clock.unix_ns(max(span.since, until)),
                session=self.session,
                attributes=facts,
                error=span.error,
            )
        )

    def _hear(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self.session = event.session_id
                self._run.facts[names.RUN_ID] = event.run_id
                self.tell(names.RUN, self._run, self._parent_id, self._run.since)
            case events.TurnStarted():
                self._turn = self._open(event.at, {names.INDEX: event.turn})
            case events.ModelPassedOver() if self._turn:
                self._turn.facts.setdefault(names.PASSED_OVER, []).append({"model": event.model, "kind": event.kind})
            case events.CallSpeculated():
                facts = {names.TOOL_NAME: event.name, names.CONFIDENCE: event.confidence, names.WAS_USED: False}
                facts[names.CONTENT_ARGUMENTS] = event.arguments
                self._guesses[_key(event)] = self._open(event.at, facts)
            case events.CallDispatched():
                self._dispatch(event)
            case events.CallFinished():
                self._finish(event)
            case events.TurnFinished():
                self._end_turn(event.at)
            case events.RunEnded():
                self._end(event)

    def _open(self, since: float, facts: Json) -> _Open:
        return _Open(self._run.context.child(), since, facts)

    def _dispatch(self, event: events.CallDispatched) -> None:
        facts: Json = {
            names.TOOL_NAME: event.name,
            names.DISPATCHED_NS: self.clock.unix_ns(event.at),
            names.WAS_SPECULATIVE: event.was_speculative,
            **({names.REUSED: event.reused} if event.reused else {}),
            names.CONTENT_ARGUMENTS: event.arguments,
        }
        call = self._calls[event.call_id] = self._open(event.at, facts)
        _around.set((self.tracer, call.context))  # in the task of this call, and there alone
        if event.was_speculative and (guess := self._guesses.pop(_key(event), None)):
            guess.facts[names.WAS_USED] = True
            self.tell(names.SPECULATIVE, guess, self._parent_of_calls, event.at)

    def _finish(self, event: events.CallFinished) -> None:
        """Begun when it began to run, be it before it was asked for; one that was refused never did."""
        began_at = event.at - event.duration_s
        call = self._calls.pop(event.call_id, None) or self._open(began_at, {})
        call.since = began_at
        call.facts |= {
            names.TOOL_NAME: event.name,
            names.CALL_ID: event.call_id,
            names.NUM_TRIES: event.num_tries,
            names.IS_ERROR: event.is_error,
            names.CONTENT_RESULT: event.result,
            **({names.SAVED_S: event.saved_s} if event.saved_s else {}),
            **({names.NUM_CHARS_CUT: event.num_chars_cut} if event.num_chars_cut else {}),
            **({names.TRACEBACK: event.traceback} if event.traceback else {}),
        }
        self.tell(names.TOOL, call, self._parent_of_calls, event.at)

    def _end_turn(self, at: float, error: str = "") -> None:
        for guess in self._guesses.values():
            self.tell(names.SPECULATIVE, guess, self._parent_of_calls, at)
        for call_id, call in self._calls.items():
            call.facts |= {names.CALL_ID: call_id, names.IS_ERROR: True}
            call.error = _BROKEN_OFF
            self.tell(names.TOOL, call, self._parent_of_calls, at)
        self._guesses.clear()
        self._calls.clear()
        if self._turn:
            self._turn.error = error
            self.tell(names.TURN, self._turn, self._run.context.span_id, at)
        self._turn = None

    def _end(self, event: events.RunEnded) -> None:
        self._run.error, spent = str(event.error) if event.error else "", event.spent
        self._end_turn(event.at, self._run.error)
        self._run.facts |= {
            names.END: event.end,
            names.NUM_TURNS: spent.num_turns,
            names.NUM_CALLS: spent.num_calls,
            names.MONEY: spent.money,
            **_render_usage(spent.usage),
            **({names.CONTENT_ANSWER: render_result(event.output)} if event.end == "done" else {}),
        }
        self.tell(names.RUN, self._run, self._parent_id, time.monotonic())  # with what it took to close it

    @property
    def _parent_of_calls(self) -> str:
        return (self._turn or self._run).context.span_id


class TracedModel(WrappedModel):
    """A model as it is, and a span for each time it is asked."""

    def __init__(self, model: Model, trace: RunTrace) -> None:
        super().__init__(model)
        self._trace = trace

    async def stream(self, ask: Ask) -> AsyncGenerator[wire.Event, None]:
        with self._chat(ask) as chat:
            chat.error = _BROKEN_OFF
            async with aclosing(self._model.stream(replace(ask, trace=chat.context))) as said:
                async for event in said:
                    match event:
                        case wire.Begun():
                            chat.facts |= {names.ANSWER_ID: event.id} if event.id else {}
                        case wire.Ended():
                            chat.error = ""
                            chat.facts |= _render_usage(event.usage)
                            if money := price(event.usage, self._trace.prices):
                                chat.facts[names.MONEY] = money
                        case _:
                            chat.facts.setdefault(names.FIRST_TOKEN_NS, self._trace.clock.now_ns())
                    yield event

    async def prefill(self, ask: Ask) -> None:
        with self._chat(ask) as chat:
            chat.facts[names.IS_PREFILL_ONLY] = True
            await self._model.prefill(replace(ask, trace=chat.context))

    @contextmanager
    def _chat(self, ask: Ask) -> Iterator[_Open]:
        assert ask.trace, "a run that is traced says so"
        chat = _Open(ask.trace.child(), time.monotonic(), {})
        try:
            yield chat
        except HotloopError as failure:
            chat.error = str(failure)
            raise
        finally:
            chat.facts[names.MODEL] = self._model.name
            if self._trace.tracer.keeps_content:
                body = render_ask(ask, self._model.name)
                text = json.dumps(body, default=repr, skipkeys=True, ensure_ascii=False, separators=(",", ":"))
                chat.facts[names.CONTENT_REQUEST] = text.encode(errors="replace").decode()  # half surrogates
            self._trace.tell(names.CHAT, chat, ask.trace.span_id, time.monotonic())


def _render_usage(usage: ApiUsage) -> Json:
    return {
        names.NUM_PROMPT: usage.num_prompt,
        names.NUM_CACHED: usage.num_cached or 0,
        names.NUM_OUTPUT: usage.num_output,
    }


def _key(event: events.CallSpeculated | events.CallDispatched) -> str:
    return call_key(event.name, read_arguments(event.arguments)) or f"{event.name} {event.arguments}"
