"""How much is drafted and for whom, by the numbers: the pace of steps, the odds of drafts, what a grammar allows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from tests.engine.tiny import greedy, make_request

from hotloop.core.config import MAX_DRAFTED_FORCED
from hotloop.core.request import Request
from hotloop.engine.decode import TokenDecoder
from hotloop.engine.drafting.drafter import DraftRequest, Proposal
from hotloop.engine.drafting.history import MAX_MATCH
from hotloop.engine.drafting.payoff import StepCost
from hotloop.engine.drafting.speculation import AcceptanceRates, Draft, Speculator
from hotloop.engine.scheduler.scheduler import Scheduler
from hotloop.engine.step import Slice, Step


def hope(match: int) -> float:
    return 1 - 1 / (match + 2)


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
    """Drafts the same for everybody."""

    proposal: Proposal
    wants: list[DraftRequest] = field(default_factory=list)
    model = None

    def propose(self, wants: Sequence[DraftRequest]) -> list[Proposal]:
        self.wants += wants
        return [self.proposal for _ in wants]

    def learn(self, request: Request) -> None: ...

    def close(self) -> None: ...


def make_slice(name: str = "r", **changes: object) -> Slice:
    request = make_request([1, 2, 3], name, sampling=greedy(40))
    request.max_tokens = 40
    return Slice(request, 0, 1, wants_token=True, **changes)


def make_draft(rules: Rules | None = None, max_proposed: int = 4) -> Draft:
    return Draft(make_slice(), rules, max_proposed, 39)


def make_speculator(proposal: Proposal | None = None) -> Speculator:
    return Speculator(Repeating(proposal or Proposal([])), TokenDecoder([], can_force=True), max_draft_tokens=8)


def cost_of(*steps: tuple[int, float]) -> StepCost:
    cost = StepCost()
    for num_tokens, duration_s in sorted(steps, reverse=True):  # none seems disturbed
        cost.observe(num_tokens, duration_s)
    return cost


def test_odds_follow_what_was_right_and_go_back_to_hope() -> None:
    odds = AcceptanceRates()
    assert (odds[3], odds[14], odds.best) == (hope(3), hope(14), hope(MAX_MATCH)), "longer matches are better"
    odds.observe(3, is_right=False)
    assert odds[3] == pytest.approx(hope(3) - hope(3) / 30)
    assert (odds[4], odds.best) == (hope(4), hope(MAX_MATCH))
    for _ in range(60):
        odds.observe(4, is_right=True)
        odds.observe(MAX_MATCH, is_right=False)
    assert odds.best == odds[4] > 0.95
    before = odds[3]
    odds.relax()
    assert odds[3] == pytest.approx(before + 0.002 * (hope(3) - before))


def test_a_draft_model_is_soon_found_out_and_nobody_forgets_it() -> None:
    odds = AcceptanceRates()
    assert odds[0] == 0.7
    for _ in range(10):
        odds.observe(0, is_right=False)
    assert odds[0] == pytest.approx(0.7 * 4 / 14)
    odds.relax()
    assert odds[0] == pytest.approx(0.7 * 4 / 14)
    assert odds.best == hope(MAX_MATCH), "it is no copy"


def test_a_draft_is_taken_as_far_as_there_is_room() -> None:
    draft = make_draft(max_proposed=2)
    draft.follow(Proposal([5, 6, 7], 3))
    assert (draft.token_ids, draft.match_lengths, draft.num_proposed, draft.is_open) == ([5, 6], [3, 3], 2, False)


def test_without_a_grammar_there_is_one_round() -> None:
    draft = make_draft()
    draft.follow(Proposal([5, 6], 3))
    assert (draft.token_ids, draft.num_proposed, draft.is_open) == ([5, 6], 2, False)
    want = draft.want()
    assert (list(want.token_ids), want.max_tokens) == ([1, 2, 3, 5, 6], 2)


def test_a_draft_ends_where_the_grammar_forbids_it() -> None:
    rules = Rules(forbids=(6,))
    draft = make_draft(rules)
    draft.follow(Proposal([5, 6, 7], 3))
    assert (draft.token_ids, draft.match_lengths, draft.is_open) == ([5], [3], False)
    draft.undo()
    assert rules.taken == []


def test_what_the_grammar_forces_is_no_draft() -> None:
    draft = make_draft(Rules({5: [6, 7]}))
    draft.follow(Proposal([5, 6, 7, 8], 3))
    assert (draft.token_ids, draft.match_lengths) == ([5, 6, 7, 8], [3, None, None, 3])
    assert (draft.num_proposed, draft.is_open) == (2, False)


@pytest.mark.parametrize(("max_proposed", "is_open"), [(4, True), (1, False)])
def test_where_the_grammar_leads_elsewhere_another_draft_is_asked_for(max_proposed: int, *, is_open: bool) -> None:
    draft = make_draft(Rules({5: [6, 9]}), max_proposed)
    draft.follow(Proposal([5, 6, 7, 8], 3))
    assert (draft.token_ids, draft.match_lengths) == ([5, 6, 9], [3, None, None])
    assert (draft.num_proposed, draft.is_open) == (1, is_open)


def test_what_is_forced_is_bounded_over_all_rounds() -> None:
    draft = make_draft(Rules({5: [6] * (MAX_DRAFTED_FORCED - 1), 7: [8, 8, 8]}))
    draft.follow(Proposal([5], 3))
    draft.follow(Proposal([7], 3))
    assert draft.match_lengths.count(None) == MAX_DRAFTED_FORCED
    assert draft.token_ids[-2:] == [7, 8]


def test_nothing_is_taken_back_where_nothing_was_taken() -> None:
    make_draft(Rules()).undo()
    make_draft().undo()


def test_odds_are_learnt_from_drafts_up_to_the_first_wrong_one() -> None:
    speculator = make_speculator()
    part = make_slice(draft_ids=[5, 6, 7, 8], match_lengths=[3, None, 4, 5], num_accepted=2)
    speculator.learn(Step([part]), 0.01)
    assert speculator._acceptance[3] == pytest.approx(hope(3) + (1 - hope(3)) / 30)
    assert speculator._acceptance[4] == pytest.approx(hope(4) - hope(4) / 30)
    assert speculator._acceptance._acceptance.keys() == {3, 4}


@pytest.mark.parametrize(("token_id", "is_right"), [(5, True), (6, False)])
def test_a_draft_that_did_not_pay_is_learnt_from_as_well(token_id: int, *, is_right: bool) -> None:
    """It is compared with the token that was written where it would have been."""
    speculator, part = make_speculator(Proposal([5], 3)), make_slice()
    part.begin, part.end = 2, 3
    speculator._cost = cost_of((1, 1.0), (2, 4.0))
    speculator._acceptance._acceptance[3] = before = 0.5
    speculator.draft(Step([part]), cast(Scheduler, None))
    part.request.token_ids.append(token_id)
    speculator.learn(Step([part]), 1.0)
    assert (speculator._acceptance[3] > before) == is_right


def test_nobody_is_drafted_for_where_the_best_draft_would_not_pay() -> None:
    speculator, parts = make_speculator(), [make_slice(f"r{i}") for i in range(8)]
    speculator._cost = cost_of((8, 1.0), (72, 1.1))
    assert len(speculator._promising(parts, 8, 8)) == 8
    speculator._cost = cost_of((1, 1.0), (8, 8.0), (72, 72.0))  # a step costs by the token
    assert speculator._promising(parts, 8, 8) == []
    assert speculator._promising([], 8, 8) == []


def test_a_step_without_drafts_is_measured_first_and_now_and_then() -> None:
    """Else there would be nothing to compare with: what such a step takes cannot be told from others."""
    speculator, part = make_speculator(), make_slice()
    assert speculator._promising([part], 1, 9), "one that prefills as well is no such step"
    assert speculator._promising([part], 1, 1) == []
    speculator.learn(Step([part]), 1.0)
    for _ in range(64):
        assert speculator._promising([part], 1, 1)
        speculator._cost.observe(9, 1.0)
    assert speculator._promising([part], 1, 1) == []


def test_a_step_is_not_taken_to_last_as_long_as_the_drafts_before_it() -> None:
    speculator = make_speculator()
    speculator._drafting_s = 2.0
    speculator.learn(Step([make_slice()]), 3.0)
    assert speculator._cost.seconds(1) == pytest.approx(1.0)
    speculator.learn(Step([make_slice()]), 1.0)
    assert speculator._cost.seconds(1) == pytest.approx(1.0)


def test_at_most_so_many_are_drafted_for() -> None:
    speculator = make_speculator()
    speculator._cost = cost_of((40, 1.0), (99, 1.0))
    assert len(speculator._promising([make_slice(f"r{i}") for i in range(40)], 40, 40)) == 32


def test_a_draft_leaves_room_for_the_token_after_it() -> None:
    speculator, part = make_speculator(), make_slice()
    part.request.max_tokens = 6
    draft = speculator._open(part)
    assert draft
    assert (draft.max_proposed, draft.max_tokens) == (5, 5)
    part.request.max_tokens = 20
    draft = speculator._open(part)
    assert draft
    assert (draft.max_proposed, draft.max_tokens) == (8, 19)
    part.request.token_ids.extend([4, 5])
    draft = speculator._open(part)
    assert draft
    assert draft.max_tokens == 17, "two are written already"
    part.request.max_tokens = 3
    assert speculator._open(part) is None


@pytest.mark.parametrize(("num_others", "has_draft"), [(0, True), (7, True), (8, False)])
def test_one_who_runs_ahead_is_looked_after_where_few_run(num_others: int, *, has_draft: bool) -> None:
    speculator = make_speculator(Proposal([5], 3))
    ahead, *others = [make_slice(f"r{i}") for i in range(num_others + 1)]
    ahead.request.num_pending = 1
    speculator.learn(Step([ahead, *others]), 0.01)
    assert ahead.request.has_draft is has_draft
    assert not any(other.request.has_draft for other in others)


def test_who_runs_ahead_waits_only_for_good_drafts() -> None:
    speculator, part = make_speculator(Proposal([5], 3)), make_slice()
    part.request.num_pending = 1
    for _ in range(30):
        speculator._acceptance.observe(3, is_right=False)
    speculator.learn(Step([part]), 0.01)
    assert part.request.has_draft is False


def test_a_draft_that_is_right_every_other_time_is_not_waited_for() -> None:
    speculator, part = make_speculator(Proposal([5], 3)), make_slice()
    part.request.num_pending = 1
    speculator._acceptance._acceptance[3] = 0.5
    speculator._look_ahead([part])
    assert part.request.has_draft is False


def test_who_runs_ahead_does_not_wait_for_a_draft_that_would_not_pay() -> None:
    speculator, part = make_speculator(Proposal([5], 3)), make_slice()
    part.request.num_pending = 1
    speculator._look_ahead([part])
    assert part.request.has_draft is True
    speculator._cost = cost_of((1, 1.0), (8, 8.0), (72, 72.0))  # a step costs by the token
    speculator._look_ahead([part])
    assert part.request.has_draft is False


def test_the_likeliest_drafts_of_all_come_first_while_they_pay() -> None:
    speculator = make_speculator()
    likely, unlikely = make_draft(), make_draft()
    likely.follow(Proposal([5, 6, 7, 8], 3))
    unlikely.follow(Proposal([5, 6, 7, 8], 4))
    for _ in range(200):
        speculator._acceptance.observe(3, is_right=True)
        speculator._acceptance.observe(4, is_right=False)
    assert speculator._worth([unlikely, likely, make_draft()], 3, 3) == [0, 4, 0]
    speculator._cost = cost_of((1, 1.0), (9, 10.0))
    assert speculator._worth([likely], 3, 3) == [0]
    assert speculator._worth([likely], 3, 2) == [4]


def test_a_draft_that_brings_no_more_than_it_costs_is_not_made() -> None:
    """One of 16 has half a token to gain; another token costs a step of two the 32nd part of its time."""
    speculator, draft = make_speculator(), make_draft()
    speculator._acceptance._acceptance |= {3: 0.5, MAX_MATCH: 0.5}
    draft.follow(Proposal([5], 3))
    for num_running, num_made in ((16, 0), (15, 1)):
        assert len(speculator._promising([make_slice()], num_running, 2)) == num_made
        assert speculator._worth([draft], 2, num_running) == [num_made]


@pytest.mark.parametrize(("num_running", "host_s", "worth"), [(64, 0.0, 1), (64, 0.004, 0), (1, 0.004, 1)])
def test_a_draft_for_one_does_not_let_many_wait_for_the_host(num_running: int, host_s: float, worth: int) -> None:
    speculator, draft = make_speculator(), make_draft()
    draft.follow(Proposal([5], 3))
    speculator.learn(Step([make_slice(f"r{i}") for i in range(num_running)]), 0.008, host_s)
    assert speculator._worth([draft], num_running, num_running) == [worth]


def test_steps_with_drafts_are_measured_without_the_host() -> None:
    speculator = make_speculator()
    speculator.learn(Step([make_slice(draft_ids=[5], match_lengths=[3])]), 0.008, 0.003)
    assert speculator._cost.seconds(2) == pytest.approx(0.005)
    assert speculator._cost.stall_s == pytest.approx(0.003)


def test_where_a_grammar_keeps_steps_apart_drafts_cost_no_more() -> None:
    speculator, part = make_speculator(), make_slice()
    part.request.grammar = "a"
    speculator.learn(Step([part]), 0.008, 0.003)
    assert speculator._cost.stall_s == 0
