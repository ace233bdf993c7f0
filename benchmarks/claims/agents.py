"""Recorded agents at several servers on one card, as tables and lines: from what `python -m benchmarks.gpu.served`
measured, docs/figures/agents-gpu.json, alone."""

import json
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.claims.result import Taken
from hotloop.core.errors import ConfigError

EVERY_S = 2
"""Between two points of a line."""
_CODING, _CROWDED, _LONG, _SHORT = (
    "16 coding agents",
    "32 coding agents",
    "three prompts of 8,000",
    "100 tokens beside them",
)
_FEW = (
    ("16 coding agents", "tokens/s per user", _CODING, "{tokens_s_user:.0f}"),
    ("", "mean session; the last one", _CODING, "{mean_session_s:.0f} s; {last}"),
    ("32, more than fit", "all done", _CROWDED, "{last}"),
    ("192 customer-service agents", "mean session", "192 service agents", "{mean_session_s:.1f} s"),
    ("three prompts of 8,000 tokens", "mean time to first token", _LONG, "{ttft:.2f} s"),
)
_SERVICE = {
    "mean session": "{mean_session_s:.1f} s",
    "TTFT p50 / p90": "{ttft_p50_s:.2f} / {ttft_p90_s:.2f} s",
    "tokens/s per user": "{tokens_s_user:.0f}",
    "card busy": "{busy:.0%}",
}
_BESIDE = "{beside_ms:.0f} ms, {beside:.1f} times as alone ({alone_ms:.0f} ms); {long_beside:.2f}"
_OTHERS = (
    (
        "16 coding agents as below: tokens/s per user; mean session; last done",
        _CODING,
        "{tokens_s_user:.0f}; {mean_session_s:.1f} s; {last}",
    ),
    ("32 coding agents, more than fit: tokens/s per user; all done", _CROWDED, "{tokens_s_user:.0f}; {last}"),
    ("their prompts found in the cache, of what could be", _CROWDED, "{cached:.3f} of {cacheable:.3f}"),
    ("three prompts of 8,000 at once, mean TTFT", _LONG, "{ttft:.2f} s"),
    ("100 tokens beside three of those, p95 TTFT; the long ones", _SHORT, _BESIDE),
    ("64 × (1,024 + 128), output tokens/s", "64 x (1,024 + 128)", "{rates}"),
    ("256 × the same", "256 x (1,024 + 128)", "{rates}"),
    ("decode alone at 2,048, tokens/s", "alone at 2,048", "{rates}"),
    ("decode alone at 32,768, tokens/s", "alone at 32,768", "{rates}"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """Of each row what each server had, and where and when."""

    about: str
    taken: Taken
    servers: Mapping[str, str]
    """Their versions, by name."""
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]]
    earlier: Mapping[str, str] = field(default_factory=dict)
    """Of rows that were taken in another run, in which."""

    @property
    def where(self) -> str:
        servers = ", ".join(f"{name} {version}" for name, version in self.servers.items())
        return f"{self.about}; {servers}, one after the other, one run each. ({self.when}.)"

    @property
    def when(self) -> str:
        return f"{self.taken.machine}; commit {self.taken.commit}, {self.taken.date}"

    def label(self, name: str, row: str) -> str:
        return f"{name} ({self.earlier[row]})" if name and row in self.earlier else name

    def cells(self, row: str, form: str) -> list[str]:
        return [self._cell(row, server, form) for server in self.servers]

    def _cell(self, row: str, server: str, form: str) -> str:
        try:
            return form.format_map(self._told(row, server))
        except KeyError:
            return "not taken"

    def _told(self, row: str, server: str) -> dict[str, Any]:
        """What is kept, and what follows from it."""
        kept = self.rows[row][server]
        told = dict(kept)
        if "done" in kept:
            is_whole = row.startswith(f"{kept['done']} ")
            told["last"] = ("" if is_whole else f"{kept['done']} after ") + f"{kept['seconds']:.0f} s"
        if "mean_ttft_s" in kept:
            told["ttft"] = statistics.median(kept["mean_ttft_s"])
        if "output_tokens_s" in kept:
            told["rates"] = ", ".join(f"{rate:,.0f}" for rate in kept["output_tokens_s"])
        if row == _SHORT:
            told["alone_ms"], told["beside_ms"] = 1000 * kept["alone_p95_s"], 1000 * kept["beside_p95_s"]
            told["beside"] = kept["beside_p95_s"] / kept["alone_p95_s"]
            told["long_beside"] = kept["long_beside_s"] / self._told(_LONG, server)["ttft"]
        return told

    def lines(self) -> dict[str, list[float]]:
        """How many sessions of coding agents were done by then; none where it was not kept."""
        found = {
            f"{server}, {row.split()[0]} agents": each
            for row in (_CROWDED, _CODING)
            if row not in self.earlier
            for server, each in self.rows.get(row, {}).items()
        }
        return {
            name: [float(bisect_right(each["ends_s"], EVERY_S * i)) for i in range(int(each["seconds"] / EVERY_S) + 2)]
            for name, each in found.items()
            if all("ends_s" in each for each in found.values())
        }


def read_run(path: Path) -> Run | None:
    try:
        plain = json.loads(path.read_text("utf-8")) if path.exists() else None
        return plain and Run(**{**plain, "taken": Taken(**plain["taken"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} holds no run of python -m benchmarks.gpu.served: {error}") from None


def render_few(run: Run) -> list[str]:
    """What the README says of it."""
    head = ["recorded agents at once", "", *run.servers]
    return _table(head, [[run.label(name, row), what, *run.cells(row, form)] for name, what, row, form in _FEW])


def render_all(run: Run) -> list[str]:
    """What the page on GPUs says of it."""
    nums = sorted(int(row.split()[0]) for row in run.rows if row.endswith("service agents"))
    service = [
        [name if not i else "", server, *(run.cells(f"{num} service agents", form)[i] for num in nums)]
        for name, form in _SERVICE.items()
        for i, server in enumerate(run.servers)
    ]
    rows = [[run.label(name, row), *run.cells(row, form)] for name, row, form in _OTHERS]
    head = ["customer-service agents at once", "", *map(str, nums)]
    return [*_table(head, service), "", *_table(["the same run", *run.servers], rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return [first, f"{'|---' * len(head)}|", *others]
