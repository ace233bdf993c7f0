"""Limits of keys, held to the request: what was used in the last minute and in this month, and what is under way.

A request counts when it is admitted. Its tokens and money are estimated until its answer says what they were, so that
many at once cannot overrun a limit by more than their estimates are wrong. Months are those of UTC.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hotloop.http.keys import UNLIMITED, KeyLimits, Tenant
from hotloop.router.errors import RouteError

_MINUTE_S = 60.0


@dataclass(slots=True)
class Used:
    requests: int = 0
    tokens: int = 0
    money: float = 0.0

    def add(self, other: "Used", sign: int = 1) -> None:
        self.requests += sign * other.requests
        self.tokens += sign * other.tokens
        self.money += sign * other.money


@dataclass(slots=True, eq=False)
class Admitted:
    """A request under way: told what it took, once."""

    tenant: Tenant
    month: str
    at: float
    used: Used


@dataclass(slots=True)
class _Account:
    minute: Used = field(default_factory=Used)
    month: Used = field(default_factory=Used)
    month_name: str = ""
    latest: deque[Admitted] = field(default_factory=deque)
    """Those of the last minute."""


class Quotas:
    """`clock` is monotonic, `now` is unix time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._now = now
        self._accounts: dict[str, _Account] = {}
        self._month_name, self._month_ends_at = "", -math.inf

    def restore(self, name: str, month: str, used: Used) -> None:
        """What a key had used of a month before this process began."""
        account = self._accounts.setdefault(name, _Account())
        if month == self._month():
            account.month_name, account.month = month, used

    def admit(self, tenant: Tenant, *, tokens: int, money: float) -> Admitted:
        """Raises RouteError where a limit is reached, which says which one and when to come back."""
        at, month = self._clock(), self._month()
        account = self._accounts.setdefault(tenant.label, _Account())
        if account.month_name != month:
            account.month_name, account.month = month, Used()
        self._forget(account, at)
        reached = self._reached(tenant.limits, account, at) if tenant.limits is not UNLIMITED else ()
        for limit, retry_after_s in reached:
            message = f"the API key {tenant.label!r} has reached its limit of {limit}"
            raise RouteError(429, "quota_exceeded", message, retry_after_s=retry_after_s)
        admitted = Admitted(tenant, month, at, Used(1, tokens, money))
        account.minute.add(admitted.used)
        account.month.add(admitted.used)
        account.latest.append(admitted)
        return admitted

    def settle(self, admitted: Admitted, *, tokens: int, money: float) -> None:
        """What a request took in truth, in place of the estimate."""
        account, at = self._accounts[admitted.tenant.label], self._clock()
        self._forget(account, at)
        change = Used(0, tokens - admitted.used.tokens, money - admitted.used.money)
        if at - admitted.at < _MINUTE_S:  # else it has been forgotten
            account.minute.add(change)
        if account.month_name == admitted.month:
            account.month.add(change)
        admitted.used = Used(1, tokens, money)

    def _forget(self, account: _Account, at: float) -> None:
        while account.latest and at - account.latest[0].at >= _MINUTE_S:
            account.minute.add(account.latest.popleft().used, -1)
        if not account.latest:
            account.minute = Used()  # sums of fractions drift

    def _reached(self, limits: KeyLimits, account: _Account, at: float) -> Iterator[tuple[str, float]]:
        oldest_at = account.latest[0].at if account.latest else at
        month_left_s = self._month_ends_at - self._now()
        spans = (("minute", account.minute, oldest_at + _MINUTE_S - at), ("month", account.month, month_left_s))
        for span, used, left_s in spans:
            for name in ("requests", "tokens", "money"):
                limit = getattr(limits, f"{name}_per_{span}")
                if limit is not None and getattr(used, name) >= limit:
                    yield f"{limit:g} {name} per {span}", left_s

    def _month(self) -> str:
        if self._now() >= self._month_ends_at:
            now = datetime.fromtimestamp(self._now(), UTC)
            year, month = divmod(now.year * 12 + now.month, 12)
            self._month_name = now.strftime("%Y-%m")
            self._month_ends_at = datetime(year, month + 1, 1, tzinfo=UTC).timestamp()
        return self._month_name
