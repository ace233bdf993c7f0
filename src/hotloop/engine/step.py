"""What one step computes, in integers: a slice for each request that takes part."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hotloop.core.errors import HotloopError
from hotloop.core.request import Request


@dataclass(slots=True)
class Slice:
    """Tokens [begin, end) of one request, to be computed in one step, and what is drafted to follow them.

    computed  [ begin ............ end | draft_ids ......... ]
    kept      [ begin ............ end | num_accepted |
    """

    request: Request
    begin: int
    end: int
    wants_token: bool  # whether this brings the request level with its tokens, so that a new one can be sampled
    draft_ids: Sequence[int] = ()
    match_lengths: Sequence[int | None] = ()  # how long a match each draft was copied from; None: it is forced
    unused: tuple[int, int] | None = None  # a draft that was not worth computing, and its kind
    num_accepted: int = 0  # how many of the drafts turned out to be the request's tokens
    num_right: int = 0  # how many of those were not forced
    error: HotloopError | None = None  # then what was computed is not shared, and the request fails
    first_row: int = 0  # the first of the step's logit rows that are this slice's
    slots: tuple[int, int] | None = None  # which recurrent state it reads and writes, if the model has any
    epoch: int = 0  # how often its request had given way when it was launched

    @property
    def num_tokens(self) -> int:
        return self.end - self.begin + len(self.draft_ids)

    @property
    def num_proposed(self) -> int:
        return len(self.match_lengths) - self.match_lengths.count(None)

    @property
    def is_kept(self) -> bool:
        """Whether the blocks it was computed into are still its request's."""
        return not self.request.is_finished and self.epoch == self.request.num_preemptions


@dataclass(slots=True)
class Step:
    slices: list[Slice] = field(default_factory=list)
    prefixes: set[bytes] = field(default_factory=set)
    """The first block of each chunk that others may want as well, with all before it."""

    @property
    def num_tokens(self) -> int:
        return sum([part.end - part.begin + len(part.draft_ids) for part in self.slices])


@dataclass(slots=True)
class StepPlan:
    slices: dict[str, Slice] = field(default_factory=dict)
    prefixes: set[bytes] = field(default_factory=set)
    num_left: int = 0  # how many prompt tokens it may still prefill
    num_decoding: int = 0  # rows of those who decode
    num_prefilled: int = 0  # how many it prefills already
    num_deferred: int = 0  # how many new sessions were not admitted
    is_closed: bool = False  # nobody joins any more: one who waits was refused, or one who ran preempted
