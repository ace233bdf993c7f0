"""An engine in another process is used like one of this process: the same events, and nothing left behind."""

import asyncio
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.backends.scripted import ScriptedBackend
from tests.engine.tiny import TOKENIZER
from tests.properties import seeds
from tests.server.serving import HELLO, Hosting, Serving, only, until

from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig
from hotloop.core.errors import EngineClosed, HotloopError, PromptTooLong, RequestError
from hotloop.core.grammar import Grammar
from hotloop.core.request import FinishReason, Request, SamplingParams, TokenEvent
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.engine import Engine
from hotloop.server.engine_client import EngineClient, EngineFacts, LocalEngine
from hotloop.server.fronts.host import EngineHost
from hotloop.server.fronts.hub import Hub
from hotloop.server.fronts.remote import RemoteEngine

WORDS = "The naïve fox 🦊 jumps.\nIt is late, and the answer is 42; nobody knows why. "


def make_engine() -> Engine:
    backend = ScriptedBackend(TOKENIZER, [WORDS * 3], block_size=16, num_blocks=256)
    return Engine(TOKENIZER, backend, EngineConfig(debug_checks=True, drafts=False), name="tiny")


@pytest.fixture
def engine() -> Iterator[Engine]:
    with make_engine() as engine:
        yield engine


class Linked:
    """A remote engine and its host, for as long as the context lives."""

    def __init__(self, engine: Engine) -> None:
        ours, self.theirs = socket.socketpair()
        self._hosting = Hosting(engine, ours)
        facts = EngineFacts.of(engine)
        self.remote = RemoteEngine(self.theirs, facts, engine.tokenizer, engine.template, grammar_bytes=1 << 20)

    async def __aenter__(self) -> RemoteEngine:
        self._hosting.__enter__()
        self.remote.start()
        return self.remote

    async def __aexit__(self, *_: object) -> None:
        self.remote.stop()
        await asyncio.to_thread(self._hosting.__exit__)

    @property
    def num_hosted(self) -> int:
        return self._hosting.num_hosted


async def run(client: EngineClient, *requests: Request) -> list[TokenEvent]:
    """All the events of these requests, once all have ended."""
    loop, told = asyncio.get_running_loop(), asyncio.Queue[TokenEvent]()

    def on_events(events: Sequence[TokenEvent]) -> None:
        for event in events:
            loop.call_soon_threadsafe(told.put_nowait, event)

    await client.submit(requests, on_events)
    events: list[TokenEvent] = []
    while sum(event.finish_reason is not None for event in events) < len(requests):
        events.append(await asyncio.wait_for(told.get(), 60))
    for request in requests:
        client.release(request)
    return events


def random_request(rng: random.Random, name: str) -> Request:
    sampling = SamplingParams(
        temperature=0,
        max_tokens=rng.randint(1, 60),
        stop=rng.choice([(), ("late",), ("42", "🦊")]),
        include_stop=rng.random() < 0.5,
        logprobs=rng.choice([None, None, 2]),
        ignore_eos=rng.random() < 0.3,
        keep_special=rng.random() < 0.3,
    )
    grammar = Grammar("regex", "[a-z]{4}(yes|no)") if rng.random() < 0.2 else None
    return Request(name, TOKENIZER.encode("hello" * rng.randint(1, 20)), sampling, grammar=grammar, seed=1)


def facts_of(request: Request) -> tuple[object, ...]:
    usage = request.usage._replace(turn_wait_s=0.0, batch_wait_s=0.0, room_wait_s=0.0, sessions_wait_s=0.0)
    is_timed = [each is not None for each in (request.first_scheduled_at, request.first_token_at)]
    return request.token_ids, request.finish_reason, usage, is_timed, request.num_computed_at_end, request.session


@pytest.mark.parametrize("seed", seeds(12))
async def test_the_same_answers_and_counts_near_and_far(seed: int) -> None:
    told, known = [], []
    for is_far in (False, True):
        rng, requests = random.Random(seed), []
        with make_engine() as engine:
            async with Linked(engine) as remote:
                client = remote if is_far else LocalEngine(engine, "tiny")
                said = []
                for i in range(6):
                    request = random_request(rng, f"r{i}")
                    events = await run(client, request)
                    said.append("".join(event.text for event in events))
                    said.append(str([(event.token_ids, event.stop_match, event.logprobs) for event in events]))
                    requests.append(request)
                told.append(said)
                known.append([facts_of(request) for request in requests])
    assert told[0] == told[1]
    assert known[0] == known[1]


async def test_a_refusal_is_raised_as_the_engine_raised_it(engine: Engine) -> None:
    async with Linked(engine) as remote:
        too_long = Request("long", [5] * 100_000, SamplingParams())
        with pytest.raises(PromptTooLong):
            await remote.submit([too_long], lambda events: None)
        with pytest.raises(RequestError, match="regular expression"):
            await remote.submit([Request("bad", [5], SamplingParams(), grammar=Grammar("regex", "("))], lambda _: None)
        assert (await run(remote, Request("good", [5], SamplingParams(max_tokens=3))))[-1].finish_reason


async def test_an_engine_that_is_gone_ends_every_answer() -> None:
    events: list[TokenEvent] = []
    backend = NullBackend(block_size=16, num_blocks=512, vocab_size=TOKENIZER.vocab_size)
    with Engine(TOKENIZER, backend, name="tiny") as engine:
        linked = Linked(engine)
        async with linked as remote:
            endless = Request("r", [5, 6, 7], SamplingParams(ignore_eos=True, max_tokens=8000))
            await remote.submit([endless], events.extend)
            asked = asyncio.create_task(remote.ask("drain", 1000))
            await asyncio.sleep(0)
            linked._hosting.break_off()
            with pytest.raises(EngineClosed):
                await asyncio.wait_for(asked, 60)
            assert events[-1].finish_reason is FinishReason.ERROR
            assert isinstance(events[-1].error, EngineClosed)
            assert remote.is_lost
            with pytest.raises(EngineClosed):
                await remote.submit([endless], events.extend)
        until(lambda: not engine.stats().num_running and not engine.stats().num_blocks_used)


async def test_a_front_that_gives_up_leaves_nothing(engine: Engine) -> None:
    linked = Linked(engine)
    async with linked as remote:
        for i in range(20):
            grammar = Grammar("regex", f"a{{{i + 1}}}b+") if i % 2 else None
            request = Request(f"r{i}", [5, 6], SamplingParams(ignore_eos=True, max_tokens=2000), grammar=grammar)
            submitting = asyncio.create_task(remote.submit([request], lambda events: None))
            for _ in range(i % 4):
                await asyncio.sleep(0)
            if not submitting.done():
                submitting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await submitting
        await asyncio.to_thread(until, lambda: not engine.stats().num_running and not linked.num_hosted)
        until(lambda: not engine.stats().num_blocks_used)


async def test_a_guided_request_that_is_given_up_here_is_aborted() -> None:
    aborted: list[str] = []
    may_run = threading.Event()
    size = {"block_size": 16, "num_blocks": 256, "vocab_size": TOKENIZER.vocab_size, "max_context": 4096}
    backend = NullBackend(**size, on_run=lambda batch: may_run.wait(30) and None)
    with Engine(TOKENIZER, backend, EngineConfig(drafts=False), name="tiny") as engine:
        local = LocalEngine(engine, "tiny")

        def abort(*request_ids: str) -> None:
            engine.abort(*request_ids)
            aborted.extend(request_ids)

        local.abort = abort
        for i in range(8):
            grammar = Grammar("lark", f'start: "{"a" * (i + 1)}" /[bc]+/')
            request = Request(f"r{i}", [5, 6], SamplingParams(max_tokens=2000), grammar=grammar)
            submitting = asyncio.create_task(local.submit([request], lambda events: None))
            for _ in range(1 + i % 4):
                await asyncio.sleep(0)
            submitting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await submitting
        async with asyncio.timeout(60):
            while len(aborted) < 8:  # noqa: ASYNC110  a thread each is on its way
                await asyncio.sleep(0.01)
        may_run.set()
        await asyncio.to_thread(until, lambda: engine.stats().num_finished[FinishReason.ABORT] == 8)


async def test_whatever_goes_wrong_in_the_engines_process_a_front_is_answered() -> None:
    async def fail(asked: Any) -> None:
        raise RuntimeError("a mistake")

    class Mistaken(Engine):
        def submit(self, requests: Sequence[Request], on_events: Any, *, has_text: bool = True) -> None:
            raise RuntimeError("a mistake")

    backend = ScriptedBackend(TOKENIZER, [WORDS], block_size=16, num_blocks=64)
    engine = Mistaken(TOKENIZER, backend, EngineConfig(drafts=False), name="tiny")
    ours, theirs = socket.socketpair()
    host = EngineHost(engine, Hub(engine, "tiny"), ours, answers={"mistake": fail})
    remote = RemoteEngine(theirs, EngineFacts.of(engine), TOKENIZER, None, grammar_bytes=1 << 20)
    host.start()
    remote.start()
    with pytest.raises(HotloopError, match="internal server error"):
        await asyncio.wait_for(remote.ask("mistake"), 60)
    for i, grammar in enumerate((None, Grammar("regex", "a+"))):
        request = Request(f"r{i}", [5, 6], SamplingParams(), grammar=grammar)
        with pytest.raises(HotloopError, match="internal server error"):
            await asyncio.wait_for(remote.submit([request], lambda events: None), 60)
    assert not host.num_hosted
    assert await remote.is_ready() is False, "the link goes on"
    remote.stop()
    await host.close()
    engine.close()


async def test_holds_reach_the_engine_until_a_request_is_released(engine: Engine) -> None:
    async with Linked(engine) as remote:
        request = Request("r", list(range(3, 67)), SamplingParams(max_tokens=4))
        await run_unreleased(remote, request)
        remote.hold(request, Hold(HoldKind.PINNED, 1e12, 60.0), 64)
        assert await remote.is_ready()  # answered in order: the engine's process has read what came before

        def kinds() -> set[HoldKind]:
            return {node.hold.kind for node in list(engine._core.scheduler.tree.nodes()) if node.hold}

        await asyncio.to_thread(until, lambda: HoldKind.PINNED in kinds())
        remote.release(request)


async def run_unreleased(remote: RemoteEngine, request: Request) -> None:
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_events(events: Sequence[TokenEvent]) -> None:
        if any(event.finish_reason for event in events):
            loop.call_soon_threadsafe(is_over.set)

    await remote.submit([request], on_events)
    await asyncio.wait_for(is_over.wait(), 60)


def test_a_server_whose_link_breaks_ends_its_answers_and_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Serving, "is_apart", True)
    with (
        Serving() as serving,
        serving.http.stream(
            "POST",
            "/v1/chat/completions",
            json={"messages": HELLO, "ignore_eos": True, "stream": True, **only("a")},
        ) as response,
    ):
        lines = response.iter_lines()
        while "content" not in next(lines):
            pass
        serving._hosting.break_off()
        rest = "\n".join(lines)
        assert "the engine's process has ended" in rest
        serving.join()
