"""What several processes of one server know together: each has a copy, and tells the others what it changes in its own.

A copy is never asked about over a link, so looking something up takes no time. Two processes that change the same thing
at once may keep either's change: what is shared is a cache, or told by one process alone.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

Value = TypeVar("Value")


class Sharing(Protocol):
    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to share with."""

    def share(self, topic: str, kind: type[Value], apply: Callable[[Value], None]) -> Callable[[Value], None]:
        """A change, made by `apply`, as one that is made in all processes. Called from any thread; for the changes of
        the others `apply` is called on the event loop. `kind` is what MessagePack can hold."""


class Unshared:
    """One process has everything."""

    is_alone = True

    def share(self, topic: str, kind: type[Value], apply: Callable[[Value], None]) -> Callable[[Value], None]:
        return apply


UNSHARED = Unshared()
