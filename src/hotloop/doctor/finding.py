"""What is said of one point of the checklist."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"
    """It could not be told."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`advice` is what to do, and empty where nothing needs doing."""

    check: str
    verdict: Verdict
    measured: str
    trouble: str = ""
    """Which of the check's troubles it is, where there are several: advice is looked up by it."""
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"check": self.check, "verdict": self.verdict, "measured": self.measured, "advice": self.advice}
