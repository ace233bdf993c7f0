"""A drafter that is told what comes: right as often as one wishes, and never a changed token."""

import random

import pytest
from benchmarks.claims.told import ToldDrafter
from benchmarks.overhead import null_tokenizer

from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig
from hotloop.core.request import SamplingParams
from hotloop.engine.engine import Completion, Engine

TOKENIZER = null_tokenizer(1000)
PROMPT = random.Random(0).choices(range(1000), k=40)
PARAMS = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def answer(odds: float) -> Completion:
    config = EngineConfig(drafts=False)
    with Engine(TOKENIZER, NullBackend(), config) as engine:
        plain = engine.generate(PROMPT, PARAMS)
    drafter = ToldDrafter(NullBackend(), TOKENIZER, odds)
    drafter.tell(PROMPT, plain.token_ids)
    with Engine(TOKENIZER, NullBackend(), config, drafter=drafter) as engine:
        drafted = engine.generate(PROMPT, PARAMS)
    assert drafted.token_ids == plain.token_ids
    return drafted


def test_guesses_are_as_right_as_they_are_said_to_be():
    sure, unsure, wrong = (answer(odds).usage for odds in (1.0, 0.7, 0.0))
    assert sure.num_accepted == sure.num_drafted > 40
    assert 0 < unsure.num_accepted < unsure.num_drafted
    assert wrong.num_accepted == 0
    assert sure.num_steps < unsure.num_steps < wrong.num_steps <= 60


def test_a_prompt_that_nothing_was_told_of_is_not_guessed_for():
    drafter = ToldDrafter(NullBackend(), TOKENIZER)
    with Engine(TOKENIZER, NullBackend(), EngineConfig(drafts=False), drafter=drafter) as engine:
        assert engine.generate(PROMPT, PARAMS).usage.num_drafted == 0


@pytest.mark.parametrize("odds", [0.5, 1.0])
def test_the_draft_model_is_really_run(odds: float):
    num_runs = 0

    def count(_: object) -> None:
        nonlocal num_runs
        num_runs += 1

    drafter = ToldDrafter(NullBackend(on_run=count), TOKENIZER, odds)
    drafter.tell(PROMPT, [1] * 60)
    with Engine(TOKENIZER, NullBackend(), EngineConfig(drafts=False), drafter=drafter) as engine:
        usage = engine.generate(PROMPT, PARAMS).usage
    assert num_runs >= usage.num_drafted > 0
