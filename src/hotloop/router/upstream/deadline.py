"""A timer that is moved often and hardly ever rings.

Moving it later, which is what each piece of a stream does, costs an assignment: the loop's own timer stays where it is,
and when it comes it looks at where the deadline has got to.
"""

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls `ring` once the time last set has passed, unless it was cleared."""

    __slots__ = ("_at", "_ring", "_timer")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, delay_s: float) -> None:
        """Ring in so many seconds, and not when it was set to before."""
        loop = asyncio.get_running_loop()
        self._at = at = loop.time() + delay_s
        if self._timer is None or at < self._timer.when():
            self._arm(loop, at)

    def clear(self) -> None:
        """Do not ring. The timer is left to find that out."""
        self._at = None

    def close(self) -> None:
        """Do not ring, and leave nothing with the loop."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self._come)

    def _come(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._at is None:
            return
        if loop.time() < self._at:
            self._arm(loop, self._at)
            return
        self._at = None
        self._ring()
