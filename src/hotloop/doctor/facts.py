"""What the probes find out, as plain values: no opinion lives here.

None stands for what the deployment does not tell.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer as it came. An arrival brought text or a piece of a call; what comes within a millisecond is one."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments."""
    arrivals_s: tuple[float, ...] = ()
    total_s: float = 0.0
    num_pieces: int = 0
    num_prompt: int | None = None
    num_cached: int | None = None
    num_output: int | None = None
    client: str = ""
    server: str = ""
    """The two ends of the connection it came over: another client's end is another connection."""
    num_refused: int = 0
    """How often it was told to come again later; the waiting is in no time here."""

    @property
    def first_s(self) -> float:
        return self.arrivals_s[0] if self.arrivals_s else self.total_s

    @property
    def spread(self) -> float:
        """The share of the time in which the answer was arriving."""
        return (self.arrivals_s[-1] - self.arrivals_s[0]) / self.total_s if self.arrivals_s and self.total_s else 0.0

    @property
    def cached_share(self) -> float | None:
        return self.num_cached / self.num_prompt if self.num_cached is not None and self.num_prompt else None

    @property
    def num_tokens(self) -> int:
        """Of the answer; where that is not told, a piece is taken for a token."""
        return self.num_output if self.num_output is not None else self.num_pieces


class Repeated(NamedTuple):
    """A long prompt that nobody has sent before, the same once more, and a short one to compare with.

    Where the second found nothing, `later` are the same again and again.
    """

    first: TimedAnswer
    second: TimedAnswer
    short: TimedAnswer
    later: Sequence[TimedAnswer] = ()


class Connected(NamedTuple):
    """Requests one after the other by a client that would keep its connection, and one after it was idle."""

    num_requests: int
    num_connections: int
    idle_s: float
    is_open_after_idle: bool


class Batched(NamedTuple):
    """Answers of about the same length: some alone, then several at once, sent at the same moment."""

    alone: Sequence[TimedAnswer]
    together: Sequence[TimedAnswer]
    together_s: float

    @property
    def overlap(self) -> float:
        """How many answers were arriving at a time, in the mean; one after the other would be 1."""
        spans = [each.arrivals_s for each in self.together if each.arrivals_s]
        if not spans:
            return 0.0
        whole_s = max(span[-1] for span in spans) - min(span[0] for span in spans)
        return sum(span[-1] - span[0] for span in spans) / whole_s if whole_s else float(len(spans))

    @property
    def alone_rate(self) -> float:
        return statistics.median(each.num_tokens / each.total_s if each.total_s else 0.0 for each in self.alone)

    @property
    def together_rate(self) -> float:
        num_tokens = sum(each.num_tokens for each in self.together)
        return num_tokens / self.together_s if self.together_s else 0.0

    @property
    def speedup(self) -> float:
        return self.together_rate / self.alone_rate if self.alone_rate else 0.0


class CallCounts(NamedTuple):
    """Calls of a strict tool whose schema does not allow what the user asks for."""

    num_demanded: int
    num_calls: int
    num_valid: int
    example: str = ""
    """Of a call that is not valid."""
    refusal: str = ""
    """What was said, if such requests are not taken."""


class KeptPrefix(NamedTuple):
    """How much of one turn's prompt the next turn's prompt begins with, by their token ids."""

    what: str
    num_before: int
    num_common: int


class TurnsProbe(NamedTuple):
    """Two turns of a conversation, the second with the first's own answer in it."""

    first: TimedAnswer
    second: TimedAnswer
    kept: Sequence[KeptPrefix] = ()


class HungUp(NamedTuple):
    """Clients that went away in the middle of long answers. Running requests are as the deployment's metrics tell."""

    num_clients: int
    num_before: int | None = None
    num_during: int | None = None
    num_after: int | None = None
    waited_s: float = 0.0
    alone_s: float = 0.0
    amid_s: float = 0.0
    following_s: float = 0.0
    """How long a short answer takes alone, beside theirs and after they went away, where there is no count."""


class ExposureProbe(NamedTuple):
    """Who gets an answer. `address` is whom the connection was made to; behind a client's proxy, that proxy."""

    address: str
    is_encrypted: bool
    status_without_key: int | None
    other_addresses: Sequence[str] = ()
    """Those of this machine, other than loopback, that answer on the same port."""
