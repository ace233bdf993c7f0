"""Drafts change how many steps an answer takes, and nothing else."""

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count

import pytest
from tests.backends.device import NullDevice
from tests.engine.tiny import (
    PROMPTS,
    SIZE,
    TOKENIZER,
    VOCAB_SIZE,
    Listener,
    greedy,
    make_engine,
    make_request,
    run_alone,
    until_idle,
)

from hotloop.core.config import EngineConfig
from hotloop.core.request import Request, SamplingParams, TokenEvent
from hotloop.engine.core import EngineCore
from hotloop.engine.decode import TokenDecoder
from hotloop.engine.drafting.drafter import Drafter, DraftRequest, Proposal
from hotloop.engine.drafting.speculation import Draft, Speculator
from hotloop.engine.engine import Completion, Engine
from hotloop.engine.step import Slice

PARAMS = [
    greedy(40),
    SamplingParams(temperature=1, seed=5, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.9, seed=6, max_tokens=30, repetition_penalty=1.3, frequency_penalty=0.5),
    greedy(40, logprobs=2),
]


class Oracle:
    """Knows what each prompt is answered with, and says so, but for a share of mistakes."""

    model = None

    def __init__(self, answers: dict[tuple[int, ...], Sequence[int]], error_rate: float, seed: int = 0) -> None:
        self._answers = answers
        self._error_rate = error_rate
        self._rng = random.Random(seed)
        self.num_learned = 0

    def propose(self, wants: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal([*self._propose(want)]) for want in wants]

    def learn(self, request: Request) -> None:
        self.num_learned += 1

    def close(self) -> None:
        self._answers = {}

    def _propose(self, want: DraftRequest) -> Iterator[int]:
        begin = len(want.token_ids) - want.request.num_prompt
        for token_id in self._answers.get(tuple(want.request.prompt_ids), ())[begin : begin + want.max_tokens]:
            is_wrong = self._rng.random() < self._error_rate
            yield self._rng.randrange(VOCAB_SIZE) if is_wrong else token_id


def run(engine: Engine, requests: Sequence[Request]) -> dict[str, list[TokenEvent]]:
    listener = Listener()
    with engine:
        engine.submit(requests, listener)
        listener.wait(*(request.id for request in requests))
        until_idle(engine)
    return listener.events


def run_alike(drafter: Drafter, requests: Sequence[Request]) -> dict[str, list[TokenEvent]]:
    """With a clock on which all steps take about the same time."""
    events: dict[str, list[TokenEvent]] = {request.id: [] for request in requests}
    config, clock = EngineConfig(max_draft_tokens=7, debug_checks=True), count(time.monotonic(), 0.001)
    backend = NullDevice(**SIZE, num_blocks=256)
    core = EngineCore(TOKENIZER, backend, config, drafter=drafter, clock=clock.__next__)
    for request in requests:
        request.max_tokens = request.sampling.max_tokens or 0
        core.add(request, events[request.id].extend)
    while core.has_work:
        core.step()
    return events


def tokens_of(events: Sequence[TokenEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


@cache
def all_alone(number: int) -> list[Completion]:
    return [run_alone(prompt, PARAMS[number]) for prompt in PROMPTS]


@pytest.mark.parametrize("error_rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "penalised", "logprobs"])
@pytest.mark.sampled(4)
def test_drafts_change_no_token(params: SamplingParams, error_rate: float) -> None:
    alone = all_alone(PARAMS.index(params))
    oracle = Oracle({tuple(p): done.token_ids for p, done in zip(PROMPTS, alone, strict=True)}, error_rate)
    requests = [make_request(prompt, f"r{i}", sampling=params) for i, prompt in enumerate(PROMPTS)]
    engine = make_engine(drafter=oracle, num_blocks=60)
    events = run(engine, requests)
    for request, done in zip(requests, alone, strict=True):
        assert tuple(tokens_of(events[request.id])) == done.token_ids
        assert "".join(event.text for event in events[request.id]) == done.text
        assert [lp for event in events[request.id] for lp in event.logprobs] == list(done.logprobs)
        last = events[request.id][-1]
        assert last.finish_reason == done.finish_reason
        assert last.usage.num_accepted <= last.usage.num_drafted
        assert last.usage.num_output == last.usage.num_sampled == done.usage.num_output
    assert oracle.num_learned == len(requests)
    if error_rate == 0:
        assert sum(events[r.id][-1].usage.num_steps for r in requests) < sum(d.usage.num_output for d in alone)


def test_a_right_draft_saves_steps_and_a_request_without_shortcuts_makes_none() -> None:
    prompt = PROMPTS[0]
    done = run_alone(prompt, greedy(64))
    oracle = Oracle({tuple(prompt): done.token_ids}, 0)
    requests = [
        make_request(prompt, "quick", sampling=greedy(64)),
        make_request(prompt, "plain", sampling=greedy(64, shortcuts=False)),
    ]
    events = run_alike(oracle, requests)
    quick, plain = events["quick"][-1].usage, events["plain"][-1].usage
    assert tokens_of(events["quick"]) == tokens_of(events["plain"]) == list(done.token_ids)
    assert (plain.num_drafted, plain.num_steps) == (0, 64)
    assert quick.num_accepted == quick.num_drafted > 32
    assert quick.num_steps < 32


@pytest.mark.parametrize("stop_at", [1, 3, 7, 20])
def test_a_stop_in_the_middle_of_a_draft_ends_the_answer_there(stop_at: int) -> None:
    prompt = PROMPTS[1]
    done = run_alone(prompt, greedy(30))
    for changes in ({"stop_token_ids": frozenset({done.token_ids[stop_at]})}, {"max_tokens": stop_at}):
        params = greedy(**{"max_tokens": 30, **changes})
        expected = run_alone(prompt, params)
        events = run(
            make_engine(drafter=Oracle({tuple(prompt): done.token_ids}, 0)), [make_request(prompt, sampling=params)]
        )
        last = events["r"][-1]
        assert tuple(tokens_of(events["r"])) == expected.token_ids
        assert (last.finish_reason, last.usage.num_output) == (expected.finish_reason, expected.usage.num_output)


def test_drafts_leave_the_cache_as_it_was() -> None:
    """What rejected drafts wrote is overwritten, and never shared."""
    params = greedy(40)
    alone = {tuple(prompt): run_alone(prompt, params).token_ids for prompt in PROMPTS}
    engine = make_engine(drafter=Oracle(alone, 0.5))
    with engine:
        for _ in range(2):
            listener = Listener()
            requests = [make_request(prompt, f"r{i}", sampling=params) for i, prompt in enumerate(PROMPTS)]
            engine.submit(requests, listener)
            listener.wait(*(request.id for request in requests))
            for request in requests:
                assert tuple(listener.token_ids(request.id)) == alone[tuple(request.prompt_ids)]
                longer = [*request.prompt_ids, *listener.token_ids(request.id), 7]
                assert engine.generate(longer, params).token_ids == run_alone(longer, params).token_ids
        until_idle(engine)


def test_sampling_with_drafts_follows_the_distribution() -> None:
    """The second token, over many seeds, drafted wrongly or rightly half of the time each: as without drafts."""
    prompt = PROMPTS[2]
    seeds = range(400)

    def second_tokens(error_rate: float | None) -> Counter[int]:
        params = [SamplingParams(temperature=1.5, top_k=4, seed=seed, max_tokens=2, ignore_eos=True) for seed in seeds]
        requests = [make_request(prompt, f"r{seed}", sampling=params[seed]) for seed in seeds]
        likeliest = run_alone(prompt, greedy(2)).token_ids
        oracle = Oracle({tuple(prompt): likeliest}, error_rate or 0)
        events = run(make_engine(drafter=oracle, drafts=error_rate is not None, max_waiting=500), requests)
        return Counter(tokens_of(events[request.id])[1] for request in requests)

    plain, drafted = second_tokens(None), second_tokens(0.5)
    assert len(plain) > 1
    assert drafted == plain


def draft_of(*kinds: int | None) -> Draft:
    part = Slice(make_request([1], "r"), 0, 1, wants_token=True)
    return Draft(part, None, len(kinds), len(kinds), token_ids=[7] * len(kinds), match_lengths=[*kinds])


def test_what_follows_a_draft_is_as_likely_as_the_draft() -> None:
    """What the grammar forces is worth computing to its end, while drafts on drafts are ever less likely."""
    speculator = Speculator(Oracle({}, 0), TokenDecoder([], can_force=True), max_draft_tokens=12)
    forced, drafted = speculator._worth([draft_of(1, *[None] * 11), draft_of(*[1] * 12)], 2, 2)
    assert (forced, 2 < drafted < 8) == (12, True)
