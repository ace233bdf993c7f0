"""An engine without a model, for tests: a token is a byte, two special ones beside."""

import random
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from tests.backends.device import NullDevice
from tokenizers import Tokenizer as InnerTokenizer
from tokenizers import decoders, models, pre_tokenizers

from hotloop.backends.backend import Backend, Batch
from hotloop.core.config import EngineConfig
from hotloop.core.request import Request, SamplingParams, TokenEvent
from hotloop.engine.drafting.drafter import Drafter
from hotloop.engine.engine import Completion, Engine
from hotloop.engine.snapshot import EngineStats
from hotloop.models.tokenizer import Tokenizer

BLOCK_SIZE = 4
VOCAB_SIZE = 258
SIZE = {"block_size": BLOCK_SIZE, "vocab_size": VOCAB_SIZE}


def byte_tokenizer() -> Tokenizer:
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = InnerTokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Tokenizer(inner)


TOKENIZER = byte_tokenizer()
[EOS_ID] = TOKENIZER.eos_ids


def greedy(max_tokens: int = 8, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **changes)


def make_request(prompt: Sequence[int], name: str = "r", **changes: Any) -> Request:
    return Request(name, prompt, changes.pop("sampling", greedy()), **changes)


def make_engine(
    num_blocks: int = 256,
    on_run: Callable[[Batch], None] | None = None,
    depth: int = 1,
    num_states: int = 0,
    num_window_blocks: int = 0,
    num_host_blocks: int = 0,
    num_host_states: int = 0,
    backend: Backend | None = None,
    drafter: Drafter | None = None,
    **settings: Any,
) -> Engine:
    rooms = {"num_blocks": num_blocks, "num_window_blocks": num_window_blocks, "num_host_blocks": num_host_blocks}
    slots = {"num_states": num_states, "num_host_states": num_host_states}
    backend = backend or NullDevice(**SIZE, **rooms, **slots, depth=depth, on_run=on_run)
    config = EngineConfig(debug_checks=True, **{"draft_history_tokens": 10_000} | settings)
    return Engine(TOKENIZER, backend, config, drafter=drafter)


class Listener:
    """Collects what an engine says of some requests."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[TokenEvent] = SimpleQueue()
        self.events: dict[str, list[TokenEvent]] = {}

    def __call__(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            self._queue.put(event)

    def wait(self, *request_ids: str) -> None:
        """Until these have ended."""
        while not all(self.is_over(request_id) for request_id in request_ids):
            self.next()

    def next(self) -> TokenEvent:
        event = self._queue.get(timeout=30)
        assert not self.is_over(event.request_id), "an event after the terminal one"
        self.events.setdefault(event.request_id, []).append(event)
        return event

    def is_over(self, request_id: str) -> bool:
        events = self.events.get(request_id)
        return bool(events) and events[-1].finish_reason is not None

    def last(self, request_id: str) -> TokenEvent:
        return self.events[request_id][-1]

    def token_ids(self, request_id: str) -> list[int]:
        return [token_id for event in self.events[request_id] for token_id in event.token_ids]


def until_idle(engine: Engine) -> None:
    assert engine._idle.wait(30)


def run_alone(prompt: Sequence[int], sampling: SamplingParams) -> Completion:
    """What an engine that does nothing else, and shares nothing, says to this prompt."""
    with make_engine(prefix_cache=False, drafts=False, forced_tokens=False) as engine:
        return engine.generate(prompt, sampling)


def check_prompts(engine: Engine, expected: list[list[int]]) -> EngineStats:
    """What it says to `PROMPTS` is this, and again from the cache."""
    sampling = greedy(len(expected[0]))
    with engine:
        assert run_together(engine, PROMPTS, sampling) == expected
        assert run_together(engine, PROMPTS, sampling) == expected, "and again, from the cache"
        return engine.stats()


def run_together(engine: Engine, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> list[list[int]]:
    """The output of each prompt, all submitted at once."""
    listener = Listener()
    requests = [make_request(prompt, f"r{i}", sampling=sampling) for i, prompt in enumerate(prompts)]
    engine.submit(requests, listener)
    listener.wait(*(request.id for request in requests))
    return [listener.token_ids(request.id) for request in requests]


def make_prompts(seed: int = 0) -> list[list[int]]:
    """Of all lengths, many with a beginning in common."""
    rng = random.Random(seed)
    trunk = [rng.randrange(250) for _ in range(60)]
    return [trunk[: rng.randrange(61)] + [rng.randrange(250) for _ in range(rng.randrange(1, 30))] for _ in range(10)]


PROMPTS = make_prompts()
