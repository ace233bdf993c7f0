"""Whether drafts pay, by the numbers and on a clock of the tests': a draft model may help, and may not harm."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.drafting.simulated import MAX_LENGTH, Pair, Simulation
from tests.engine.tiny import make_request
from tests.properties import examples

from hotloop.engine.drafting.payoff import Average, DraftScenario, ModelPayoff, StepCost, best_length
from hotloop.engine.step import Step

PAIRS = st.builds(
    Pair,
    chance=st.floats(0, 1),
    step_s=st.floats(0.01, 2),
    sure=st.floats(0.2, 1),
    jump_s=st.floats(0, 2),
    row_s=st.floats(0, 1),
    read_s=st.floats(0, 0.2),
)


def measured(*steps: tuple[int, float]) -> StepCost:
    cost = StepCost()
    for num_tokens, duration_s in steps:
        cost.observe(num_tokens, duration_s)
    return cost


def test_an_average_goes_with_what_is_new() -> None:
    average = Average(0.5, memory=4, weight=1)
    means = []
    for value in (1.0, 1.0, 1.0, 0.0, 0.0):
        average.observe(value)
        means.append(average.mean)
    assert means == pytest.approx([0.75, 5 / 6, 0.875, 0.65625, 0.4921875])


def test_a_step_takes_what_others_of_its_size_took() -> None:
    cost = measured((1, 0.2), (2, 0.45), (9, 1.25), (24, 1.5), (2, 0.45), (9, 1.25), (9, 1.25), (9, 1.25))
    assert [cost.seconds(n) for n in (1, 2, 9, 24)] == pytest.approx([0.2, 0.45, 1.25, 1.5], abs=0.03)
    assert cost.seconds(5.5) == pytest.approx(0.85, abs=0.02), "between two sizes there is a straight line"
    assert cost.seconds(100) > cost.seconds(24)
    assert measured((9, 1.0)).seconds(1) < 1.0
    assert StepCost().seconds(1) < StepCost().seconds(2), "something is said where nothing was measured"
    assert (StepCost().is_known, cost.is_known) == (False, True)


def test_a_step_that_was_disturbed_counts_for_little_and_a_quick_one_for_much() -> None:
    cost = measured(*[(1, 1.0)] * 4, (1, 50.0))
    assert cost.seconds(1) == pytest.approx(1.125)
    cost.observe(1, 0.125)
    assert cost.seconds(1) == pytest.approx(0.625)
    cost.observe(30, 50.0)
    assert cost.seconds(30) < 5, "the first of its size is no better"


@pytest.mark.parametrize("duration_s", [0.0, -1.0])
def test_a_clock_that_stands_still_or_goes_back_makes_no_step_free(duration_s: float) -> None:
    cost = measured((1, duration_s), (9, duration_s))
    assert 0 < cost.optimistic_s(1) <= cost.seconds(9) < 1e-5


def test_hope_has_an_end() -> None:
    """Else a server that has made a hundred thousand steps would take one of another size to cost nothing at all."""
    cost = measured((1, 1.0), (9, 8.0))
    for _ in range(100_000):
        cost.observe(1, 1.0)
    assert cost.optimistic_s(9) == pytest.approx(0.1 * cost.seconds(9))


def test_sizes_are_told_apart_where_they_are_small() -> None:
    cost = measured(*((n, float(n)) for n in range(16, 0, -1)), (100, 100.0))
    assert [cost.seconds(n) for n in range(1, 17)] == [*range(1, 17)]
    cost.observe(103, 100.0)
    assert len(cost._sizes) == 17, "100 and 103 are as good as one"


def test_what_seemed_dear_is_hoped_to_be_less_so_and_ever_more_slowly() -> None:
    tries = []
    cost = measured((9, 6.0), (1, 1.0))
    for step in range(1000):
        if cost.optimistic_s(9) < 5:
            tries.append(step)
            cost.observe(9, 6.0)
        cost.observe(1, 1.0)
    assert cost.seconds(9) == 6.0
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps == sorted(gaps)
    assert 5 < len(tries) < 20


@given(PAIRS)
def test_the_best_length_is_the_best_of_all(pair: Pair) -> None:
    """Where one request runs, its maker's drafts are always as long as asked for, and all is known."""
    pair = Pair(pair.chance, pair.step_s, 1.0, pair.jump_s, pair.row_s)
    length, saved_s = best_length(pair.seconds, 1, 1, DraftScenario(1, pair.chance, step_s=pair.step_s), MAX_LENGTH)
    assert pair.token_s(length) == pytest.approx(pair.best_token_s)
    assert saved_s == pytest.approx(1 - pair.best_token_s)


def test_a_long_draft_may_pay_where_a_short_one_does_not() -> None:
    def seconds(num_tokens: float) -> float:
        return 1.0 if num_tokens <= 1 else 2.5 + 0.1 * num_tokens

    assert best_length(seconds, 1, 1, DraftScenario(1, 0.95), 1) == (0, 0.0)
    assert best_length(seconds, 1, 1, DraftScenario(1, 0.95), MAX_LENGTH)[0] == MAX_LENGTH


def test_where_many_run_a_draft_has_to_bring_more() -> None:
    """Another token costs each of them time, and brings one of them one."""
    assert best_length(lambda n: 1 + n / 10, 1, 1, DraftScenario(1, 0.7), MAX_LENGTH)[0] > 2
    assert best_length(lambda n: 1 + n / 10, 16, 16, DraftScenario(16, 0.3), MAX_LENGTH)[0] == 0
    assert best_length(lambda n: 1 + n / 1000, 16, 16, DraftScenario(16, 0.3, step_s=0.1), MAX_LENGTH)[0] == 1


@settings(max_examples=examples(25))
@given(PAIRS, st.integers(5, 300), st.integers(20, 200), st.integers(0, 100))
def test_a_draft_model_never_costs_much_whatever_it_is_like(
    pair: Pair, num_prompt: int, num_output: int, seed: int
) -> None:
    assert Simulation(pair, seed).ratio(num_prompt, num_output) < 1.05


@pytest.mark.parametrize(
    "pair",
    [
        Pair(0.8, 0.1),
        Pair(0.8, 0.1, row_s=0.02, read_s=0.01),
        Pair(0.9, 0.1, sure=0.7, row_s=0.02),
        Pair(0.95, 0.05, jump_s=0.5, row_s=0.02),
    ],
    ids=["free", "by-row", "unsure", "jump"],
)
def test_a_good_draft_model_brings_nearly_what_it_can(pair: Pair) -> None:
    assert pair.best_token_s < 0.6
    assert Simulation(pair).ratio(20, 200) == pytest.approx(pair.best_token_s, rel=0.1)


def test_a_draft_model_that_does_not_pay_reads_next_to_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Its steps are as slow as the model's own, and prompts are long."""
    simulation = Simulation(Pair(0.9, step_s=1.0, read_s=0.1))
    simulation.answer(200, 50)
    before = simulation.num_read
    for _ in range(100):
        simulation.answer(200, 50)
    assert before < simulation.num_read < 0.05 * 100 * 200
    assert simulation.speculator.model_length == 0
    [line] = caplog.messages
    told = re.match(r"the draft model does not pay off and is paused: (\d+)% of its drafts are right", line)
    assert told
    assert 80 <= int(told[1]) < 100, "nine in ten are"


def test_a_draft_model_that_becomes_good_is_used_again() -> None:
    simulation = Simulation(Pair(0.1, step_s=0.1, row_s=0.1))
    assert simulation.ratio(20, 50) > 0.99
    assert simulation.speculator.model_length == 0
    simulation.pair = Pair(0.9, step_s=0.1, row_s=0.1)
    assert simulation.ratio(20, 50, learning_s=3000) < 0.6
    assert simulation.speculator.model_length > 2


def test_a_long_prompt_is_read_only_where_the_answer_pays_for_it() -> None:
    """To read it takes 30 s, and a token is written 0.6 s sooner then."""
    for num_output, is_worth_it in ((20, False), (200, True)):
        simulation = Simulation(Pair(0.8, step_s=0.1, read_s=0.1))
        for _ in range(10):
            simulation.answer(20, num_output)
        before = simulation.num_read
        simulation.answer(300, num_output)
        assert (simulation.num_read - before >= 300) == is_worth_it


def test_a_first_token_does_not_wait_for_a_draft_model() -> None:
    simulation = Simulation(Pair(0.9, step_s=0.1, read_s=0.1))
    for _ in range(5):
        simulation.answer(20, 50)
    before = simulation.num_read
    assert simulation.answer(20, 1) == simulation.plain_s(20, 1)
    assert simulation.num_read == before


def test_a_probe_costs_its_drafts_and_what_the_step_takes_longer_for_them() -> None:
    """Drafts take 4 s, and the step 4 s longer: saved up is a hundredth of the time."""
    simulation = Simulation(Pair(0.0, step_s=1.0, row_s=1.0))
    simulation._is_known = True
    cost = measured(*((n, float(n)) for n in range(1, 9)))
    payoff = ModelPayoff(simulation, cost, MAX_LENGTH)
    request = make_request([1])
    request.token_ids.append(1)
    saved_s = 0
    while not payoff.lengths([request], 0.0, 1):
        payoff.learn(Step([]), 100.0)
        saved_s += 1
    assert saved_s == 8
