"""What passes between the ingress, the placement and a replica."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from hotloop.router.placement.placement import Prompt
from hotloop.router.placement.policy import Choice
from hotloop.router.summary import AnswerSummary
from hotloop.router.upstream.wire import Headers


class Trip:
    """What becomes of a request, from the ingress to the placement: two threads of one process.

    A replica has no use for it, so what is pickled is an empty one.
    """

    def __init__(self) -> None:
        self._begun: Future[None] = Future()
        self._told: Future[AnswerSummary] = Future()

    def __reduce__(self) -> tuple[type["Trip"], tuple[()]]:
        return Trip, ()

    def begin(self) -> None:
        self._begun.set_result(None)

    def end(self, summary: AnswerSummary) -> None:
        """Nothing more will come. Said once, however it ended."""
        self._told.set_result(summary)

    def when_begun(self, then: Callable[[], object]) -> None:
        self._begun.add_done_callback(lambda _: then())

    def when_over(self, then: Callable[[AnswerSummary], object]) -> None:
        self._told.add_done_callback(lambda future: then(future.result()))


@dataclass(frozen=True, slots=True)
class Outline(Prompt):
    """A prompt to place. The default is one that any replica answers alike."""

    maker: str = ""
    """The replica that made what this builds on; nobody else knows it."""
    trip: Trip = field(default_factory=Trip)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    status: int
    headers: Headers
    replica: str
    """Who answers."""
    choice: Choice | None
    """Whom the placement chose, and why."""
