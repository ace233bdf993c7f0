"""How much is guessed and for whom, by the numbers: the pace of steps, the odds of guesses, what a grammar allows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests.engine.tiny import greedy, make_request

from hotloop.core.config import MAX_DRAFTED_FORCED
from hotloop.core.request import Request
from hotloop.engine.decode import TokenDecoder
from hotloop.engine.drafting.drafter import Guess, Want
from hotloop.engine.drafting.speculation import Draft, Odds, Speculator, StepCost
from hotloop.engine.step import Slice, Step

HOPE = 0.7


@dataclass
class Rules:
    """A grammar by hand: what it forces after a token, and what it forbids."""

    forces: dict[int, list[int]] = field(default_factory=dict)
    forbids: tuple[int, ...] = ()
    taken: list[int] = field(default_factory=list)

    def advance(self, token_id: int) -> bool:
        if token_id in self.forbids:
            return False
        self.taken.append(token_id)
        return True

    def forced(self) -> list[int]:
        return self.forces.get(self.taken[-1], [])

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens > 0
        del self.taken[-num_tokens:]


@dataclass
class Repeating:
    """Guesses the same for everybody."""

    guess: Guess
    wants: list[Want] = field(default_factory=list)
    has_model = False

    def propose(self, wants: Sequence[Want]) -> list[Guess]:
        self.wants += wants
        return [self.guess for _ in wants]

    def learn(self, request: Request) -> None: ...

    def close(self) -> None: ...


def make_slice(name: str = "r", **changes: object) -> Slice:
    request = make_request([1, 2, 3], name, sampling=greedy(40))
    request.max_tokens = 40
    return Slice(request, 0, 1, wants_token=True, **changes)


def make_draft(rules: Rules | None = None, max_guesses: int = 4) -> Draft:
    return Draft(make_slice(), rules, max_guesses, 39)


def make_speculator(guess: Guess | None = None) -> Speculator:
    return Speculator(Repeating(guess or Guess([])), TokenDecoder([], can_force=True), max_draft_tokens=8)


def pace_of(*steps: tuple[int, float]) -> StepCost:
    pace = StepCost()
    for num_tokens, duration_s in steps * 50:
        pace.observe(num_tokens, duration_s)
    return pace


def test_a_step_costs_what_a_line_through_others_says() -> None:
    pace = pace_of((1, 12.0), (5, 20.0), (9, 28.0))
    assert pace.marginal(5) == pytest.approx(2 / 20)
    assert pace.marginal(20) == pytest.approx(2 / 50)


def test_a_line_that_cannot_be_is_bent() -> None:
    assert pace_of((1, 2.0), (9, 1.0)).marginal(7) == pytest.approx(1 / 107), "more tokens take no less time"
    assert pace_of((4, 1.0), (8, 100.0)).marginal(7) == pytest.approx(1 / 7), "nothing takes less than no time"
    assert pace_of((4, 3.0)).marginal(4) == pytest.approx(1 / 34), "of steps that are alike nothing is learnt"
    assert pace_of((4, 3.0), (6, 3.0)).marginal(5) == pytest.approx(1 / 35), "nor of such that are nearly"
    assert StepCost().marginal(10) == 1 / 40


def test_old_steps_are_forgotten() -> None:
    pace = pace_of((1, 12.0), (5, 20.0), (9, 28.0))
    for _ in range(200):
        pace.observe(1, 101.0)
        pace.observe(9, 109.0)
    assert pace.marginal(5) == pytest.approx(1 / 105, rel=0.02)


def test_odds_follow_what_was_right_and_go_back_to_hope() -> None:
    odds = Odds()
    assert (odds[3], odds.best) == (HOPE, HOPE)
    odds.observe(3, is_right=False)
    assert odds[3] == pytest.approx(HOPE - HOPE / 30)
    assert (odds[4], odds.best) == (HOPE, odds[3])
    odds.observe(4, is_right=True)
    assert odds.best == odds[4] == pytest.approx(HOPE + 0.3 / 30)
    before = odds[3]
    odds.relax()
    assert odds[3] == pytest.approx(before + 0.002 * (HOPE - before))


def test_a_guess_is_taken_as_far_as_there_is_room() -> None:
    draft = make_draft(max_guesses=2)
    draft.follow(Guess([5, 6, 7], 3))
    assert (draft.token_ids, draft.kinds, draft.num_guesses, draft.is_open) == ([5, 6], [3, 3], 2, False)


def test_without_a_grammar_there_is_one_round() -> None:
    draft = make_draft()
    draft.follow(Guess([5, 6], 3))
    assert (draft.token_ids, draft.num_guesses, draft.is_open) == ([5, 6], 2, False)
    want = draft.want()
    assert (list(want.token_ids), want.max_tokens) == ([1, 2, 3, 5, 6], 2)


def test_a_guess_ends_where_the_grammar_forbids_it() -> None:
    rules = Rules(forbids=(6,))
    draft = make_draft(rules)
    draft.follow(Guess([5, 6, 7], 3))
    assert (draft.token_ids, draft.kinds, draft.is_open) == ([5], [3], False)
    draft.undo()
    assert rules.taken == []


def test_what_the_grammar_forces_is_no_guess() -> None:
    draft = make_draft(Rules({5: [6, 7]}))
    draft.follow(Guess([5, 6, 7, 8], 3))
    assert (draft.token_ids, draft.kinds) == ([5, 6, 7, 8], [3, None, None, 3])
    assert (draft.num_guesses, draft.is_open) == (2, False)


@pytest.mark.parametrize(("max_guesses", "is_open"), [(4, True), (1, False)])
def test_where_the_grammar_leads_elsewhere_another_guess_is_asked_for(max_guesses: int, *, is_open: bool) -> None:
    draft = make_draft(Rules({5: [6, 9]}), max_guesses)
    draft.follow(Guess([5, 6, 7, 8], 3))
    assert (draft.token_ids, draft.kinds) == ([5, 6, 9], [3, None, None])
    assert (draft.num_guesses, draft.is_open) == (1, is_open)


def test_what_is_forced_is_bounded_over_all_rounds() -> None:
    draft = make_draft(Rules({5: [6] * (MAX_DRAFTED_FORCED - 1), 7: [8, 8, 8]}))
    draft.follow(Guess([5], 3))
    draft.follow(Guess([7], 3))
    assert draft.kinds.count(None) == MAX_DRAFTED_FORCED
    assert draft.token_ids[-2:] == [7, 8]


def test_nothing_is_taken_back_where_nothing_was_taken() -> None:
    make_draft(Rules()).undo()
    make_draft().undo()


def test_odds_are_learnt_from_guesses_up_to_the_first_wrong_one() -> None:
    speculator = make_speculator()
    part = make_slice(draft_ids=[5, 6, 7, 8], kinds=[3, None, 4, 5], num_accepted=2)
    speculator.learn(Step([part]), 0.01)
    assert speculator._odds[3] == pytest.approx(HOPE + (1 - HOPE) / 30)
    assert speculator._odds[4] == pytest.approx(HOPE - HOPE / 30)
    assert speculator._odds._odds.keys() == {3, 4}


def test_nobody_is_guessed_for_where_the_best_guess_would_not_pay() -> None:
    speculator, parts = make_speculator(), [make_slice(f"r{i}") for i in range(8)]
    assert len(speculator._promising(parts, 8, 8)) == 8
    speculator._pace = pace_of((1, 1.0), (9, 9.0))  # a step costs by the token
    assert speculator._promising(parts, 8, 8) == []
    assert speculator._promising([], 8, 8) == []


def test_at_most_so_many_are_guessed_for() -> None:
    speculator = make_speculator()
    speculator._pace = pace_of((1, 1.0), (99, 1.0))
    assert len(speculator._promising([make_slice(f"r{i}") for i in range(40)], 40, 40)) == 32


def test_a_draft_leaves_room_for_the_token_after_it() -> None:
    speculator, part = make_speculator(), make_slice()
    part.request.max_tokens = 6
    draft = speculator._open(part)
    assert draft
    assert (draft.max_guesses, draft.max_tokens) == (5, 5)
    part.request.max_tokens = 20
    draft = speculator._open(part)
    assert draft
    assert (draft.max_guesses, draft.max_tokens) == (8, 19)
    part.request.token_ids.extend([4, 5])
    draft = speculator._open(part)
    assert draft
    assert draft.max_tokens == 17, "two are written already"
    part.request.max_tokens = 3
    assert speculator._open(part) is None


@pytest.mark.parametrize(("num_others", "has_guess"), [(0, True), (7, True), (8, False)])
def test_one_who_runs_ahead_is_looked_after_where_few_run(num_others: int, *, has_guess: bool) -> None:
    speculator = make_speculator(Guess([5], 3))
    ahead, *others = [make_slice(f"r{i}") for i in range(num_others + 1)]
    ahead.request.num_pending = 1
    speculator.learn(Step([ahead, *others]), 0.01)
    assert ahead.request.has_guess is has_guess
    assert not any(other.request.has_guess for other in others)


def test_who_runs_ahead_waits_only_for_good_guesses() -> None:
    speculator, part = make_speculator(Guess([5], 3)), make_slice()
    part.request.num_pending = 1
    for _ in range(30):
        speculator._odds.observe(3, is_right=False)
    speculator.learn(Step([part]), 0.01)
    assert part.request.has_guess is False


def test_a_guess_that_is_right_every_other_time_is_not_waited_for() -> None:
    speculator, part = make_speculator(Guess([5], 3)), make_slice()
    part.request.num_pending = 1
    speculator._odds._odds[3] = 0.5
    speculator._look_ahead([part])
    assert part.request.has_guess is False


def test_the_likeliest_guesses_of_all_come_first_while_they_pay() -> None:
    speculator = make_speculator()
    likely, unlikely = make_draft(), make_draft()
    likely.follow(Guess([5, 6, 7, 8], 3))
    unlikely.follow(Guess([5, 6, 7, 8], 4))
    for _ in range(200):
        speculator._odds.observe(3, is_right=True)
        speculator._odds.observe(4, is_right=False)
    assert speculator._worth([unlikely, likely, make_draft()], 3, 3) == [0, 4, 0]
    speculator._pace = pace_of((1, 1.0), (9, 9.0))
    assert speculator._worth([likely], 3, 3) == [0]
    assert speculator._worth([likely], 3, 2) == [4]


def test_a_guess_that_brings_no_more_than_it_costs_is_not_made() -> None:
    """One of 16 has half a token to gain; another token costs a step of two the 32nd part of its time."""
    speculator, draft = make_speculator(), make_draft()
    speculator._odds._odds[3] = 0.5
    draft.follow(Guess([5], 3))
    for num_running, num_made in ((16, 0), (15, 1)):
        assert len(speculator._promising([make_slice()], num_running, 2)) == num_made
        assert speculator._worth([draft], 2, num_running) == [num_made]
