"""One step of the engine, and the events it publishes. Runs on one thread and waits for nothing but the backend.

    launch N+1 | publish N-1 | masks of N+1 | wait for N, settle it

With a depth of two step N+1 runs while N is settled. During a long step the next one is planned only when that is
about to end, so that requests which arrive meanwhile are in it. Every request ends in exactly one terminal event:
finished, aborted, or failed with its step. Events are published in the order in which they arose.
"""

import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from hotloop.backends.backend import Backend, Flight, SampledTokens, SampleRow, Sampling
from hotloop.core.config import EngineConfig
from hotloop.core.errors import BackendError, ConfigError, HotloopError
from hotloop.core.pace import Pace
from hotloop.core.request import UNCOUNTED, FinishReason, Request, TokenEvent, Usage
from hotloop.engine.batch import make_batch
from hotloop.engine.decode import Sampled, TokenDecoder
from hotloop.engine.drafting.drafter import Drafter
from hotloop.engine.drafting.speculation import Speculator
from hotloop.engine.grammar.matcher import Matcher
from hotloop.engine.grammar.reasoning import ReasoningCounter
from hotloop.engine.kvcache.changes import Change
from hotloop.engine.kvcache.slots import WindowSlots
from hotloop.engine.offload.disk.store import KvStore
from hotloop.engine.offload.disk.tier import DiskTier, Post, segments_of
from hotloop.engine.offload.host import HostTier
from hotloop.engine.offload.moves import KvMoves
from hotloop.engine.scheduler.scheduler import Scheduler
from hotloop.engine.step import Slice, Step
from hotloop.engine.text import TextStream
from hotloop.models.tokenizer import Tokenizer

OnEvents = Callable[[Sequence[TokenEvent]], None]
"""Told of all that a step gave the requests of one listener at once."""

_COPY_POLL_S = 0.0005
_LONG_S = 0.006
"""From so much prefill in a step on, the next one is not launched at once."""
_SHARE = 0.95
"""It is launched when so much of that time is over: what the step takes besides is left for launching."""
_MAX_PAUSE_S = 0.05
"""However long it is expected to take: the device might be idle sooner than was thought."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did and what it took; `overhead_s` is the time that the hardware had nothing to do with."""

    duration_s: float
    overhead_s: float
    host_s: float  # what the host did for it, the hardware busy or not
    num_requests: int
    num_tokens: int
    num_output: int


@dataclass(slots=True)
class _Listener:
    """Where the events of a request go, and the text it has so far."""

    on_events: OnEvents
    text: TextStream | None  # None: the listener detokenises
    unpublished: list[Sampled]  # forced or given before the first step; published with the first one it gives
    reasoning: ReasoningCounter | None
    end_ids: Container[int]  # tokens that may end it
    is_plain: bool  # whether nothing else of its output is looked at


class EngineCore:
    """Scheduler, backend and decoder, turned one step at a time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        backend: Backend,
        config: EngineConfig,
        *,
        drafter: Drafter | None = None,
        store: KvStore | None = None,
        post: Post | None = None,
        changes: list[Change] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.num_steps = 0
        self.usage = Usage(0, 0, 0)  # of the requests that have ended
        self.num_finished = dict.fromkeys(FinishReason, 0)
        memory = backend.host_memory if config.prefix_cache else None
        self.scheduler = Scheduler(
            config,
            block_size=backend.block_size,
            num_blocks=backend.num_blocks,
            step_tokens=backend.step_tokens,
            max_running=backend.max_running,
            step_sizes=backend.step_sizes,
            max_solo_prefill=backend.max_solo_prefill,
            changes=changes,
            host=memory,
            num_states=backend.num_states,
            windows=_window_slots(backend),
        )
        sizes = backend.block_bytes, backend.state_bytes
        self.host = HostTier(memory, *sizes, self.scheduler) if memory else None
        self._tokenizer = tokenizer
        self._backend = backend
        eos_ids = (token_id for token_id in tokenizer.eos_ids if token_id < backend.vocab_size)
        self._decoder = TokenDecoder(eos_ids, can_force=config.forced_tokens)
        most = config.max_draft_tokens
        self._drafter = drafter
        self._speculator = Speculator(drafter, self._decoder, max_draft_tokens=most, clock=clock) if drafter else None
        self._publishes_first = drafter is not None and drafter.model is not None  # tokens do not wait for drafts
        self.disk = DiskTier(store, backend, self.scheduler, post, clock) if store and post else None
        self.moves: KvMoves | None = None
        if config.kv_peers and backend.num_states:
            raise ConfigError(
                "kv_peers is not supported with a hybrid model, whose recurrent states cannot be transferred"
            )
        if config.kv_peers and post:
            self.moves = KvMoves(segments_of(backend), backend, self.scheduler, post, clock)
        self._tiers = [tier for tier in (self.disk, self.host, self.moves) if tier]
        self.listeners: dict[str, _Listener] = {}  # of the requests that wait or run
        self._flights: deque[tuple[Step, Flight]] = deque()
        self._settling: Step | None = None  # some of its tokens may be appended and not yet published
        self._events: deque[tuple[_Listener, TokenEvent]] = deque()  # not yet published
        self._settled_at = clock()  # or when the first step after an idle time began
        self._clock = clock
        self.pace = Pace(clock())

    def add(
        self, request: Request, on_events: OnEvents, matcher: Matcher | None = None, *, has_text: bool = True
    ) -> None:
        """`has_text`: events carry text; else only those of requests with stop strings do."""
        if not self.scheduler.has_work:
            self.pace.resume(self._clock())
        forced = self._decoder.open(request, matcher)
        text = TextStream(self._tokenizer, request.sampling) if has_text or request.sampling.stop else None
        reasoning = ReasoningCounter(request.reasoning, self._tokenizer) if request.reasoning else None
        end_ids = request.sampling.stop_token_ids
        if request.grammar or not request.sampling.ignore_eos:
            end_ids |= self._tokenizer.eos_ids
        is_plain = not (matcher or request.sampling.stop or reasoning or request.sampling.logprobs is not None)
        self.listeners[request.id] = _Listener(on_events, text, forced, reasoning, end_ids, is_plain)
        (self.disk or self.scheduler).add(request)
        if self.moves and not request.is_loading:
            request.is_loading = self.moves.fetch(request)

    def refuse(self, request: Request, on_events: OnEvents, error: HotloopError) -> None:
        """End a request that could not be added, however far that went."""
        self.listeners.setdefault(request.id, _Listener(on_events, None, [], None, (), is_plain=False))
        if request.id in self.scheduler.waiting:
            self.scheduler.finish(request, FinishReason.ERROR)
        request.finish_reason = FinishReason.ERROR
        self._close(request, _event(request, error=error))

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs, no event is left to publish, and nothing comes from another server."""
        is_moving = self.moves is not None and self.moves.is_busy
        return not (self.listeners or self._flights or self._events or self._is_copying or is_moving)

    @property
    def num_draft_model_tokens(self) -> int:
        """How many tokens a draft model is asked for; 0: there is none, or it does not pay."""
        return self._speculator.model_length if self._speculator else 0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._flights or self._events or self._is_copying)

    @property
    def _is_copying(self) -> bool:
        return self.host is not None and self.host.is_busy

    @property
    def pause_s(self) -> float:
        """How long the next step had better wait for those who may join it; 0: it is time, or nothing is in the way."""
        if len(self._flights) != 1 or self._backend.depth < 2 or self._is_copying:
            return 0.0
        prefill_s = self.scheduler.budget.prefill_s(self._flights[0][0].slices)
        if prefill_s < _LONG_S:
            return 0.0
        return max(0.0, self._settled_at + min(_SHARE * prefill_s, _MAX_PAUSE_S) - self._clock())

    def check(self) -> None:
        for each in (self.scheduler, *self._tiers):
            each.check()

    def step(self) -> StepReport | None:
        """Launch a step, publish the events of the one before, settle the oldest in flight if it is time for that."""
        began_at = self._clock()
        for tier in self._tiers:
            tier.poll(began_at)
        if self._publishes_first:
            self.publish()
        is_launched = self._launch(began_at)
        self.publish()
        if self._flights and (not is_launched or len(self._flights) >= self._backend.depth):
            return self._settle(*self._flights.popleft())
        if self._is_copying and not is_launched:
            time.sleep(_COPY_POLL_S)  # there is nothing else to do
        return None

    def publish(self) -> None:
        """A listener that raises has disconnected: its requests are aborted, the others go on."""
        while self._events:
            on_events = self._events[0][0].on_events
            told: list[tuple[_Listener, TokenEvent]] = []
            while self._events and self._events[0][0].on_events == on_events:
                told.append(self._events.popleft())
            try:
                on_events([event for _, event in told])
            except Exception:
                for listener, event in told:
                    listener.on_events = lambda events: None
                    if event.finish_reason is None:
                        self.abort(event.request_id)

    def abort(self, *request_ids: str) -> None:
        """End requests now, if they have not ended already."""
        for request_id in request_ids:
            request = self.scheduler.running.get(request_id) or self.scheduler.waiting.get(request_id)
            if request:
                num_published = request.num_tokens - len(self.listeners[request_id].unpublished)
                del request.token_ids[num_published:]
                self.scheduler.finish(request, FinishReason.ABORT)
                self._close(request, _event(request))

    def fail(self, error: HotloopError) -> None:
        """A step failed: end all that ran with this error, and trust nothing in the cache."""
        self._flights.clear()
        for tier in self._tiers:
            tier.reset()
        step, self._settling = self._settling, None
        for request in self.scheduler.reset(step):
            self._close(request, _event(request, error=error))
        self.publish()

    def close(self) -> None:
        for each in (self._drafter, self.disk and self.disk.store):
            if each:
                each.close()

    def fail_all(self, error: HotloopError) -> None:
        """Nothing will run any more: end the waiting too."""
        for tier in (self.disk, self.moves):
            if tier:
                tier.let_all_go()
        while self.has_work:
            self.fail(error)

    def _launch(self, now: float) -> bool:
        step = self.scheduler.schedule(now)
        if not step.slices:
            return False
        if self._speculator:
            self._speculator.draft(step, self.scheduler)
        flight = self._backend.launch(make_batch(step, self.scheduler.block_size, self.scheduler.states.slot_of))
        self._flights.append((step, flight))
        if len(self._flights) == 1:
            self._settled_at = now  # what lay idle before is no part of its time
        self.scheduler.advance(step)
        flight.sample(self._sampling(step))
        return True

    def _sampling(self, step: Step) -> Sampling:
        """A row for each token that may be chosen; drafts go before it."""
        rows = []
        for part in step.slices:
            if part.wants_token:
                rows.append(SampleRow(part.request, part.end))
            if drafts := part.draft_ids:
                rows += [SampleRow(part.request, part.end + i, drafts[:i]) for i in range(1, len(drafts) + 1)]
        return Sampling(rows, self._decoder.eos_ids, lambda: self._decoder.masks(step.slices))

    def _settle(self, step: Step, flight: Flight) -> StepReport:
        """Wait for a step, give the requests their tokens, share what it computed."""
        self._settling = step
        waits_at = self._clock()
        chosen = flight.wait()
        waited_s = self._clock() - waits_at
        plain, decoded = self._decode(step, chosen)
        now = self._clock()
        self.scheduler.settle(step, now, chosen.device_s)
        if self.disk:
            self.disk.save(step.slices)
        for part, token_id in plain:
            self._deliver_plain(part.request, token_id, now)
        for part, tokens in decoded:
            if part.error:
                self.scheduler.fail(part.request)
                self._close(part.request, _event(part.request, error=part.error))
                continue
            if part.draft_ids:
                part.request.num_drafted += part.num_proposed
                part.request.num_accepted += part.num_right
            self._deliver(part.request, tokens, now)
        if self._speculator:
            duration_s = now - self._settled_at
            self._speculator.learn(step, duration_s, duration_s - waited_s if self._backend.depth > 1 else 0.0)
        self._settling = None
        self.num_steps += 1
        num_output = len(plain) + sum(len(tokens) for _, tokens in decoded)
        now, settled_at = self._clock(), self._settled_at
        self._settled_at = now
        duration_s = now - settled_at
        overhead_s, host_s = (max(0.0, duration_s - each) for each in (chosen.device_s, waited_s))
        return StepReport(duration_s, overhead_s, host_s, len(step.slices), step.num_tokens, num_output)

    def _decode(
        self, step: Step, chosen: SampledTokens
    ) -> tuple[list[tuple[Slice, int]], list[tuple[Slice, list[Sampled]]]]:
        """What the requests of a step have of it: a token each where nothing else can be, or what the decoder says."""
        plain: list[tuple[Slice, int]] = []
        decoded: list[tuple[Slice, list[Sampled]]] = []
        for part in step.slices:
            request = part.request
            if not part.wants_token or request.finish_reason is not None:
                continue
            if part.draft_ids or not self.listeners[request.id].is_plain:
                decoded.append((part, self._decoder.decode(part, chosen, part.first_row)))
                continue
            try:
                token_id = chosen.token(part.first_row)
            except HotloopError as error:
                part.error = error
                decoded.append((part, []))
                continue
            request.token_ids.append(token_id)
            plain.append((part, token_id))
        return plain, decoded

    def _deliver_plain(self, request: Request, token_id: int, now: float) -> None:
        """As `_deliver`, of a request whose output is only looked at for its end."""
        listener = self.listeners[request.id]
        is_over = token_id in listener.end_ids or len(request.token_ids) - len(request.prompt_ids) >= request.max_tokens
        if is_over or request.first_token_at is None:
            self._deliver(request, [Sampled(token_id)], now)
            return
        request.last_token_at = now
        request.num_steps += 1
        text, usage = ("", UNCOUNTED) if listener.text is None else (listener.text.push(token_id)[0], request.usage)
        event = (request.id, (token_id,), text, usage, (), None, None, None)
        self._events.append((listener, tuple.__new__(TokenEvent, event)))

    def _deliver(self, request: Request, tokens: list[Sampled], now: float) -> None:
        """Tokens arrived: does one end the request, and which text is final?"""
        if request.first_token_at is None:
            request.first_token_at = now
        request.last_token_at = now
        request.num_steps += 1
        listener = self.listeners[request.id]
        tokens, listener.unpublished = [*listener.unpublished, *tokens], []
        num_before = request.num_output - len(tokens)
        texts = []
        for i, token in enumerate(tokens):
            num_output = num_before + i + 1
            stop = None
            if listener.text:
                may_stop = num_output >= request.sampling.min_tokens
                text, stop = listener.text.push(token.token_id, may_stop=may_stop)
                texts.append(text)
            request.num_forced += token.is_forced
            request.num_reasoning += listener.reasoning is not None and listener.reasoning.push(token.token_id)
            reason, stop_match = self._verdict(request, token.token_id, num_output, stop)
            if reason:
                del request.token_ids[request.num_prompt + num_output :]
                if listener.text and stop is None:
                    texts.append(listener.text.finish())
                self.scheduler.finish(request, reason)
                self._close(request, _event(request, tokens[: i + 1], "".join(texts), stop_match))
                return
        self._events.append((listener, _event(request, tokens, "".join(texts))))

    def _verdict(
        self, request: Request, token_id: int, num_output: int, stop: str | None
    ) -> tuple[FinishReason | None, str | int | None]:
        """Whether the request ends with this token of its output, and by which of the caller's stops."""
        params = request.sampling
        if stop is not None:
            return FinishReason.STOP, stop
        if token_id in params.stop_token_ids and num_output > params.min_tokens:
            return FinishReason.STOP, token_id
        if token_id in self._tokenizer.eos_ids and (not params.ignore_eos or request.grammar):
            guide = self._decoder.guides.get(request.id)
            return FinishReason.LENGTH if guide and (guide.is_cut or guide.matcher.is_cut) else FinishReason.STOP, None
        if num_output >= request.max_tokens:
            return FinishReason.LENGTH, None
        return None, None

    def _close(self, request: Request, event: TokenEvent) -> None:
        """Count and publish the end of a request that the scheduler has let go."""
        assert event.finish_reason is not None
        self.pace.end_one(self._clock())
        self.num_finished[event.finish_reason] += 1
        self.usage = Usage.total(self.usage, event.usage)
        if self.disk:
            self.disk.forget(request, is_trusted=not isinstance(event.error, BackendError))
        self._decoder.guides.pop(request.id, None)
        if self._drafter:
            self._drafter.learn(request)
        self._events.append((self.listeners.pop(request.id), event))


def _window_slots(backend: Backend) -> WindowSlots | None:
    num_slots = backend.num_window_blocks
    return WindowSlots(num_slots, backend.window, backend.num_blocks) if num_slots else None


def _event(
    request: Request,
    tokens: Sequence[Sampled] = (),
    text: str = "",
    stop_match: str | int | None = None,
    error: HotloopError | None = None,
) -> TokenEvent:
    return TokenEvent(
        request_id=request.id,
        token_ids=tuple(token.token_id for token in tokens),
        text=text,
        usage=request.usage,
        logprobs=() if request.sampling.logprobs is None else tuple(token.logprob for token in tokens if token.logprob),
        finish_reason=request.finish_reason,
        stop_match=stop_match,
        error=error,
    )
