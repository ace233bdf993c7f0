"""What an expectation has been worth so far: of the calls expected at about this rate, how many came?

Whoever picks the best of many guesses picks the luckiest too, so rates promise too much. Each is therefore held against
what then happened, before anything is learned from it.
"""

from dataclasses import dataclass, field

from hotloop.agent.predict.tally import Tally

NUM_BUCKETS = 10
_CAUTION = 0.9
"""What a promise is worth while there is no experience with it."""
_PRIOR_TRIES = 8.0


@dataclass(slots=True)
class Calibration:
    buckets: list[Tally] = field(default_factory=lambda: [Tally() for _ in range(NUM_BUCKETS)])

    def confidence(self, expected: float) -> float:
        return self._bucket(expected).rate(expected * _CAUTION, _PRIOR_TRIES)

    def add(self, expected: float, is_hit: bool) -> None:
        self._bucket(expected).add(is_hit)

    def _bucket(self, expected: float) -> Tally:
        return self.buckets[min(int(expected * NUM_BUCKETS), NUM_BUCKETS - 1)]
