"""How much is read for the less urgent: by the clock, and in the scheduler."""

import math

import pytest
from tests.engine.turning import Loop, make_scheduler, prompt

from hotloop.core.request import Priority
from hotloop.engine.courtesy import CHUNK_S, MOMENT_S, Courtesy

TOKEN_S = 0.0005
CHUNK = CHUNK_S / TOKEN_S
BLOCK_SIZE = 4


def test_alone_everybody_reads_as_much_as_fits():
    courtesy = Courtesy(BLOCK_SIZE)
    courtesy.begin([Priority.BACKGROUND], 1.0, TOKEN_S)
    assert courtesy.room(Priority.BACKGROUND) == math.inf
    courtesy.begin([Priority.BACKGROUND, Priority.WORKFLOW], 2.0, TOKEN_S)
    assert courtesy.room(Priority.WORKFLOW) == math.inf
    assert courtesy.room(Priority.BACKGROUND) == CHUNK


@pytest.mark.parametrize("priority", [Priority.WORKFLOW, Priority.BACKGROUND])
def test_while_somebody_more_urgent_runs_it_is_a_share_of_the_time(priority: Priority):
    """However wrong it is about how long reading takes: here, three times as long as it says."""
    courtesy, now, reading_s = Courtesy(BLOCK_SIZE), 0.0, 0.0
    for _ in range(2000):
        courtesy.begin([Priority.INTERACTIVE, priority], now, TOKEN_S)
        count = int(courtesy.room(priority))
        assert count in (0, CHUNK)
        courtesy.take(priority, count)
        reading_s += 3 * count * TOKEN_S
        now += 0.02 + 3 * count * TOKEN_S
    assert math.isclose(reading_s / now, priority.max_share, rel_tol=0.1)


@pytest.mark.parametrize("priority", [Priority.WORKFLOW, Priority.BACKGROUND])
def test_with_a_step_in_flight_time_is_charged_to_the_step_that_took_it(priority: Priority):
    courtesy, now, reading_s, in_flight_s = Courtesy(BLOCK_SIZE), 0.0, 0.0, 0.0
    for i in range(2000):
        courtesy.begin([Priority.INTERACTIVE, priority], now, TOKEN_S, num_flying=min(i, 1))
        count = int(courtesy.room(priority))
        courtesy.take(priority, count)
        reading_s += 3 * count * TOKEN_S
        now += in_flight_s  # the one before this is waited for, while this one runs
        in_flight_s = 0.02 + 3 * count * TOKEN_S
    assert math.isclose(reading_s / now, priority.max_share, rel_tol=0.1)


def test_what_is_read_for_one_class_is_not_read_for_those_below():
    courtesy = Courtesy(BLOCK_SIZE)
    courtesy.begin([Priority.INTERACTIVE], 1.0, TOKEN_S)
    courtesy.take(Priority.WORKFLOW, 60)
    assert courtesy.room(Priority.WORKFLOW) == courtesy.room(Priority.BACKGROUND) == CHUNK - 60
    courtesy.take(Priority.BACKGROUND, 30)
    assert courtesy.room(Priority.WORKFLOW) == CHUNK - 60
    assert courtesy.room(Priority.INTERACTIVE) == math.inf
    courtesy.begin([Priority.INTERACTIVE], 2.0, TOKEN_S)
    assert courtesy.room(Priority.WORKFLOW) == courtesy.room(Priority.BACKGROUND) == 0, "both are in debt"


def test_for_a_moment_after_a_step_reads_a_chunk():
    courtesy = Courtesy(BLOCK_SIZE)
    courtesy.begin([Priority.INTERACTIVE], 1.0, TOKEN_S)
    for now in (1.1, 1.2, 1.0 + MOMENT_S):
        courtesy.begin([Priority.BACKGROUND], now, TOKEN_S)
        assert courtesy.room(Priority.BACKGROUND) == CHUNK
        courtesy.take(Priority.BACKGROUND, int(CHUNK))
    courtesy.begin([Priority.BACKGROUND], 1.1 + MOMENT_S, TOKEN_S)
    assert courtesy.room(Priority.BACKGROUND) == math.inf


def test_a_debt_keeps_nobody_from_reading_once_nobody_is_more_urgent():
    courtesy = Courtesy(BLOCK_SIZE)
    courtesy.begin([Priority.INTERACTIVE], 1.0, TOKEN_S)
    courtesy.take(Priority.BACKGROUND, int(CHUNK))
    courtesy.begin([Priority.INTERACTIVE], 1.5, TOKEN_S)
    assert courtesy.room(Priority.BACKGROUND) == 0
    courtesy.begin([Priority.BACKGROUND], 1.5, TOKEN_S)
    assert courtesy.room(Priority.BACKGROUND) == CHUNK
    courtesy.see(Priority.WORKFLOW)
    assert courtesy.room(Priority.BACKGROUND) == 0


def test_a_chunk_is_a_block_at_least():
    courtesy = Courtesy(BLOCK_SIZE)
    courtesy.begin([Priority.INTERACTIVE], 0.0, 1000.0)
    assert courtesy.room(Priority.BACKGROUND) == BLOCK_SIZE


def test_who_waits_for_a_word_does_not_wait_for_a_long_prompt_in_the_background():
    loop = Loop(make_scheduler(max_step_tokens=64))
    loop.scheduler.retention.token_s = CHUNK_S / 8
    loop.add("user", prompt(4))
    loop.step()
    loop.add("fleet", prompt(40, 100), Priority.BACKGROUND)
    loop.now += Priority.BACKGROUND.max_wait_s
    spans = [loop.step() for _ in range(100)]
    assert all("user" in step for step in spans)
    assert max(end - begin for step in spans if "fleet" in step for begin, end in [step["fleet"]]) == 8
    assert "fleet" in spans[-1], "it has read its prompt, and gets a token a step as well"


def test_who_becomes_urgent_in_a_step_is_waited_for_in_it():
    loop = Loop(make_scheduler(max_step_tokens=64))
    loop.scheduler.retention.token_s = CHUNK_S / 8
    loop.add("fleet", prompt(40, 100), Priority.BACKGROUND)
    loop.add("user", prompt(4))
    assert loop.step() == {"user": (0, 4), "fleet": (0, 4)}
