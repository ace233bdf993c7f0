"""Values that an argument has again and again, whatever was said before.

A value is kept only if nothing said before explains it, it does not look like somebody's (an id, a date, an address, an
amount), and `MIN_RUNS` runs have used it. Until then there is but a mark of it, too short to tell which of many values
it was. Somebody who comes often would else be written down by name.
"""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

MIN_RUNS = 3
_MAX_MARKS = 32
_MARK_BYTES = 3
_MAX_CHARS = 32
_MAX_NUMBER = 1000


def may_be_constant(value: Any) -> bool:
    """Whether a value may be written down: yes, no, a small number, or words without digits and signs."""
    if isinstance(value, str):
        return re.fullmatch(rf"[^\W\d_][^\W\d]{{0,{_MAX_CHARS - 1}}}", value) is not None
    return isinstance(value, int) and abs(value) < _MAX_NUMBER


@dataclass(slots=True)
class Seen:
    """How many runs have used a value, and the last that did."""

    num_runs: int = 0
    last_run: int = 0


@dataclass(slots=True)
class Constants:
    """The values of one argument."""

    by_mark: dict[str, Seen] = field(default_factory=dict)

    def see(self, value: str, run: int) -> bool:
        """Note that a run uses a value (as JSON); whether that is usual by now."""
        mark = hashlib.blake2s(value.encode("utf-8", "replace"), digest_size=_MARK_BYTES).hexdigest()
        seen = self.by_mark.setdefault(mark, Seen())
        if seen.last_run != run:
            seen.num_runs += 1
            seen.last_run = run
        while len(self.by_mark) > _MAX_MARKS:
            self.by_mark.pop(
                min(self.by_mark, key=lambda each: (self.by_mark[each].num_runs, self.by_mark[each].last_run))
            )
        return seen.num_runs >= MIN_RUNS

    def _worth(self, mark: str) -> tuple[int, int]:
        return self.by_mark[mark].num_runs, self.by_mark[mark].last_run
