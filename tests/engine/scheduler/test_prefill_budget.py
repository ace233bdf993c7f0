"""How long a step takes, learnt, and how much it may prefill for whom."""

import math

import pytest
from tests.engine.tiny import make_request
from tests.engine.turning import Loop, make_scheduler, prompt

from hotloop.core.config import EngineConfig
from hotloop.core.request import Priority
from hotloop.engine.scheduler.prefill_budget import (
    AT_ONCE_S,
    LEAST,
    MOMENT_S,
    NOBODY_DECODES,
    OUTPUT_TOKENS,
    PER_PROMPT,
    PROBE_S,
    PrefillBudget,
)
from hotloop.engine.step import Slice

PLAIN_S, TOKEN_S, PAIR_S = 0.005, 2e-5, 1e-9
USER, WORKFLOW, BACKGROUND = Priority
LIMITS = EngineConfig().class_limits
LONG_S = 10.0  # of prefill: so much that it counts for little


def decode() -> Slice:
    return Slice(make_request([1] * 8), 8, 9, wants_token=True)


def prefill(begin: int, num_tokens: int) -> Slice:
    return Slice(make_request([1] * (begin + num_tokens)), begin, begin + num_tokens, wants_token=True)


def took_s(*parts: Slice) -> float:
    prefills = [part for part in parts if part.num_tokens > 1]
    costs = (part.num_tokens * (TOKEN_S + PAIR_S * (part.begin + part.num_tokens / 2)) for part in prefills)
    return PLAIN_S + sum(costs)


@pytest.fixture
def budget() -> PrefillBudget:
    """One that has seen steps that decode, and steps that prefill near the beginning and far from it."""
    budget = PrefillBudget(token_s=0.0003)
    for part in (decode(), prefill(0, 1024)):
        budget.learn([part], took_s(part))
    for i in range(50):
        for part in (prefill(0, 256 + 64 * (i % 3)), prefill(50_000, 128 + 64 * (i % 2)), decode()):
            budget.learn([part], took_s(part))
    return budget


def room_s(budget: PrefillBudget, rank: int = USER) -> float:
    """How long a step may prefill for one of this rank."""
    count = budget.num_tokens(rank, 0)
    return math.inf if count == math.inf else budget.cost_s(0, 1) * count


def begin(
    budget: PrefillBudget, num_waiting: int, num_decoding: int = 0, prefill_s: float = LONG_S, now: float = 0.0
) -> float:
    """So many prompts of that length and so many who decode, all of one class."""
    budget.begin(now, [USER] * num_decoding, [(USER, prefill_s)] * num_waiting, num_waiting, USER)
    return room_s(budget)


def test_what_a_step_takes_is_learnt_with_and_without_prefill(budget: PrefillBudget) -> None:
    assert budget.plain_s == pytest.approx(PLAIN_S)
    assert budget.token_s == pytest.approx(TOKEN_S, rel=0.01)
    assert budget.pair_s == pytest.approx(PAIR_S, rel=0.01)


@pytest.mark.parametrize("first", [0, 50_000, 100_000])
def test_as_many_tokens_fit_as_take_that_long(budget: PrefillBudget, first: int) -> None:
    begin(budget, num_waiting=3)
    cost_s = budget.cost_s(first, round(budget.num_tokens(USER, first)))
    assert cost_s == pytest.approx(NOBODY_DECODES * PLAIN_S, rel=0.02)


def test_steps_that_cost_nothing_let_more_be_prefilled_each_time() -> None:
    budget = PrefillBudget(token_s=0.0003)
    budget.learn([decode()], PLAIN_S)
    sizes = []
    for _ in range(5):
        begin(budget, num_waiting=3)
        num_tokens = int(budget.num_tokens(USER, 0))
        sizes.append(num_tokens)
        budget.learn([prefill(0, num_tokens)], PLAIN_S)
    assert sizes == sorted(sizes)
    assert sizes[-1] > 10 * sizes[0]


def test_small_steps_do_not_make_it_forget_what_large_ones_take(budget: PrefillBudget) -> None:
    for _ in range(1000):
        budget.learn([prefill(0, 8)], PLAIN_S + 1e-6)
    assert budget.cost_s(0, 512) == pytest.approx(512 * TOKEN_S, rel=0.3)


def test_what_takes_as_long_as_more_tells_nothing() -> None:
    budget = PrefillBudget(token_s=0.0003, least=512)
    budget.learn([decode()], PLAIN_S)
    budget.learn([decode(), prefill(0, 100)], 3 * PLAIN_S)
    assert budget.token_s == 0.0003


def test_a_first_prefill_is_not_taken_for_what_decoding_takes() -> None:
    budget = PrefillBudget(token_s=0.0003)
    budget.learn([prefill(0, 8192)], 0.2)
    budget.learn([decode()], PLAIN_S)
    assert budget.plain_s == PLAIN_S


def test_alone_there_is_no_limit_but_for_a_moment_after_others_were_served(budget: PrefillBudget) -> None:
    assert begin(budget, 1, now=100.0) == math.inf
    assert begin(budget, 2, now=101.0) == pytest.approx(NOBODY_DECODES * PLAIN_S, rel=0.1)
    assert begin(budget, 1, now=101.0 + 0.9 * MOMENT_S) == pytest.approx(NOBODY_DECODES * PLAIN_S, rel=0.1)
    assert begin(budget, 1, now=101.0 + 1.1 * MOMENT_S) == math.inf


def test_alone_a_step_is_as_long_as_the_backend_says_once_it_is_known_what_one_takes() -> None:
    budget = PrefillBudget(token_s=TOKEN_S, max_solo_prefill=16.0)
    assert begin(budget, 1) == math.inf
    for part in (decode(), prefill(0, 4096)):
        budget.learn([part], took_s(part))
    assert begin(budget, 1) == pytest.approx(16 * PLAIN_S, rel=0.1)


def cpu_budget(plain_s: float) -> PrefillBudget:
    budget = PrefillBudget(token_s=TOKEN_S, max_solo_prefill=16.0)
    budget.learn([decode()], plain_s)
    budget.learn([prefill(0, 1 << 14)], plain_s + (1 << 14) * TOKEN_S)
    return budget


@pytest.mark.parametrize(
    ("plain_s", "num_decoding", "waiting_s", "at_once_s"),
    [
        (0.005, 0, [0.15], 0.15),
        (0.005, 0, [0.18, 0.02], 0.18),
        (0.005, 0, [LONG_S, 0.18, 0.04], 0.04),
        (0.005, 2, [LONG_S, 0.18, 0.04], 0.04),
        (0.005, 2, [0.04], 0.04),
        (0.05, 2, [LONG_S, 0.36, 0.3], 0.3),
    ],
)
def test_on_a_cpu_a_prompt_that_does_not_take_long_is_prefilled_whole(
    plain_s: float, num_decoding: int, waiting_s: list[float], at_once_s: float
) -> None:
    budget = cpu_budget(plain_s)
    budget.begin(0.0, [USER] * num_decoding, [(USER, each_s) for each_s in waiting_s], len(waiting_s), USER)
    assert room_s(budget) == pytest.approx(at_once_s, rel=0.03)


def test_on_a_cpu_steps_are_not_shorter_for_a_less_urgent_prompt() -> None:
    budget = cpu_budget(0.005)
    budget.begin(0.0, [], [(USER, LONG_S), (BACKGROUND, 0.02)], 2, USER)
    assert room_s(budget) == pytest.approx(AT_ONCE_S, rel=0.03)


def test_on_a_cpu_too_prompts_have_no_more_than_their_share_beside_those_who_decode() -> None:
    share_s = 0.005 * 2 * (OUTPUT_TOKENS * 0.005 / (0.005 + 0.18)) ** 2 / 2
    assert begin(cpu_budget(0.005), 2, num_decoding=2, prefill_s=0.18) == pytest.approx(share_s, rel=0.03)


@pytest.mark.parametrize(("plain_s", "long_s"), [(0.005, AT_ONCE_S), (0.05, 0.4)])
def test_on_a_cpu_steps_are_long_while_nobody_decodes(plain_s: float, long_s: float) -> None:
    budget = cpu_budget(plain_s)
    assert begin(budget, 2) == pytest.approx(long_s, rel=0.03)
    assert begin(budget, 1, now=0.9 * MOMENT_S) == pytest.approx(long_s, rel=0.03), "who was there may be back"
    assert begin(budget, 2, num_decoding=1) <= 3 * PER_PROMPT * plain_s * 1.03


def test_the_more_prompts_wait_the_longer_a_step_may_be(budget: PrefillBudget) -> None:
    rooms_s = [begin(budget, num_waiting) for num_waiting in (2, 5, 6)]
    assert rooms_s == pytest.approx(
        [NOBODY_DECODES * PLAIN_S, *(each * PER_PROMPT * PLAIN_S for each in (6, 7))], rel=0.1
    )


def test_the_sooner_a_prompt_is_prefilled_the_more_it_counts_beside_those_who_decode(budget: PrefillBudget) -> None:
    output_s = OUTPUT_TOKENS * PLAIN_S - PLAIN_S  # and a step, that a prompt takes at least
    one, two = (begin(budget, 5, 2, prefill_s) for prefill_s in (output_s / math.sqrt(0.6), output_s / math.sqrt(0.8)))
    assert one == pytest.approx(1.5 * PLAIN_S, rel=0.1)
    assert two == pytest.approx(2 * PLAIN_S, rel=0.1)
    assert begin(budget, 5, 2, output_s / 100) == pytest.approx(6 * PER_PROMPT * PLAIN_S, rel=0.1), "the longest step"
    assert begin(budget, 5, 2, 100 * output_s) == pytest.approx(LEAST * PLAIN_S, rel=0.1), "nobody waits for ever"


def test_prompts_have_no_more_than_their_share_where_a_step_prefills_much_or_nothing(budget: PrefillBudget) -> None:
    num_tokens = 512
    read_s = 0.0
    for _ in range(100):
        begin(budget, 1, 8)
        if budget.has_room(USER):
            budget.take(USER, 0, num_tokens)
            read_s += budget.cost_s(0, num_tokens)
    assert read_s == pytest.approx(100 * LEAST * PLAIN_S, rel=0.1)


def test_now_and_then_a_step_prefills_nothing_to_see_what_that_takes(budget: PrefillBudget) -> None:
    budget.learn([decode(), prefill(0, 256)], 1.1 * PROBE_S)
    assert begin(budget, 1, 1) == 0
    budget.learn([decode()], 4 * PLAIN_S)
    assert budget.plain_s == pytest.approx(4 * PLAIN_S), "what was known is old"
    assert begin(budget, 1, 1) > 0


def test_what_nobody_has_seen_is_not_limited() -> None:
    assert begin(PrefillBudget(token_s=0.0003), 3) == math.inf


@pytest.mark.parametrize("priority", [WORKFLOW, BACKGROUND])
def test_beside_somebody_more_urgent_it_is_a_share_of_the_time(budget: PrefillBudget, priority: Priority) -> None:
    time_s = prefill_s = 0.0
    for _ in range(2000):
        budget.begin(0.0, [USER], [(priority, 0.0)], 1, USER)
        cost_s = budget.cost_s(0, 256) if budget.has_room(priority) else 0.0
        budget.take(priority, 0, 256 if cost_s else 0)
        prefill_s += cost_s
        time_s += PLAIN_S + cost_s
    assert prefill_s / time_s == pytest.approx(LIMITS[priority].max_share, rel=0.05)


def test_who_becomes_urgent_in_a_step_is_waited_for_in_it(budget: PrefillBudget) -> None:
    budget.begin(0.0, [], [(USER, 0.001), (BACKGROUND, LONG_S)], 2, BACKGROUND)
    before_s = room_s(budget, BACKGROUND)
    budget.take(USER, 0, 8)
    assert room_s(budget, BACKGROUND) == pytest.approx(PLAIN_S / 9, rel=0.1)
    assert before_s > 5 * PLAIN_S / 9


def test_a_debt_keeps_nobody_from_prefilling_once_nobody_is_more_urgent(budget: PrefillBudget) -> None:
    for _ in range(2):
        budget.begin(0.0, [USER], [(BACKGROUND, LONG_S)], 1, USER)
        budget.take(BACKGROUND, 0, 512)
    assert not budget.has_room(BACKGROUND)
    budget.begin(0.0, [], [(BACKGROUND, LONG_S)], 1, BACKGROUND)
    assert budget.has_room(BACKGROUND)


def test_who_is_urgent_does_not_share_with_those_who_decode_in_the_background(budget: PrefillBudget) -> None:
    budget.begin(0.0, [BACKGROUND] * 8, [(USER, LONG_S)], 1, BACKGROUND)
    assert room_s(budget) == pytest.approx(2 * PER_PROMPT * PLAIN_S, rel=0.1)


def test_who_waits_for_a_token_does_not_wait_for_a_long_prompt_in_the_background() -> None:
    """A step takes 10 ms, and 1 ms for each token that is prefilled."""
    loop = Loop(make_scheduler(max_step_tokens=64))
    loop.add("user", prompt(4))
    for _ in range(3):
        loop.step(0.01, 0.01)
    loop.add("fleet", prompt(40, 100), Priority.BACKGROUND)
    loop.now += LIMITS[BACKGROUND].max_wait_s
    sizes = []
    for _ in range(100):
        step = loop.scheduler.schedule(loop.now)
        sizes.append({part.request.id: part.num_tokens for part in step.slices})
        step_s = 0.01 + 0.001 * sizes[-1].get("fleet", 0)
        loop.now += step_s
        loop.compute(step, step_s)
    assert all("user" in each for each in sizes)
    assert max(each.get("fleet", 0) for each in sizes) <= 8
    assert "fleet" in sizes[-1], "it has read its prompt, and gets a token a step as well"
