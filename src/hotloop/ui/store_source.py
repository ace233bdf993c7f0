"""A page over a store of recorded runs. Who has more to tell hands it in: what runs now, what the linter finds."""

from collections.abc import Callable, Sequence

from hotloop import __version__
from hotloop.trace.money import PriceTable
from hotloop.trace.span import Span
from hotloop.trace.store import RunSummary, TraceStore
from hotloop.ui.scene import draw_run
from hotloop.ui.source import About, Json, LintLine, Live, RunFilter, RunLine, RunPage

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
        live: Callable[[], Live] | None = None,
        lint: Callable[[Sequence[Span]], Sequence[LintLine]] | None = None,
        prices: PriceTable | None = None,
    ) -> None:
        self._store = store
        self._prices = prices
        self._about = About(
            title=title, model=model, version=__version__, has_live=live is not None, has_lint=lint is not None
        )
        self._live = live
        self._lint = lint

    def about(self) -> About:
        return self._about

    def live(self) -> Live | None:
        return self._live() if self._live else None

    def runs(self, wanted: RunFilter) -> RunPage:
        """Lines are looked through from the newest on until there are enough."""
        found: list[RunSummary] = []
        before = wanted.before
        num_lines = _SCAN if wanted.text or wanted.end or wanted.min_wall_s else wanted.limit + 1
        while True:
            scanned = self._store.runs(num_lines, before=before, has_errors=True if wanted.has_errors else None)
            for run in scanned:
                if not is_wanted(run, wanted):
                    continue
                if len(found) == wanted.limit:
                    return RunPage(tuple(map(_as_line, found)), found[-1].trace_id)
                found.append(run)
            if len(scanned) < num_lines:
                return RunPage(tuple(map(_as_line, found)), None)
            before = scanned[-1].trace_id

    def run(self, run_id: str) -> Json | None:
        spans = self._store.spans(run_id)
        return draw_run(spans, self._prices) if spans else None

    def lint(self, run_id: str) -> Sequence[LintLine] | None:
        spans = self._store.spans(run_id) if self._lint else []
        return self._lint(spans) if self._lint and spans else None


def is_wanted(run: RunSummary, wanted: RunFilter) -> bool:
    """Whether a run is one of those a filter asks for; how it has gone wrong is the store's to say."""
    if wanted.end is not None and (run.end or "none") != wanted.end:
        return False
    if run.wall_s < wanted.min_wall_s:
        return False
    text = wanted.text.casefold()
    words = (run.session, run.agent, run.model)
    return not text or run.trace_id.startswith(text) or any(text in word.casefold() for word in words)


def _as_line(run: RunSummary) -> RunLine:
    return RunLine(
        id=run.trace_id,
        start_ms=run.start_ns / 1e6,
        wall_ms=(run.end_ns - run.start_ns) / 1e6,
        session=run.session,
        agent=run.agent,
        model=run.model,
        end=run.end,
        num_turns=run.num_turns,
        num_spans=run.num_spans,
        num_errors=run.num_errors,
        num_prompt=run.num_prompt,
        num_cached=run.num_cached,
        num_output=run.num_output,
        money=run.money,
    )
