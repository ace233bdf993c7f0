"""What a rule is: an id, words for people, and a pure function from a run to findings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hotloop.lint.finding import Finding, Severity, TextPlace, Waste
from hotloop.lint.run import LintedRun

Check = Callable[[LintedRun], Iterator[Finding]]

_MAX_QUOTED = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`min_recomputed`: findings that cost fewer tokens in their run are notes. `is_habit`: what a client does here to
    one message it does to all of them, so that all it does in a run is one finding.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    mend: str
    check: Check
    min_recomputed: int = 0
    is_habit: bool = False

    def found(
        self,
        place: TextPlace,
        words: str,
        waste: Waste | None = None,
        *,
        severity: Severity | None = None,
        mend: str = "",
    ) -> Finding:
        return Finding(
            rule=self.id,
            severity=severity or self.severity,
            place=place,
            words=words,
            mend=mend or self.mend,
            waste=waste or Waste(),
        )


def quote(text: str) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return repr(line if len(line) <= _MAX_QUOTED else line[: _MAX_QUOTED - 1] + "…")
