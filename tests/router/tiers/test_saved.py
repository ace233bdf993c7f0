"""What tiers save, in plain numbers."""

import pytest

from hotloop.router.placement.placement import OUTPUT_COST
from hotloop.router.tiers.config import Tier, Tokens
from hotloop.router.tiers.saved import Saved, tokens_of

SMALL = Tier(name="s", model="s", input_price=1, output_price=1)
LARGE = Tier(name="l", model="l", input_price=10, output_price=10)
MILLION = 1_000_000


def test_money_is_saved_by_answers_and_lost_by_what_is_thrown_away():
    saved = Saved((SMALL, LARGE))
    saved.record("s", Tokens(MILLION, 0, 0), 1.0)
    assert (saved.savings().cost, saved.savings().large_cost, saved.savings().money) == (1, 10, 9)
    saved.record("s", Tokens(MILLION, 0, 0), 1.0, is_answer=False)
    saved.record("l", Tokens(MILLION, 0, 0), 4.0)
    savings = saved.savings()
    assert (savings.num_answers, savings.num_discarded) == (2, 1)
    assert (savings.cost, savings.large_cost, savings.money_share) == (12, 20, pytest.approx(0.4))


def test_time_is_estimated_from_what_the_largest_took_for_as_much_work():
    saved = Saved((SMALL, LARGE))
    saved.record("s", Tokens(100, 50, 10), 1.0)
    assert (saved.savings().large_latency_s, saved.savings().time_s, saved.savings().time_share) == (None, 0, 0)
    saved.record("l", Tokens(50 + 10 * int(OUTPUT_COST), 0, 0), 4.0)
    savings = saved.savings()
    assert (savings.latency_s, savings.large_latency_s, savings.time_s) == (5, pytest.approx(8), pytest.approx(3))
    assert savings.time_share == pytest.approx(3 / 8)


def test_nothing_saves_nothing():
    savings = Saved((LARGE,)).savings()
    assert (savings.money, savings.money_share, savings.time_share) == (0, 0, 0)


def test_tokens_of_an_answer():
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    assert tokens_of({"usage": usage}) == Tokens(9, 4, 2)
    assert tokens_of({"usage": {"prompt_tokens": 9, "completion_tokens": 2}}) == Tokens(9, 0, 2)
    assert tokens_of({}) == tokens_of({"usage": None}) == Tokens()
