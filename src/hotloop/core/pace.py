"""How fast a queue moves: the mean time from one end to the next, of late, while there is work.

Time comes from outside.
"""

_LATELY = 0.1  # the least that the last interval counts


class Pace:
    """`mean_s` is a guess of one second until something has ended."""

    def __init__(self, now: float) -> None:
        self.mean_s = 1.0
        self._ended_at = now
        self._num_ended = 0

    def resume(self, now: float) -> None:
        """There is work again: idle time does not count."""
        self._ended_at = now

    def end_one(self, now: float) -> None:
        self._num_ended += 1
        self.mean_s += max(_LATELY, 1 / self._num_ended) * (now - self._ended_at - self.mean_s)
        self._ended_at = now
