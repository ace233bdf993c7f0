"""What tiers save, in plain numbers."""

import pytest

from hotloop.router.placement.placement import OUTPUT_COST
from hotloop.router.tiers.config import Tier
from hotloop.router.tiers.tiers import Reply, Saved
from hotloop.wire.usage import ApiUsage

SMALL = Tier(name="s", model="s", input_price=1, output_price=1)
LARGE = Tier(name="l", model="l", input_price=10, output_price=10)
MILLION = 1_000_000


def test_money_is_saved_by_answers_and_lost_by_what_is_thrown_away():
    saved = Saved((SMALL, LARGE))
    saved.record("s", ApiUsage(MILLION, 0, 0), 1.0)
    assert (saved.tallies["s"].cost, saved.money) == (1, 9)
    saved.record("s", ApiUsage(MILLION, 0, 0), 1.0, is_answer=False)
    saved.record("l", ApiUsage(MILLION, 0, 0), 4.0)
    assert [(tally.num_answers, tally.num_discarded) for tally in saved.tallies.values()] == [(1, 1), (1, 0)]
    assert saved.money == 20 - 12


def test_time_is_estimated_from_what_the_largest_took_for_as_much_work():
    saved = Saved((SMALL, LARGE))
    saved.record("s", ApiUsage(100, 50, 10), 1.0)
    assert saved.time_s == 0, "nobody knows what the largest would have taken"
    saved.record("l", ApiUsage(50 + 10 * int(OUTPUT_COST), 0, 0), 4.0)
    assert saved.time_s == pytest.approx(8 - 5)


@pytest.mark.parametrize("tiers", [(), (LARGE,)])
def test_nothing_saves_nothing(tiers):
    assert (Saved(tiers).money, Saved(tiers).time_s) == (0, 0)


def test_the_usage_of_a_reply():
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    assert Reply({"usage": usage}).usage == ApiUsage(9, 4, 2)
    assert Reply(None).usage == Reply({}).usage == Reply({"usage": None}).usage == ApiUsage()
