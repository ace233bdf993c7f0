"""When a replica is no longer asked, and how it comes back."""

from hotloop.router.replicas.breaker import FIRST_PAUSE_S, MAX_FAILURES, MAX_PAUSE_S, Breaker, RetryBudget


def fail_often(breaker: Breaker, now: float) -> None:
    for _ in range(MAX_FAILURES):
        breaker.fail(now)


def test_a_success_between_failures_keeps_it_closed():
    breaker = Breaker()
    for _ in range(5):
        for _ in range(MAX_FAILURES - 1):
            breaker.fail(0.0)
        breaker.succeed()
    assert breaker.can_ask(0.0)


def test_it_opens_for_a_while_then_lets_one_through():
    breaker = Breaker()
    fail_often(breaker, now=10.0)
    assert not breaker.can_ask(10.0)
    later = 10.0 + FIRST_PAUSE_S
    assert breaker.can_ask(later)
    breaker.ask()
    assert not breaker.can_ask(later), "one is enough to find out"
    breaker.succeed()
    assert breaker.can_ask(later)


def test_answers_that_begin_and_break_off_open_it_too():
    breaker = Breaker()
    for _ in range(MAX_FAILURES):
        assert breaker.can_ask(0.0)
        breaker.ask()
        breaker.begin()
        breaker.fail(0.0)
    assert not breaker.can_ask(0.0)
    breaker.ask()
    breaker.begin()
    assert breaker.can_ask(0.0), "others may go there while it is answering"
    breaker.fail(0.0)
    assert not breaker.can_ask(0.0)


def test_each_failed_try_doubles_the_pause_up_to_a_bound():
    breaker, now = Breaker(), 0.0
    fail_often(breaker, now)
    pauses = []
    for _ in range(6):
        pauses.append(breaker.opened_until - now)
        now = breaker.opened_until
        breaker.ask()
        breaker.fail(now)
    assert pauses == sorted(pauses)
    assert pauses[:2] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S]
    assert pauses[-1] == MAX_PAUSE_S


def test_a_try_that_tells_nothing_makes_room_for_another():
    breaker = Breaker()
    fail_often(breaker, 0.0)
    breaker.ask()
    breaker.is_probing = False
    assert breaker.can_ask(FIRST_PAUSE_S)


def test_retries_are_a_share_of_requests():
    budget = RetryBudget(share=0.25, saved=0.0)
    assert not budget.spend()
    for _ in range(8):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    for _ in range(10_000):
        budget.earn()
    assert budget.saved == budget.most
