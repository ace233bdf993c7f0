"""When to stop asking: a breaker for each replica, and one budget of retries for all.

    closed ──failures──> open ──after a while──> half open ──an answer begins──> closed, but one failure from open
                          ▲                          └──failure──> open, for twice as long

Failures in a row count; an answer that came to its end ends the row, one that broke off adds to it. Time comes from
outside.
"""

from dataclasses import dataclass

MAX_FAILURES = 3
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 4.0
"""Short, because trying again costs one request a retry, not an answer."""


@dataclass(slots=True)
class Breaker:
    num_failures: int = 0
    opened_until: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    is_probing: bool = False

    def can_ask(self, now: float) -> bool:
        if self.num_failures < MAX_FAILURES:
            return True
        return now >= self.opened_until and not self.is_probing

    def ask(self) -> None:
        """A request goes there; while half open it is the only one."""
        self.is_probing = self.num_failures >= MAX_FAILURES

    def begin(self) -> None:
        """An answer has begun. Whether it comes to its end will be seen."""
        self.num_failures = min(self.num_failures, MAX_FAILURES - 1)
        self.is_probing = False

    def succeed(self) -> None:
        self.num_failures = 0
        self.pause_s = FIRST_PAUSE_S
        self.is_probing = False

    def fail(self, now: float) -> None:
        self.num_failures += 1
        if self.num_failures >= MAX_FAILURES:
            self.opened_until = now + self.pause_s
            self.pause_s = min(2 * self.pause_s, MAX_PAUSE_S)
        self.is_probing = False


@dataclass(slots=True)
class RetryBudget:
    """Each request earns a share of a retry; some are free, or few replicas could never try again."""

    share: float
    most: float = 100.0
    saved: float = 10.0

    def earn(self) -> None:
        self.saved = min(self.saved + self.share, self.most)

    def spend(self) -> bool:
        if self.saved < 1:
            return False
        self.saved -= 1
        return True
