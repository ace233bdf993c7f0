"""The same tokens, however they are computed: cached or not, batched or alone, chunked, preempted."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.tiny import (
    BLOCK_SIZE,
    PROMPTS,
    check_prompts,
    greedy,
    make_engine,
    make_prompts,
    run_alone,
    run_together,
)
from tests.properties import examples

from hotloop.core.request import SamplingParams


@pytest.fixture(scope="module")
def undisturbed() -> list[list[int]]:
    return [list(run_alone(prompt, greedy(40)).token_ids) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prefix_cache": False},
        {"max_running": 1},
        {"max_running": 3},
        {"max_step_tokens": 1},
        {"max_step_tokens": 7},
        {"max_step_tokens": 16, "prefix_cache": False},
        {"num_blocks": 34},
        {"num_blocks": 34, "prefix_cache": False},
        {"num_blocks": 34, "max_step_tokens": 9, "admission": False},
    ],
    ids=str,
)
@pytest.mark.sampled(3)
def test_the_same_is_said_however_it_is_computed(changes: dict[str, Any], undisturbed: list[list[int]]) -> None:
    stats = check_prompts(make_engine(**changes), undisturbed)
    assert stats.num_blocks_used == 0
    assert (stats.num_preemptions > 0) == ("num_blocks" in changes), "what they say fills a small engine several times"


def test_random_tokens_do_not_depend_on_the_batch_either() -> None:
    sampling = SamplingParams(seed=5, max_tokens=10, ignore_eos=True, temperature=4.0)
    alone = [list(run_alone(prompt, sampling).token_ids) for prompt in PROMPTS]
    with make_engine(num_blocks=26, max_step_tokens=9) as engine:
        assert run_together(engine, PROMPTS, sampling) == alone


@settings(max_examples=examples(25))
@given(
    seed=st.integers(0, 1000), num_blocks=st.integers(26, 60), max_step_tokens=st.integers(1, 80), cache=st.booleans()
)
def test_the_same_is_said_in_any_engine(seed: int, num_blocks: int, max_step_tokens: int, cache: bool) -> None:
    prompts = make_prompts(seed)[:5]
    with make_engine(prefix_cache=False, max_running=1) as engine:
        expected = run_together(engine, prompts, greedy(6))
    with make_engine(num_blocks, max_step_tokens=max_step_tokens, prefix_cache=cache) as engine:
        assert run_together(engine, prompts, greedy(6)) == expected


def test_of_many_equal_prompts_one_is_read() -> None:
    num_computed: list[int] = []
    prompt = list(range(100))
    with make_engine(on_run=lambda batch: num_computed.append(len(batch.token_ids)), max_step_tokens=32) as engine:
        outputs = run_together(engine, [prompt] * 8, greedy(1))
        assert len({tuple(output) for output in outputs}) == 1
        assert sum(num_computed) == 100 + 7 * BLOCK_SIZE  # each computes its own last block, for the logits
        again = engine.generate(prompt, greedy(1))
    assert (again.usage.num_prompt, again.usage.num_cached, again.usage.num_output) == (100, 96, 1)


def test_what_was_generated_is_cached_too() -> None:
    with make_engine() as engine:
        first = engine.generate(list(range(10)), greedy(30))
        second = engine.generate([*range(10), *first.token_ids, 7], greedy(1))
    assert second.usage.num_cached == 36
