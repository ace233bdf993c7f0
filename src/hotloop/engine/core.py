"""One step of the engine, and what it tells whom. Runs on one thread and never waits.

Every request ends in exactly one terminal event: finished, aborted, or failed with its step.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hotloop.backends.backend import Backend
from hotloop.core.config import EngineConfig
from hotloop.core.errors import BackendError, HotloopError
from hotloop.core.request import FinishReason, Request, TokenEvent
from hotloop.engine.batch import make_batch
from hotloop.engine.sampler import Sampled, Sampler
from hotloop.engine.scheduler import Scheduler
from hotloop.engine.text import TextStream
from hotloop.models.tokenizer import Tokenizer

OnEvent = Callable[[TokenEvent], None]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did and what it took; `overhead_s` is everything but the backend."""

    duration_s: float
    overhead_s: float
    num_requests: int
    num_tokens: int
    num_output: int


@dataclass(slots=True)
class Totals:
    """Counters that only grow."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))


@dataclass(slots=True)
class _Listener:
    """Who hears of a request, and the text it has so far."""

    on_event: OnEvent
    text: TextStream


class EngineCore:
    """Scheduler, backend and sampler, turned one step at a time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        backend: Backend,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.totals = Totals()
        self.scheduler = Scheduler(config, block_size=backend.block_size, num_blocks=backend.num_blocks)
        self._tokenizer = tokenizer
        self._backend = backend
        self._sampler = Sampler(token_id for token_id in tokenizer.eos_ids if token_id < backend.vocab_size)
        self._listeners: dict[str, _Listener] = {}
        self._clock = clock
        self._finished_at = clock()
        self.finish_interval_s = 1.0  # from one request's end to the next, lately and on average, while there is work

    def add(self, request: Request, on_event: OnEvent) -> None:
        if not self.scheduler.has_work:
            self._finished_at = self._clock()  # nobody waited for the time that lay idle
        self.scheduler.add(request)
        self._listeners[request.id] = _Listener(on_event, TextStream(self._tokenizer, request.sampling))

    def knows(self, request_id: str) -> bool:
        """Whether a request of that id waits or runs."""
        return request_id in self._listeners

    def step(self) -> StepReport | None:
        """Compute one step and tell everybody; None if there was nothing to do."""
        began_at = self._clock()
        step = self.scheduler.schedule(began_at)
        if not step.slices:
            return None
        batch = make_batch(step, self.scheduler.block_size)
        ran_at = self._clock()
        logits = self._backend.run(batch)
        backend_s = self._clock() - ran_at
        level = [part for part in step.slices if part.wants_token]
        sampled = self._sampler.sample(logits, [part.request for part in level])
        self.scheduler.update(step, [choice.token_id if choice else None for choice in sampled])
        now = self._clock()
        for part, choice in zip(level, sampled, strict=True):
            self._deliver(part.request, choice, now)
        self.totals.num_steps += 1
        duration_s = self._clock() - began_at
        num_output = sum(choice is not None for choice in sampled)
        return StepReport(duration_s, duration_s - backend_s, len(step.slices), len(batch.token_ids), num_output)

    def abort(self, request_id: str) -> None:
        """End a request now, if it has not ended already."""
        request = self._find(request_id)
        if request:
            self._end(request, FinishReason.ABORT)

    def fail(self, error: HotloopError) -> None:
        """A step failed: end all that ran with this error, and trust nothing in the cache."""
        for request in self.scheduler.reset():
            self._close(request, _event(request, error=error))

    def fail_all(self, error: HotloopError) -> None:
        """Nothing will run any more: end the waiting too."""
        while self.scheduler.has_work:
            self.fail(error)

    def _find(self, request_id: str) -> Request | None:
        return self.scheduler.running.get(request_id) or self.scheduler.waiting.get(request_id)

    def _deliver(self, request: Request, choice: Sampled | None, now: float) -> None:
        """A token arrived: does it end the request, and what text does it make certain? None ends this one only."""
        if choice is None:
            self._fail(request, BackendError("the model computed logits that are not numbers"))
            return
        if request.first_token_at is None:
            request.first_token_at = now
        request.last_token_at = now
        listener = self._listeners[request.id]
        piece = listener.text.push(choice.token_id, may_stop=request.num_output >= request.sampling.min_tokens)
        reason, stop_match = self._verdict(request, choice.token_id, piece.stop)
        if reason is None:
            self._tell(listener, _event(request, choice, piece.text))
            return
        text = piece.text if piece.stop is not None else piece.text + listener.text.finish()
        self._end(request, reason, choice=choice, text=text, stop_match=stop_match)

    def _verdict(
        self, request: Request, token_id: int, stop: str | None
    ) -> tuple[FinishReason | None, str | int | None]:
        """Whether the request ends with this token, and by which of the caller's stops."""
        params = request.sampling
        if stop is not None:
            return FinishReason.STOP, stop
        if token_id in params.stop_token_ids and request.num_output > params.min_tokens:
            return FinishReason.STOP, token_id
        if token_id in self._tokenizer.eos_ids and not params.ignore_eos:
            return FinishReason.STOP, None
        if request.num_output >= request.max_tokens:
            return FinishReason.LENGTH, None
        return None, None

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        *,
        choice: Sampled | None = None,
        text: str = "",
        stop_match: str | int | None = None,
    ) -> None:
        self.scheduler.finish(request, reason)
        self._close(request, _event(request, choice, text, stop_match))

    def _fail(self, request: Request, error: HotloopError) -> None:
        """End one request with this error; the others go on."""
        self.scheduler.fail(request)
        self._close(request, _event(request, error=error))

    def _close(self, request: Request, event: TokenEvent) -> None:
        """Count and tell the end of a request that the scheduler has let go."""
        assert event.finish_reason is not None
        now = self._clock()
        self.finish_interval_s += 0.1 * (now - self._finished_at - self.finish_interval_s)
        self._finished_at = now
        self.totals.num_finished[event.finish_reason] += 1
        self.totals.num_prompt_tokens += event.usage.num_prompt
        self.totals.num_cached_tokens += event.usage.num_cached
        self.totals.num_output_tokens += event.usage.num_output
        self._tell(self._listeners.pop(request.id), event)

    def _tell(self, listener: _Listener, event: TokenEvent) -> None:
        """A listener that fails has gone away: its request ends, the others go on."""
        try:
            listener.on_event(event)
        except Exception:
            if event.finish_reason is None:
                listener.on_event = _nobody
                self.abort(event.request_id)


def _nobody(event: TokenEvent) -> None:
    """Hears of a request whose caller has gone."""


def _event(
    request: Request,
    choice: Sampled | None = None,
    text: str = "",
    stop_match: str | int | None = None,
    error: HotloopError | None = None,
) -> TokenEvent:
    return TokenEvent(
        request_id=request.id,
        token_ids=(choice.token_id,) if choice else (),
        text=text,
        usage=request.usage,
        logprobs=(choice.logprob,) if choice and choice.logprob else (),
        finish_reason=request.finish_reason,
        stop_match=stop_match,
        error=error,
    )
