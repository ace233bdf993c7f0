"""What is said of one point of the checklist."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"
    """It could not be told."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` is what to do, and empty where nothing needs doing."""

    check: str
    verdict: Verdict
    measured: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
