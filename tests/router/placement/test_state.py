"""What is known of real engines that publish what they keep, and what they then find in their caches."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.engine.tiny import TOKENIZER, greedy, make_engine, until_idle
from tests.router.placement.publishing import FakePublisher, stored, until
from tests.server.calls import TOOLS
from tests.server.serving import HELLO, MODEL, Serving

from hotloop.core.config import EngineConfig
from hotloop.core.errors import RemoteError
from hotloop.engine.engine import Engine
from hotloop.engine.kvcache.kv_events import EventEncoder
from hotloop.router.placement.exact import MIN_RUN_TOKENS
from hotloop.router.placement.state import ExactState, ask_tokens

ANYWHERE = "tcp://127.0.0.1:0"
TRUNK = [i * 7 % 250 for i in range(60)]


async def no_tokens(question: Mapping[str, Any]) -> list[int] | None:
    raise AssertionError("these prompts are tokens already")


async def matched(state: ExactState, body: Mapping[str, Any]) -> dict[str, int]:
    token_ids = await state.token_ids(body)
    return state.match(token_ids) if token_ids else {}


async def settle(engine: Engine, state: ExactState, name: str) -> None:
    """Until all that an engine keeps is known, and nothing else."""
    await asyncio.to_thread(until_idle, engine)
    wording = EventEncoder(engine.block_size)
    for kept in engine._core.scheduler.tree.kept():
        wording.render(kept)
    names = set(wording._names.values())
    held = state.held[name]
    await until(lambda: held.is_complete and held.blocks.keys() == names)
    held.check()


@asynccontextmanager
async def replica_set(*names: str, num_blocks: int = 64) -> AsyncIterator[tuple[ExactState, dict[str, Engine]]]:
    state = ExactState(no_tokens)
    engines = {name: make_engine(num_blocks, kv_events=ANYWHERE).start() for name in names}
    try:
        for name, engine in engines.items():
            assert engine.kv_events
            state.add_replica(name, engine.kv_events.endpoint, engine.kv_events.replay_endpoint)
        yield state, engines
    finally:
        await state.aclose()
        for engine in engines.values():
            await asyncio.to_thread(engine.close)


async def ask(engine: Engine, prompt: Sequence[int]) -> int:
    """How much of a prompt an engine found in its cache."""
    completion = await asyncio.to_thread(engine.generate, prompt, greedy(8))
    return completion.usage.num_cached


async def test_what_is_known_is_what_an_engine_finds() -> None:
    rng = random.Random(0)
    async with replica_set("a", "b", num_blocks=40) as (state, engines):
        for _ in range(40):
            name = rng.choice("ab")
            prompt = TRUNK[: rng.randrange(61)] + [rng.randrange(250) for _ in range(rng.randrange(1, 40))]
            for each, engine in engines.items():
                await settle(engine, state, each)
            known = await matched(state, {"prompt": prompt})
            assert known.keys() == engines.keys()
            found = await ask(engines[name], prompt)
            assert known[name] == found // MIN_RUN_TOKENS * MIN_RUN_TOKENS
        assert engines["a"].stats().num_evicted_blocks > 0
        assert engines["a"].stats().usage.num_cached > 0


async def test_another_can_take_the_name_of_a_replica_at_once() -> None:
    async with replica_set("a") as (state, _):
        before, removing = state.held["a"], state.remove_replica("a")
        state.add_replica("a", "tcp://127.0.0.1:9")
        await removing
        assert state.held["a"] is not before
        assert not state._followers["a"].cancelled()


async def test_a_replica_that_is_removed_is_forgotten() -> None:
    async with replica_set("a", "b") as (state, engines):
        for name, engine in engines.items():
            await ask(engine, TRUNK)
            await settle(engine, state, name)
        assert await matched(state, {"prompt": TRUNK}) == {"a": 48, "b": 48}
        await state.remove_replica("a")
        await state.remove_replica("a")
        assert await matched(state, {"prompt": TRUNK}) == {"b": 48}
        state.held["b"].check()


async def test_one_who_follows_late_knows_everything() -> None:
    async with replica_set("a") as (state, engines):
        for i in range(5):
            await ask(engines["a"], [*TRUNK, i])
        await settle(engines["a"], state, "a")
        late = ExactState(no_tokens)
        publisher = engines["a"].kv_events
        assert publisher
        publisher._batches.popleft()  # as after many more
        late.add_replica("a", publisher.endpoint, publisher.replay_endpoint)
        await settle(engines["a"], late, "a")
        await settle(engines["a"], state, "a")
        assert await matched(late, {"prompt": TRUNK}) == await matched(state, {"prompt": TRUNK}) == {"a": 48}
        await late.aclose()


async def test_an_engine_that_is_started_anew_at_the_same_address() -> None:
    async with replica_set("a") as (state, engines):
        for i in range(2):
            await ask(engines["a"], [*TRUNK, i])
        await settle(engines["a"], state, "a")
        assert engines["a"].kv_events
        endpoints = engines["a"].kv_events.endpoint, engines["a"].kv_events.replay_endpoint
        await asyncio.to_thread(engines["a"].close)
        with FakePublisher(endpoints=endpoints) as publisher:
            async with asyncio.timeout(30):
                assert await publisher.replay() > 0  # is it still the same?
                assert await publisher.replay() == 0
            await until(lambda: state.match(TRUNK) == {"a": 0})


async def test_prompts_that_share_with_nobody() -> None:
    async with replica_set("a") as (state, _):
        assert await matched(state, {"prompt": TRUNK, "cache_salt": "mine"}) == {}


class Cutter:
    """Cuts prompts, and counts how often."""

    def __init__(self) -> None:
        self.questions: list[Mapping[str, Any]] = []

    async def __call__(self, question: Mapping[str, Any]) -> list[int] | None:
        self.questions.append(question)
        return TOKENIZER.encode(question["messages"][0]["content"]) if "messages" in question else None


@asynccontextmanager
async def told(state: ExactState) -> AsyncIterator[ExactState]:
    """A replica that says it has sixteen exclamation marks."""
    with FakePublisher(keeps=None) as publisher:
        state.add_replica("a", publisher.endpoint)
        async with asyncio.timeout(30):
            await publisher.subscribed()
        await publisher.publish(stored([1], TOKENIZER.encode("!" * 16)))
        await until(lambda: state.held["a"].is_complete)
        try:
            yield state
        finally:
            await state.aclose()


CHAT = {"model": "m", "messages": [{"role": "user", "content": "!" * 20}], "temperature": 1, "tools": None}


async def test_the_tokens_of_a_chat_are_asked_for_once() -> None:
    cutter = Cutter()
    async with told(ExactState(cutter, deadline_s=30)) as state:
        assert await matched(state, CHAT) == await matched(state, {**CHAT, "temperature": 0}) == {"a": 16}
        assert cutter.questions == [{"model": "m", "messages": CHAT["messages"], "add_generation_prompt": True}]
        assert await matched(state, {"model": "m", "prompt": "hello"}) == {}
        assert cutter.questions[1:] == [{"model": "m", "prompt": "hello"}]


async def test_nobody_waits_long_for_tokens() -> None:
    async def never(question: Mapping[str, Any]) -> list[int] | None:
        await asyncio.Event().wait()
        return None

    async def broken(question: Mapping[str, Any]) -> list[int] | None:
        raise RemoteError("it is not there")

    async with told(ExactState(never, deadline_s=0.001)) as state:
        assert await matched(state, CHAT) == {}
    async with told(ExactState(broken)) as state:
        assert await matched(state, CHAT) == {}


async def test_nothing_is_asked_where_nobody_publishes() -> None:
    assert await matched(ExactState(no_tokens), CHAT) == {}


async def test_a_server_tells_the_tokens_of_chats_that_it_then_finds() -> None:
    config = EngineConfig(debug_checks=True, kv_events=ANYWHERE)
    script = ["One two three four five six.", "Seven eight nine ten eleven.", "Twelve."]
    with Serving(engine_config=config, script=script) as serving:

        async def tokenize(question: Mapping[str, Any]) -> list[int] | None:
            answer = await asyncio.to_thread(serving.http.post, "/tokenize", json=dict(question))
            return list(answer.json()["tokens"])

        state, publisher, messages = ExactState(tokenize, deadline_s=30), serving.engine.kv_events, [*HELLO]
        assert publisher
        state.add_replica("a", publisher.endpoint, publisher.replay_endpoint)
        for turn in range(len(script)):
            body = {"model": MODEL, "messages": messages, "tools": TOOLS}
            await settle(serving.engine, state, "a")
            known = await matched(state, body)
            answer = (await asyncio.to_thread(serving.http.post, "/v1/chat/completions", json=body)).json()
            assert known == {"a": answer["usage"]["prompt_tokens_details"]["cached_tokens"]}
            assert (known["a"] > 0) == (turn > 0)
            messages = [*messages, answer["choices"][0]["message"], *HELLO]
        await state.aclose()


@pytest.mark.parametrize("body", [{}, {"input": "hi"}, {"prompt": ["a", "b"]}, {"prompt": [2**40]}, {"prompt": None}])
def test_bodies_without_a_prompt_that_can_be_cut(body: dict[str, Any]) -> None:
    assert ask_tokens(body) is None
