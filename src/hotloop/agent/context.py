"""What tools are given beside their arguments: things of the run, found by type. No globals.

    @tool
    def find(query: str, db: Context[Database]) -> str: ...

    agent.run("...", context=[Database("shop.db")])

The model never sees such a parameter. A run adds one thing of its own: the `Run` a tool runs in.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from hotloop.core.errors import ConfigError

T = TypeVar("T")


class FromContext:
    """Marks a parameter that comes from the run, not from the model."""


Context = Annotated[T, FromContext()]


@dataclass(frozen=True, slots=True)
class Run:
    """The run a tool is called in, for tools that ask for `Context[Run]`."""

    id: str
    session_id: str
    _is_cancelled: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was given up: what runs in a thread cannot be stopped from outside, so it should look."""
        return self._is_cancelled.is_set()

    def cancel(self) -> None:
        self._is_cancelled.set()


class Surroundings:
    """The things of a run, by type. The first of a type, or of a type derived from it, is taken."""

    def __init__(self, things: Iterable[Any] = ()) -> None:
        self._things = tuple(things)

    def find(self, wanted: type[T]) -> T:
        for thing in self._things:
            if isinstance(thing, wanted):
                return thing
        raise ConfigError(f"a tool wants a {wanted.__name__}, and the run's context has none")
