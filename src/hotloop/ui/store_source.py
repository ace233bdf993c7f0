"""A page over a store of recorded runs. Who has more to tell hands it in: what runs now, what the linter finds.

A run that was killed cannot say so. One that has not ended is believed to go on until nothing was heard of it for
`LOST_S`; a tool, or an answer, that takes longer makes it seem lost, until it is heard of again.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence

from hotloop.core.version import __version__
from hotloop.trace.money import PriceTable
from hotloop.trace.span import Span
from hotloop.trace.store import RunSummary, TraceStore
from hotloop.ui.scene import draw_run
from hotloop.ui.source import About, Json, LintLine, Live, RunFilter, RunLine, RunPage

LOST_S = 600.0
_SCAN = 1000
"""Lines read at once, while looking for those that a filter wants."""


class StoreSource:
    """`live` and `lint` are left out where there is nothing to ask."""

    def __init__(
        self,
        store: TraceStore,
        *,
        title: str,
        model: str = "",
        live: Callable[[], Awaitable[Live]] | None = None,
        lint: Callable[[Sequence[Span]], Sequence[LintLine]] | None = None,
        prices: PriceTable | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._store = store
        self._clock = clock
        self._prices = prices
        self._about = About(
            title=title, model=model, version=__version__, has_live=live is not None, has_lint=lint is not None
        )
        self._live = live
        self._lint = lint

    def about(self) -> About:
        return self._about

    async def live(self) -> Live | None:
        return await self._live() if self._live else None

    def runs(self, wanted: RunFilter) -> RunPage:
        """Lines are looked through from the newest on until there are enough."""
        found: list[RunLine] = []
        before, now_ns = wanted.before, self._clock()
        num_lines = _SCAN if wanted.text or wanted.end or wanted.min_wall_s else wanted.limit + 1
        while True:
            scanned = self._store.runs(num_lines, before=before, has_errors=True if wanted.has_errors else None)
            for run in scanned:
                if not is_wanted(run, wanted, now_ns):
                    continue
                if len(found) == wanted.limit:
                    return RunPage(tuple(found), found[-1].id)
                found.append(_as_line(run, now_ns))
            if len(scanned) < num_lines:
                return RunPage(tuple(found), None)
            before = scanned[-1].trace_id

    def version(self, run_id: str) -> str | None:
        """What a list would show of it changes whenever a span is added."""
        run, now_ns = self._store.run(run_id), self._clock()
        if run is None:
            return None
        told = repr((run, end_of(run, now_ns), _is_open(run, now_ns)))
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def run(self, run_id: str) -> Json | None:
        run, now_ns = self._store.run(run_id), self._clock()
        spans = self._store.spans(run_id)
        if not run or not spans:
            return None
        state = {"end": end_of(run, now_ns), "running_ms": _running_ms(run, now_ns), "is_open": _is_open(run, now_ns)}
        return draw_run(spans, self._prices) | state

    def lint(self, run_id: str) -> Sequence[LintLine] | None:
        spans = self._store.spans(run_id) if self._lint else []
        return self._lint(spans) if self._lint and spans else None


def end_of(run: RunSummary, now_ns: int) -> str:
    """How it ended, or that it has not; empty for a plain client's."""
    if not run.is_running:
        return run.end
    return "running" if _is_heard_of(run, now_ns) else "lost"


def is_wanted(run: RunSummary, wanted: RunFilter, now_ns: int) -> bool:
    """Whether a run is one of those a filter asks for; how it has gone wrong is the store's to say."""
    if wanted.end is not None and (end_of(run, now_ns) or "none") != wanted.end:
        return False
    if run.wall_s < wanted.min_wall_s:
        return False
    text = wanted.text.casefold()
    words = (run.session, run.agent, run.model)
    return not text or run.trace_id.startswith(text) or any(text in word.casefold() for word in words)


def _is_heard_of(run: RunSummary, now_ns: int) -> bool:
    return now_ns - run.end_ns < LOST_S * 1e9


def _is_open(run: RunSummary, now_ns: int) -> bool:
    """Whether more may come; a plain client does not say when it is done."""
    return (run.is_running or not run.end) and _is_heard_of(run, now_ns)


def _running_ms(run: RunSummary, now_ns: int) -> float | None:
    return max(now_ns - run.start_ns, 0) / 1e6 if end_of(run, now_ns) == "running" else None


def _as_line(run: RunSummary, now_ns: int) -> RunLine:
    return RunLine(
        id=run.trace_id,
        start_ms=run.start_ns / 1e6,
        wall_ms=(run.end_ns - run.start_ns) / 1e6,
        running_ms=_running_ms(run, now_ns),
        session=run.session,
        agent=run.agent,
        model=run.model,
        end=end_of(run, now_ns),
        num_turns=run.num_turns,
        num_spans=run.num_spans,
        num_errors=run.num_errors,
        num_prompt=run.num_prompt,
        num_cached=run.num_cached,
        num_again=run.num_again,
        num_output=run.num_output,
        money=run.money,
    )
