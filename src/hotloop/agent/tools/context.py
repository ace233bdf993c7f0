"""What tools are given beside their arguments: things of the run, found by type. No globals.

    @tool
    def find(query: str, db: Context[Database]) -> str: ...

    agent.run("...", context=[Database("shop.db")])

The model never sees such a parameter. A run adds one thing of its own: the `Run` a tool runs in.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from hotloop.agent.limits import Limits, Spent
from hotloop.core.errors import ConfigError
from hotloop.wire.usage import Usage

T = TypeVar("T")


class FromContext:
    """Marks a parameter that comes from the run, not from the model."""


Context = Annotated[T, FromContext()]


@dataclass(frozen=True, slots=True)
class Run:
    """The run a tool is called in, for tools that ask for `Context[Run]`."""

    id: str
    session_id: str
    limits: Limits = field(default_factory=Limits)
    spent: Spent = field(default_factory=Spent)
    caller: "Run | None" = None
    """The run this is a call of, if an agent is the tool of another."""
    _is_cancelled: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was given up: what runs in a thread cannot be stopped from outside, so it should look."""
        return self._is_cancelled.is_set()

    def cancel(self) -> None:
        self._is_cancelled.set()

    def charge(self, usage: Usage, money: float) -> None:
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


class Surroundings:
    """The things of a run, by type. The first of a type, or of a type derived from it, is taken."""

    def __init__(self, things: Iterable[Any] = ()) -> None:
        self.things = tuple(things)

    def find(self, wanted: type[T]) -> T:
        for thing in self.things:
            if isinstance(thing, wanted):
                return thing
        raise ConfigError(f"a tool wants a {wanted.__name__}, and the run's context has none")
