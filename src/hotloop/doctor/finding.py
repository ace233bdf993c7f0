"""What is said of one point of the checklist."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"
    """It could not be told."""


class Judged(NamedTuple):
    """`trouble` says which of the check's troubles it is, where there are several: advice is looked up by it."""

    verdict: Verdict
    measured: str
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`advice` is what to do, and empty where nothing needs doing."""

    check: str
    verdict: Verdict
    measured: str
    advice: str = ""
