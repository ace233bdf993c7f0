"""What one scenario gave: a figure without the trick and one with it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.claims.published import CLAIMS, Claim

Unit = Literal["tokens", "s", "tokens/s", "cost"]

_FORMS: Mapping[Unit, str] = {
    "tokens": "{:,.0f} tokens",
    "s": "{:.2f} s",
    "tokens/s": "{:.1f} tokens/s",
    "cost": "{:.4g}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Where there is no figure, `skipped` says what it would have needed, or `error` what went wrong."""

    name: str
    what: str = ""
    unit: Unit = "s"
    before: float = 0.0
    after: float = 0.0
    note: str = ""
    growth: tuple[Sequence[float], Sequence[float]] | None = None
    """Both figures up to each step, where a plot should show how they grow."""
    skipped: str = ""
    error: str = ""

    @property
    def claim(self) -> Claim:
        return CLAIMS[self.name]

    @property
    def times(self) -> float | None:
        """How many times better it is with the trick."""
        if not self.before or not self.after:
            return None
        return self.after / self.before if self.unit == "tokens/s" else self.before / self.after

    @property
    def measured(self) -> str:
        if self.skipped:
            return f"not measured: {self.skipped}"
        if self.error:
            return f"failed: {self.error}"
        form = _FORMS[self.unit]
        return f"{form.format(self.before)} → {form.format(self.after)}"

    def to_json(self) -> dict[str, Any]:
        times = None if self.times is None else round(self.times, 3)
        return asdict(self) | {"claimed": self.claim.text, "source": self.claim.source, "times": times}
