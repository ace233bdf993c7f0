"""The engine as its users see it: submit requests from any thread and receive their tokens, or generate one answer.

The loop runs on a thread of its own; everything else here only puts things into its inbox.
"""

import asyncio
import atexit
import logging
import secrets
import threading
from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Self, TypeVar

import numpy as np

from hotloop.backends.backend import Backend, Copy
from hotloop.core.config import (
    CLASS_SETTINGS,
    DEFAULT_MODEL,
    Device,
    EngineConfig,
    LoadFormat,
    Precision,
    WeightFormat,
    parse_bytes,
)
from hotloop.core.errors import (
    BackendError,
    DeviceLost,
    EngineClosed,
    HotloopError,
    Overloaded,
    PromptTooLong,
    RequestError,
)
from hotloop.core.grammar import Grammar
from hotloop.core.request import (
    FinishReason,
    KvSource,
    Priority,
    Request,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from hotloop.core.retention import Hold
from hotloop.engine.core import EngineCore, OnEvents, StepReport
from hotloop.engine.drafting.drafter import Drafter
from hotloop.engine.drafting.history import PastDrafter
from hotloop.engine.grammar.matcher import Grammars, Matcher
from hotloop.engine.grammar.reasoning import open_matcher
from hotloop.engine.kvcache.kv_events import KvPublisher
from hotloop.engine.offload.disk.store import KvStore, Segments
from hotloop.engine.offload.disk.tier import PATIENCE_S, open_store
from hotloop.engine.snapshot import EngineSnapshot, EngineStats, Snapshotter, count_up
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer

log = logging.getLogger(__name__)

T = TypeVar("T")
Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()


class Engine:
    """A model behind a queue. `with Engine.load() as engine: print(engine.generate("Once").text)`"""

    def __init__(
        self,
        tokenizer: Tokenizer,
        backend: Backend,
        config: EngineConfig | None = None,
        *,
        name: str = "model",
        template: ChatTemplate | None = None,
        drafter: Drafter | None = None,
        store: KvStore | None = None,
    ) -> None:
        self.name = name
        self.device_note = ""  # which device it runs on, and why
        self.tokenizer = tokenizer
        self.template = template
        self.config = config or EngineConfig()
        self.on_step: Callable[[StepReport], None] | None = None
        self.block_size = backend.block_size
        self.vocab_size = backend.vocab_size
        self.leaves_cpu_free = backend.depth > 1
        self.num_kv_tokens = backend.num_blocks * backend.block_size
        self.max_context = min(backend.max_context, self.num_kv_tokens, self.config.max_context or self.num_kv_tokens)
        self._backend = backend
        self.grammars = Grammars(tokenizer, backend.vocab_size, parse_bytes(self.config.grammar_memory))
        if drafter is None and self.config.drafts:
            drafter = PastDrafter(tokenizer, backend.vocab_size, self.config.draft_history_tokens)
        endpoint, ask_all = self.config.kv_events, lambda: self._post(self._restate)
        self.kv_events = KvPublisher(endpoint, backend.block_size, ask_all) if endpoint else None
        changes = self.kv_events.changes if self.kv_events else None
        store = store or open_store(self.config, backend)
        self._core = EngineCore(
            tokenizer, backend, self.config, drafter=drafter, store=store, post=self._post, changes=changes
        )
        self.max_running = self._core.scheduler.max_running
        self._snapshotter = Snapshotter(self._core, partial(count_up, self._core, self.grammars))
        self._inbox: list[Callable[[], None]] = []
        self._arriving: set[str] = set()
        self._wake = threading.Condition()
        self._idle = threading.Event()
        self._idle.set()
        self._is_closing = False
        self._is_stopped = False
        self._has_ended = False  # the thread does nothing more with what others ask for
        self._at_end = ExitStack()
        for each in (backend, self._core, self.kv_events):  # the last first, and each of them once
            if each:
                self._at_end.callback(each.close)
        self.failure: Exception | None = None  # what ended the loop: this engine will never run again
        self.on_failure: Callable[[Exception], None] | None = None
        self._thread = threading.Thread(target=self._run, name="hotloop-engine", daemon=True)

    @classmethod
    def load(
        cls,
        model: str = DEFAULT_MODEL,
        config: EngineConfig | None = None,
        *,
        weights: WeightFormat = "auto",
        precision: Precision = "fast",
        device: Device = "auto",
        load_format: LoadFormat = "auto",
        meanwhile: Callable[[], object] = lambda: None,
    ) -> "Engine":
        """The model of that name or path, on this machine's GPU if it has one. Not started yet.

        `meanwhile` is called while other threads make the weights ready: a program can import there what it needs next.
        """
        from hotloop.engine.load import open_parts  # noqa: PLC0415 - half a second, and not for everyone

        config = config or EngineConfig()
        loaded, backend, drafter, note = open_parts(
            model,
            config,
            weights=weights,
            precision=precision,
            device=device,
            load_format=load_format,
            meanwhile=meanwhile,
        )
        name, template = loaded.name, loaded.template
        engine = cls(loaded.tokenizer, backend, config, name=name, template=template, drafter=drafter)
        engine.device_note = note
        return engine

    def start(self) -> Self:
        atexit.register(self.close)  # Python ends a thread that it finds in C++ at exit by ending the process
        self._thread.start()
        return self

    @property
    def is_running(self) -> bool:
        """Whether requests are admitted."""
        return self._thread.is_alive() and not self._is_closing

    @property
    def cache_refill_s(self) -> float:
        """How long it takes, lately, to prefill as many tokens as the cache holds."""
        return self._core.scheduler.cache_refill_s

    def has_room(self, num_prompt: int, max_tokens: int | None = None) -> bool:
        """Whether a prompt, and as much of an answer as is asked for, fit the context."""
        return num_prompt + (max_tokens or 1) <= self.max_context

    def close(self) -> None:
        """End what runs, stop the thread, give the memory back. Once closed it stays closed."""
        with self._wake:
            self._is_closing = self._is_stopped = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        if self._thread.ident is None:  # it never ran, and would hold this engine for ever
            self._thread = threading.Thread()
            self._at_end.close()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, requests: Sequence[Request], on_events: OnEvents, *, has_text: bool = True) -> None:
        """Queue requests, all or none, and compile new grammars. `on_events`, on the engine's thread, must not wait.

        Without `has_text` the listener detokenises, but for requests with stop strings, and an event of one more token
        may be `UNCOUNTED`.
        """
        for request in requests:
            self._validate(request)
        matchers = [open_matcher(request, self.grammars) for request in requests]
        with self._wake:
            self._check_admission(requests)
            self._arriving.update(request.id for request in requests)
            self._idle.clear()
            self._inbox.append(lambda: self._receive(requests, matchers, on_events, has_text=has_text))
            self._wake.notify()

    def abort(self, *request_ids: str) -> None:
        """End requests early; each hears of it by its terminal event. Unknown ids have ended already."""
        self._post(lambda: self._core.abort(*request_ids))

    def hold(self, token_ids: Sequence[int], hold: Hold, salt: str = "", session: str = "") -> None:
        """Tell when a prefix, of that session, is wanted again, on the clock of `time.monotonic`."""
        tokens = array("i", token_ids)
        self._post(lambda: self._core.scheduler.sessions.hold(tokens, hold, salt, session))

    def limit_classes(self, config: EngineConfig) -> None:
        """What classes of requests may wait, and their shares, are from now on as in `config`."""
        self.config = replace(self.config, **{name: getattr(config, name) for name in CLASS_SETTINGS})
        self._do(lambda: self._core.scheduler.limit_classes(config))

    def close_session(self, name: str) -> "Future[int]":
        """A session is over, and all that work for it: what the cache has of theirs alone is freed. How many blocks."""
        return self._ask(lambda tell: tell(self._core.scheduler.sessions.close(name)))

    @property
    def kv_segments(self) -> Segments | None:
        """How KV is cut that other servers may have; None: they may not."""
        return self._core.moves.segments if self._core.moves else None

    def read_kv(self, salt: str, token_ids: "array[int]") -> "Future[Copy | None]":
        """The last segment of these tokens, for another server; None if not all of it is on the device."""
        moves = self._core.moves
        return self._ask(lambda tell: tell(moves.read(salt, token_ids) if moves else None))

    def find_session(self, name: str) -> "Future[tuple[array[int], str] | None]":
        """The tokens of a session's last answer, and their salt, if it may come back."""
        return self._ask(lambda tell: tell(self._core.scheduler.sessions.admission.find_tail(name)))

    def take_kv(self, source: KvSource, salt: str, token_ids: Sequence[int], session: str) -> "Future[int]":
        """Have KV of a session that is going to come read from another server; how many of these tokens are known here
        then. It makes way for whatever runs."""
        moves = self._core.moves
        request = self._make_request(token_ids, None, Priority.BACKGROUND, session)
        request.salt, request.session, request.kv_source = salt, session, source
        return self._ask(lambda tell: moves.take(request, tell) if moves else tell(0))

    async def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, session_id: str = ""
    ) -> AsyncGenerator[TokenEvent, None]:
        """The answer as it comes. Closing the iterator aborts the request."""
        request = self._make_request(prompt, sampling, session_id=session_id)
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[TokenEvent] = asyncio.Queue()

        def on_events(told: Sequence[TokenEvent]) -> None:
            for event in told:
                loop.call_soon_threadsafe(events.put_nowait, event)

        self.submit([request], on_events)
        is_over = False
        try:
            while not is_over:
                event = await events.get()
                is_over = event.finish_reason is not None
                if event.error:
                    raise event.error
                yield event
        finally:
            if not is_over:
                self.abort(request.id)

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        priority: Priority = Priority.INTERACTIVE,
        session_id: str = "",
        grammar: Grammar | None = None,
    ) -> Completion:
        """The whole answer; waits for it."""
        request = self._make_request(prompt, sampling, priority, session_id, grammar)
        queue: SimpleQueue[Sequence[TokenEvent]] = SimpleQueue()
        self.submit([request], queue.put)
        events: list[TokenEvent] = []
        try:
            while not events or events[-1].finish_reason is None:
                events += queue.get()
        except KeyboardInterrupt:
            self.abort(request.id)
            raise
        last = events[-1]
        if last.error:
            raise last.error
        assert last.finish_reason is not None
        return Completion(
            text="".join(event.text for event in events),
            token_ids=tuple(token_id for event in events for token_id in event.token_ids),
            finish_reason=last.finish_reason,
            usage=last.usage,
            logprobs=tuple(logprob for event in events for logprob in event.logprobs),
        )

    def stats(self) -> EngineStats:
        """A snapshot, taken without stopping the loop: its numbers may be a step apart."""
        return count_up(self._core, self.grammars)

    def snapshot(self) -> "Future[EngineSnapshot]":
        """What runs and which session has which part of the cache, between two steps: it may take as long as one."""
        return self._snapshotter.ask(self._do)

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, wait for what runs, abort what is left after that time."""
        with self._wake:
            self._is_closing = True
        if not await asyncio.to_thread(self._idle.wait, timeout_s):
            self._post(lambda: self._core.fail_all(EngineClosed("the engine is shutting down")))
            await asyncio.to_thread(self._idle.wait, 5)

    def _restate(self) -> None:
        if self.kv_events:
            self.kv_events.restate(self._core.scheduler.tree.kept())

    def _make_request(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None,
        priority: Priority = Priority.INTERACTIVE,
        session_id: str = "",
        grammar: Grammar | None = None,
    ) -> Request:
        prompt_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return Request(secrets.token_hex(8), prompt_ids, sampling or SamplingParams(), priority, session_id, grammar)

    def _validate(self, request: Request) -> None:
        """Refuse what can never run, and settle what was left open: the seed and the length."""
        params, num_prompt = request.sampling, request.num_prompt
        if num_prompt == 0:
            raise RequestError("the prompt is empty", param="prompt")
        prompt = np.array(request.token_ids, np.int32)
        self._check_ids("prompt", prompt.min(), prompt.max())
        self._check_ids("logit_bias", *params.logit_bias)
        self._check_ids("stop_token_ids", *params.stop_token_ids)
        self._check_ids("resume", *request.begun_ids)
        if not self.has_room(num_prompt, params.max_tokens):
            raise PromptTooLong(num_prompt, self.max_context, params.max_tokens or 0)
        request.max_tokens = params.max_tokens or self.max_context - num_prompt
        request.seed = params.seed if params.seed is not None else secrets.randbits(63)

    def _check_ids(self, param: str, *token_ids: int) -> None:
        if not all(0 <= token_id < self._backend.vocab_size for token_id in token_ids):
            raise RequestError(f"{param} has a token id outside the vocabulary", param=param)

    def _check_admission(self, requests: Sequence[Request]) -> None:
        if self.failure:
            raise EngineClosed("the engine has failed; see its log")
        if self._is_closing:
            raise EngineClosed("the engine is shutting down")
        if not self._thread.is_alive():
            raise EngineClosed("the engine is not running: start it, or use it in a `with` statement")
        ids = {request.id for request in requests}
        if len(ids) < len(requests) or not ids.isdisjoint(self._arriving) or not ids.isdisjoint(self._core.listeners):
            raise RequestError("duplicate request id", param="id")
        num_waiting = len(self._core.scheduler.waiting) + len(self._arriving)
        if len(requests) > self.config.max_waiting:
            raise RequestError(
                f"{len(requests)} choices at once; at most {self.config.max_waiting} may wait", param="n"
            )
        if num_waiting + len(requests) > self.config.max_waiting:
            reason = f"{num_waiting} requests are waiting already; at most {self.config.max_waiting} may"
            raise Overloaded(reason, self._core.pace.mean_s * num_waiting)

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    def _do(self, command: Callable[[], None]) -> None:
        """Have this done on the engine's thread or, where that has ended, here: never by two threads at once."""
        with self._wake:
            if self._thread.is_alive() and not self._has_ended:
                self._post(command)
            else:
                command()

    def _ask(self, act: Callable[[Callable[[T], None]], None]) -> "Future[T]":
        """Have this done on the engine's thread; it tells what came of it, then or later. Whoever asked may have gone
        by then, which is no failure."""
        asked: Future[T] = Future()

        def tell(answer: T) -> None:
            if asked.set_running_or_notify_cancel():
                asked.set_result(answer)

        def attempt() -> None:
            try:
                act(tell)
            except Exception as error:
                if not asked.done() and asked.set_running_or_notify_cancel():
                    asked.set_exception(error)
                raise

        self._do(attempt)
        return asked

    def _run(self) -> None:
        """The loop: take what arrived, compute a step, sleep only when there is nothing to do."""
        try:
            while self._take_inbox():
                self._step()
        except Exception as error:
            log.exception("the engine's loop failed; the engine has stopped")
            self._fail(error)
        finally:  # no caller is left waiting for an event
            with self._wake:
                self._is_closing = self._is_stopped = True
            self._take_inbox()
            self._core.fail_all(EngineClosed("the engine was shut down"))
            self._idle.set()
            with self._wake:
                self._take_inbox()
                self._has_ended = True
            self._at_end.close()  # where it computed: a join does not wait for what the thread has of its own

    def _step(self) -> None:
        report = self._attempt("a step", self._core.step)
        if self.kv_events:
            self.kv_events.flush()
        if report and self.on_step:
            try:
                self.on_step(report)
            except Exception:  # whoever watches may fail; the requests that are watched do not
                log.exception("on_step failed")

    def _attempt(self, what: str, act: Callable[[], T]) -> T | None:
        """Whatever goes wrong ends the requests that ran, and the engine only if its device is gone."""
        try:
            return act()
        except DeviceLost as error:
            log.exception("%s failed; the engine has stopped", what)
            self._core.fail_all(error)
            self._is_stopped = True
            self._fail(error)
        except Exception as error:
            log.exception("%s failed", what)
            self._core.fail(error if isinstance(error, BackendError) else BackendError(f"{what} failed: {error!r}"))
        return None

    def _fail(self, error: Exception) -> None:
        self.failure = error
        if self.on_failure:
            self.on_failure(error)

    def _take_inbox(self) -> bool:
        """Do what callers asked; waits while there is no work, and before it is time for a next step. False when it is
        time to stop.
        """
        while True:
            if pause_s := self._core.pause_s:
                self._core.publish()
            with self._wake:
                while not self._inbox and not self._is_stopped and not self._core.has_work:
                    if self.config.debug_checks:
                        self._core.check()
                    if self._core.is_idle:
                        self._idle.set()
                    if not self._wake.wait(None if self._core.is_idle else PATIENCE_S):
                        break  # those who wait for the disk do not wait for ever
                if pause_s and not self._inbox and not self._is_stopped:
                    self._wake.wait(pause_s)
                commands, self._inbox = self._inbox, []
            for command in commands:
                self._attempt("a command", command)
            if self._is_stopped or not self._core.pause_s:
                return not self._is_stopped

    def _receive(
        self, requests: Sequence[Request], matchers: Sequence[Matcher | None], on_events: OnEvents, *, has_text: bool
    ) -> None:
        for request, matcher in zip(requests, matchers, strict=True):
            try:
                self._core.add(request, on_events, matcher, has_text=has_text)
            except Exception as error:
                log.exception("a request could not be added")
                self._core.refuse(request, on_events, HotloopError(f"the request could not be added: {error!r}"))
        with self._wake:
            self._arriving.difference_update(request.id for request in requests)
