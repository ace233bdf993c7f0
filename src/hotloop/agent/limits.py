"""How much a run may use up, and what it has used: turns, tokens, time, money."""

import threading
import time
from dataclasses import dataclass, field, replace

from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.prices import Prices
from hotloop.core.request import Priority
from hotloop.wire.usage import ApiUsage


class LimitReached(HotloopError):
    """A run used up what it was given; `limit` says of what. What was said so far is in the conversation."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use; None is without limit."""

    turns: int | None = 25
    calls: int | None = 200
    """Of tools, in all turns together."""
    tokens: int | None = None
    """Prompt and output, of all turns together."""
    time_s: float | None = None
    money: float | None = None
    concurrency: int = 16
    """How many tools run at once."""

    def __post_init__(self) -> None:
        for name in ("turns", "calls", "tokens", "time_s", "money", "concurrency"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be above zero, not {value}")


def price(usage: ApiUsage, prices: Prices) -> float:
    return prices.cost(usage.num_prompt, usage.num_cached or 0, usage.num_output)


@dataclass(slots=True)
class RunUsage:
    """What a run has used so far."""

    num_turns: int = 0
    num_calls: int = 0
    usage: ApiUsage = field(default_factory=ApiUsage)
    money: float = 0.0
    num_reused: int = 0
    """Calls whose result was that of the same call, made before or under way."""
    saved_s: float = 0.0
    """What tools would have taken for them."""
    began_at: float = field(default_factory=time.monotonic)

    @property
    def time_s(self) -> float:
        return time.monotonic() - self.began_at

    def count_call(self, limits: Limits) -> None:
        """One call more; raises LimitReached if it may not be made."""
        if limits.calls is not None and self.num_calls >= limits.calls:
            raise LimitReached("calls", f"the run has used its limit of {limits.calls} calls")
        self.num_calls += 1

    def check(self, limits: Limits) -> None:
        """Raise LimitReached if there is none left for another turn."""
        for name, unit, used, limit in (
            ("turns", "turns", self.num_turns, limits.turns),
            ("tokens", "tokens", self.usage.num_tokens, limits.tokens),
            ("time_s", "seconds", self.time_s, limits.time_s),
            ("money", "units of money", self.money, limits.money),
        ):
            if limit is not None and used >= limit:
                raise LimitReached(name, f"the run has used its limit of {limit} {unit}")


@dataclass(frozen=True, slots=True)
class Run:
    """The run a tool is called in, for tools that ask for `Context[Run]`."""

    id: str
    session_id: str
    limits: Limits = field(default_factory=Limits)
    spent: RunUsage = field(default_factory=RunUsage)
    caller: "Run | None" = None
    """The run this is a call of, if an agent is the tool of another."""
    priority: Priority = Priority.INTERACTIVE
    """The class of its turns."""
    _is_cancelled: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was given up: what runs in a thread cannot be stopped from outside, so it should look."""
        return self._is_cancelled.is_set()

    def cancel(self) -> None:
        self._is_cancelled.set()

    def charge(self, usage: ApiUsage, money: float) -> None:
        """Something was used up, and so it was for whoever called."""
        self.spent.usage += usage
        self.spent.money += money
        if self.caller:
            self.caller.charge(usage, money)

    def check(self) -> None:
        """Raise LimitReached if there is none left for another turn, here or for whoever called."""
        self.spent.check(self.limits)
        if self.caller:
            replace(self.caller, limits=replace(self.caller.limits, turns=None)).check()  # turns are counted apart
