"""The interface of drafters. One may be wrong: every draft is verified, so a wrong one costs time and changes no token.
What a draft is worth, and how it goes with a grammar, is decided in `speculation`.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hotloop.core.request import Request


class DraftRequest(NamedTuple):
    """A request to draft for: `token_ids` are its tokens and what is drafted already; the draft follows them."""

    request: Request
    token_ids: "array[int]"
    max_tokens: int
    max_steps: int = 0
    """So many tokens may a draft model propose: as many as are worth its time."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What may come next. Drafts of as long a `match` are right about equally often."""

    token_ids: list[int] = field(default_factory=list)
    match: int = 0  # how many tokens before it were found where it was copied from; 0: it is not a copy


class DraftModel(Protocol):
    """What a draft takes where it takes steps of the hardware, one after the other."""

    @property
    def sure(self) -> float:
        """How often such a step brings a token."""

    def step_s(self, num_requests: int) -> float:
        """What a step for so many takes; 0 if that is not known yet."""

    def read_s(self, request: Request) -> float:
        """What it takes beforehand to catch up with a request."""


class Drafter(Protocol):
    @property
    def model(self) -> DraftModel | None:
        """What drafts may come from, beside the past."""

    def propose(self, wants: Sequence[DraftRequest]) -> list[Proposal]:
        """One proposal a want, at most `max_tokens` long; empty where there is none."""

    def learn(self, request: Request) -> None:
        """A request has ended: remember what it read and wrote, and let go of what was kept for it."""

    def close(self) -> None:
        """Give the memory back."""


class EitherDrafter:
    """Asks the second where the first has no draft: the past costs next to nothing, a draft model steps of its own."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._both = first, second
        self.model = first.model or second.model

    def propose(self, wants: Sequence[DraftRequest]) -> list[Proposal]:
        first, second = self._both
        proposals = first.propose(wants)
        left = [i for i, proposal in enumerate(proposals) if not proposal.token_ids]
        if left:
            for i, proposal in zip(left, second.propose([wants[i] for i in left]), strict=True):
                proposals[i] = proposal
        return proposals

    def learn(self, request: Request) -> None:
        for drafter in self._both:
            drafter.learn(request)

    def close(self) -> None:
        for drafter in self._both:
            drafter.close()
