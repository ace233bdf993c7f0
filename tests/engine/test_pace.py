"""How long a step takes, learnt, and how much it may read."""

import math

import pytest
from tests.engine.tiny import make_request

from hotloop.engine.pace import LEAST, MOMENT_S, MOST, PROBE_S, READER, StepPace
from hotloop.engine.step import Slice

PLAIN_S, TOKEN_S, PAIR_S = 0.005, 2e-5, 1e-9


def write() -> Slice:
    return Slice(make_request([1] * 8), 8, 9, wants_token=True)


def read(begin: int, num_tokens: int) -> Slice:
    return Slice(make_request([1] * (begin + num_tokens)), begin, begin + num_tokens, wants_token=True)


def took_s(*parts: Slice) -> float:
    reads = [part for part in parts if part.num_tokens > 1]
    costs = (part.num_tokens * (TOKEN_S + PAIR_S * (part.begin + part.num_tokens / 2)) for part in reads)
    return PLAIN_S + sum(costs)


@pytest.fixture
def pace() -> StepPace:
    """One that has seen steps that write, and steps that read near the beginning and far from it."""
    pace = StepPace(token_s=0.0003)
    for i in range(50):
        for part in (write(), read(0, 256 + 64 * (i % 3)), read(50_000, 128 + 64 * (i % 2))):
            pace.learn([part], took_s(part))
    return pace


def test_what_a_step_takes_is_learnt_with_and_without_reading(pace: StepPace) -> None:
    assert pace.plain_s == pytest.approx(PLAIN_S)
    assert pace.token_s == pytest.approx(TOKEN_S, rel=0.01)
    assert pace.pair_s == pytest.approx(PAIR_S, rel=0.01)


def test_as_many_tokens_fit_as_take_that_long(pace: StepPace) -> None:
    for begin, room_s in ((0, 0.004), (50_000, 0.004), (100_000, 0.02)):
        assert pace.cost_s(begin, round(pace.num_tokens(begin, room_s))) == pytest.approx(room_s, rel=0.01)
    assert pace.num_tokens(0, math.inf) == math.inf


def test_steps_that_read_nothing_costly_let_more_be_read_each_time() -> None:
    pace = StepPace(token_s=0.0003)
    sizes = []
    for _ in range(5):
        num_tokens = int(pace.num_tokens(0, 0.01))
        sizes.append(num_tokens)
        pace.learn([read(0, num_tokens)], PLAIN_S)
    assert sizes == sorted(sizes)
    assert sizes[-1] > 10 * sizes[0]


def test_small_steps_do_not_make_it_forget_what_large_ones_take(pace: StepPace) -> None:
    for _ in range(1000):
        pace.learn([read(0, 8)], PLAIN_S + 1e-6)
    assert pace.cost_s(0, 512) == pytest.approx(512 * TOKEN_S, rel=0.3)


def test_alone_there_is_no_limit_but_for_a_moment_after_others_were_served(pace: StepPace) -> None:
    assert pace.room_s(1, 0, now=100.0) == math.inf
    assert pace.room_s(2, 0, now=101.0) == pytest.approx(MOST * PLAIN_S)
    assert pace.room_s(1, 0, now=101.0 + 0.9 * MOMENT_S) == pytest.approx(MOST * PLAIN_S)
    assert pace.room_s(1, 0, now=101.0 + 1.1 * MOMENT_S) == math.inf


def test_who_reads_and_who_writes_share_the_time(pace: StepPace) -> None:
    pace.learn([write()], PLAIN_S)
    rooms = [
        pace.room_s(num_reading, num_writing, 0.0) / PLAIN_S
        for num_reading, num_writing in ((8, 1), (2, 3), (1, 2), (1, 4), (1, 8))
    ]
    assert rooms == pytest.approx([MOST, READER * 2 / 3, READER / 2, READER / 4, LEAST])


def test_readers_take_no_more_than_their_share_where_a_step_reads_much_or_nothing(pace: StepPace) -> None:
    pace.learn([write()], PLAIN_S)
    read_s = 0.0
    for _ in range(60):
        room_s = pace.room_s(1, 8, 0.0)
        if room_s:
            read_s += 3 * PLAIN_S
            pace.owe(3 * PLAIN_S - room_s)
    assert read_s == pytest.approx(60 * LEAST * PLAIN_S, rel=0.2)


def test_a_step_that_reads_reads_no_fewer_tokens_than_take_as_long() -> None:
    pace = StepPace(token_s=0.0003, least=512)
    pace.learn([write()], PLAIN_S)
    assert pace.num_tokens(0, 0.001) == 512
    pace.learn([write(), read(0, 100)], 3 * PLAIN_S)
    assert pace.token_s == 0.0003, "what takes as long as more tells nothing"


def test_now_and_then_a_step_reads_nothing_to_see_what_that_takes(pace: StepPace) -> None:
    pace.learn([write()], PLAIN_S)
    pace.learn([write(), read(0, 256)], 1.1 * PROBE_S)
    assert pace.room_s(1, 1, 0.0) == 0
    pace.learn([write()], 4 * PLAIN_S)
    assert pace.plain_s == pytest.approx(4 * PLAIN_S), "what was known is old"
    assert pace.room_s(1, 1, 0.0) > 0


def test_what_nobody_has_seen_is_not_limited() -> None:
    assert StepPace(token_s=0.0003).room_s(3, 0, 0.0) == math.inf
