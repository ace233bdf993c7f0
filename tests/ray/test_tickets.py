"""Tickets: whatever becomes of a request, nothing is left of it."""

import pickle
from collections.abc import Callable, Sequence

from hotloop.ray.tickets import InFlight, Outline, Tickets
from hotloop.router.placement.placement import Placement
from hotloop.router.placement.policy import PlacementRequest, ReplicaChoice, ReplicaView
from hotloop.router.summary import AnswerSummary

KEY = bytes(range(64))


class Watched:
    """Tickets over a placement whose views a test can see; the policy chooses the name that was given first."""

    def __init__(self, *names: str) -> None:
        self.views: dict[str, ReplicaView] = {}
        placement = Placement(self._choose, block_tokens=128)
        self.tickets = Tickets(placement)
        for name in names:
            self.tickets.placement.add_replica(name, capacity_tokens=10_000)

    def offer(self, attempt: str, outline: Outline, *names: str) -> str | None:
        choice = self.tickets.offer(attempt, outline, names)
        return choice.name if choice else None

    def has_ended(self) -> bool:
        return not self.tickets._offered and not self.tickets._running

    def num_running(self, name: str) -> int:
        return self.views[name].num_running

    def _choose(self, views: Sequence[ReplicaView], placing: PlacementRequest) -> ReplicaChoice:
        self.views |= {view.name: view for view in views}
        return ReplicaChoice(views[0].name, "first")


def now(then: Callable[[], None]) -> None:
    then()


def test_a_request_runs_until_its_answer_is_told():
    deployment, outline = Watched("a"), Outline(KEY, 1000)
    assert deployment.offer("1", outline, "a") == "a"
    deployment.tickets.settle("1", "a", "r", now)
    outline.trip.begun.set_result(None)
    deployment.tickets.complete("a", "r", now)
    assert deployment.num_running("a") == 1
    outline.trip.ended.set_result(AnswerSummary(num_prompt=900, num_cached=0, num_output=5))
    assert deployment.num_running("a") == 0
    assert deployment.views["a"].work_tokens == 0
    assert deployment.has_ended()


def test_the_answer_may_be_told_before_serve_says_that_it_is_over():
    deployment, outline = Watched("a"), Outline(KEY, 1000)
    deployment.offer("1", outline, "a")
    deployment.tickets.settle("1", "a", "r", now)
    outline.trip.ended.set_result(AnswerSummary())
    deployment.tickets.complete("a", "r", now)
    assert deployment.num_running("a") == 0
    assert deployment.has_ended()


def test_whoever_takes_it_instead_is_the_one_that_counts():
    deployment, outline = Watched("a", "b"), Outline(KEY, 1000)
    assert deployment.offer("1", outline, "a", "b") == "a"
    deployment.tickets.settle("1", "b", "r", now)
    assert (deployment.num_running("a"), deployment.num_running("b")) == (0, 1)
    deployment.tickets.complete("b", "r", now)
    outline.trip.ended.set_result(AnswerSummary())
    assert deployment.num_running("b") == 0


def test_what_nobody_took_is_offered_again_and_counted_once():
    deployment, outline = Watched("a"), Outline(KEY, 1000)
    deployment.offer("1", outline, "a")
    deployment.offer("1", outline, "a")
    assert deployment.num_running("a") == 1
    deployment.tickets.settle("1", None, "r", now)
    assert deployment.num_running("a") == 0
    assert deployment.has_ended()


def test_a_replica_that_has_no_room_after_all_is_tried_again():
    deployment, outline = Watched("a"), Outline(KEY, 1000)
    for attempt in ("1", "2"):
        deployment.offer(attempt, outline, "a")
        deployment.tickets.settle(attempt, "a", "r", now)
    deployment.tickets.complete("a", "r", now)
    deployment.tickets.complete("a", "r", now)
    outline.trip.ended.set_result(AnswerSummary())
    assert deployment.num_running("a") == 0
    assert deployment.has_ended()


def test_a_replica_that_is_gone_takes_its_tickets_along():
    deployment, outline = Watched("a", "b"), Outline(KEY, 1000)
    deployment.offer("1", outline, "a")
    deployment.tickets.settle("1", "a", "r", now)
    deployment.tickets.remove_replica("a")
    assert deployment.has_ended()
    deployment.tickets.complete("a", "r", now)
    outline.trip.ended.set_result(AnswerSummary())
    assert deployment.offer("2", Outline(), "a") is None
    deployment.tickets.settle("2", "a", "r", now)


def test_a_trip_stays_in_its_process():
    outline = Outline(KEY, 7)
    outline.trip.ended.set_result(AnswerSummary())
    assert isinstance(outline.trip, InFlight)
    copied = pickle.loads(pickle.dumps(outline))
    assert (copied.key, copied.num_tokens) == (KEY, 7)
    copied.trip.ended.set_result(AnswerSummary())
