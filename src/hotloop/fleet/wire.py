"""What passes between the ingress, the placement and a replica."""

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
        self.begun: Future[None] = Future()
        """Done when the head of the answer is there."""
        self.ended: Future[AnswerSummary] = Future()
        """Done when nothing more will come, however it ended."""

    def __reduce__(self) -> tuple[type["Trip"], tuple[()]]:
        return Trip, ()


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
    choice: Choice | None
    """Whom the placement chose, and why."""
