"""What was measured for a claim: each figure without the technique and with it, a pair a repeat, and where.

Results are kept as JSON, one file a machine, and the page is written from these files alone.
"""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from hotloop import __version__
from hotloop.core.config import LoadFormat
from hotloop.core.errors import ConfigError
from hotloop.models.layout import num_active_weights
from hotloop.models.model import load_model

Unit = Literal["tokens", "s", "tokens/s", "cost", "share", "times", "jobs/min"]

_FORMS: Mapping[Unit, Callable[[float], str]] = {
    "tokens": lambda value: f"{value:,.0f} tokens",
    "s": lambda value: f"{value:.2f} s" if value >= 1 else f"{1000 * value:.0f} ms",
    "tokens/s": lambda value: f"{value:,.1f} tokens/s" if value < 1000 else f"{value:,.0f} tokens/s",
    "cost": lambda value: f"{value:.3g}",
    "share": lambda value: f"{value:.0%}",
    "times": lambda value: f"{value:.2f}×",
    "jobs/min": lambda value: f"{value:.2f} jobs/min",
}
_BETTER_WHEN_MORE = ("tokens/s", "jobs/min", "share")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, a value a repeat. Without a baseline it stands for itself."""

    name: str
    unit: Unit
    ours: Sequence[float]
    baseline: Sequence[float] = ()

    @property
    def value(self) -> float:
        return statistics.median(self.ours)

    @property
    def times(self) -> list[float]:
        """How many times better it is with the technique, repeat by repeat."""
        pairs = list(zip(self.baseline, self.ours, strict=False))
        if self.unit in _BETTER_WHEN_MORE:
            return [ours / baseline for baseline, ours in pairs if baseline]
        return [baseline / ours for baseline, ours in pairs if ours]

    @property
    def saved(self) -> list[float]:
        """The share of the baseline that is saved, repeat by repeat."""
        return [1 - ours / baseline for baseline, ours in zip(self.baseline, self.ours, strict=False) if baseline]

    @property
    def num_repeats(self) -> int:
        return min(len(self.ours), len(self.baseline) or len(self.ours))

    @property
    def spread(self) -> float:
        """How far the repeats are apart, of their median: of what is compared with a baseline its factors."""
        values = self.times or self.ours
        middle = abs(statistics.median(values))
        return (max(values) - min(values)) / middle if middle else float(max(values) != min(values))

    def shown(self) -> str:
        """Medians, and how many times better with the least and the most of the repeats."""
        if not self.baseline:
            return f"{self.name} {self.show(self.ours)}"
        before, after = (_FORMS[self.unit](statistics.median(each)) for each in (self.baseline, self.ours))
        if self.unit == "share" or not self.times:
            return f"{self.name} {before} → {after}"
        times, saved = self.times, statistics.median(self.saved)
        spread = f" ({min(times):.2f} to {max(times):.2f})" if len(times) > 1 else ""
        less = f", {saved:.0%} less" if saved > 0 and self.unit not in _BETTER_WHEN_MORE else ""
        return f"{self.name} {before} → {after}: {statistics.median(times):.2f}×{spread}{less}"

    def show(self, values: Sequence[float]) -> str:
        form = _FORMS[self.unit]
        middle, least, most = (form(value) for value in (statistics.median(values), min(values), max(values)))
        return middle if least == most else f"{middle} ({least} to {most})"


@dataclass(frozen=True, slots=True)
class Taken:
    """Where, when and how a result was taken."""

    machine: str
    command: str
    date: str
    version: str
    commit: str = ""
    """With a + where source or benchmarks were changed since; empty of figures that are older than this field."""


def taken_here(command: str, machine: str = "", commit: str = "") -> Taken:
    here = f"{os.cpu_count()} cores, {platform.machine()}"
    return Taken(machine or here, command, f"{datetime.now(UTC):%Y-%m-%d}", __version__, commit or _commit())


def _commit() -> str:
    def git(*words: str) -> str:
        folder = Path(__file__).parents[2]
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short=8", "HEAD") + "+" * bool(git("status", "--porcelain", "src", "benchmarks"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A claim's figures on one machine. Where there are none, `missing` says why."""

    claim: str
    what: str = ""
    """The work, its data and its models."""
    figures: Sequence[Figure] = ()
    note: str = ""
    missing: str = ""
    growth: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Values to draw from step to step, by name."""
    taken: Taken | None = None

    def figure(self, name: str) -> Figure:
        """The figure of that name. Raises KeyError if there is none."""
        return self.by_name[name]

    @property
    def by_name(self) -> dict[str, Figure]:
        return {figure.name: figure for figure in self.figures}


def write_results(
    path: Path, results: Iterable[Result], taken: Taken, is_better: Callable[[Result, Result], bool] = lambda *_: True
) -> None:
    """Results replace those of the same claim that the file has, if they are better; the others stay as they are, and
    figures stay where there are none now."""
    kept = {result.claim: result for result in (read_results(path) if path.exists() else ())}
    new = (
        result
        for result in results
        if result.claim not in kept or (result.figures and is_better(result, kept[result.claim]))
    )
    kept |= {result.claim: replace(result, taken=taken) for result in new}
    try:
        path.write_text(json.dumps([plain_of(result) for result in kept.values()], indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def read_results(path: Path) -> list[Result]:
    try:
        return [_result_of(each) for each in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} holds no results: {error}") from None


def plain_of(result: Result) -> dict[str, Any]:
    plain = {name: value for name, value in asdict(result).items() if value}
    return rounded(plain)  # type: ignore[no-any-return]


def rounded(value: Any) -> Any:
    """With as many digits as anybody reads."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {name: rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [rounded(each) for each in value]
    return value


def _result_of(plain: Mapping[str, Any]) -> Result:
    figures = [Figure(**each) for each in plain.get("figures", ())]
    taken = Taken(**plain["taken"]) if "taken" in plain else None
    return Result(**{**plain, "figures": figures, "taken": taken})


def size_of(name: str, load_format: LoadFormat = "auto") -> str:
    """Such as 1.5B or 135M; embedding and head count once, as where they are the same."""
    spec = load_model(name, load_format).spec
    num_weights = num_active_weights(spec) + spec.vocab_size * spec.hidden_size
    return f"{num_weights / 1e9:.1f}B" if num_weights >= 1e9 else f"{num_weights / 1e6:.0f}M"
