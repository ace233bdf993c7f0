"""What the dashboard shows: a store of recorded runs and, if passed in, what runs now and what the linter finds.

A run that was killed cannot say so. One that has not ended is believed to go on until nothing was heard of it for
`LOST_S`; a tool, or an answer, that takes longer makes it seem lost, until it is heard of again.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict

from hotloop.core.version import __version__
from hotloop.trace.money import PriceTable
from hotloop.trace.runs import RunSummary, TraceStore
from hotloop.trace.span import Span
from hotloop.ui.scene import draw_run
from hotloop.ui.source import MAX_TIME_S, LintLine, Live, RunFilter, SummaryFilter
from hotloop.ui.summary import summarise
from hotloop.wire.field import Json

LOST_S = 600.0
_MAX_SUMMED = 20_000
_SCAN = 1000
"""Lines read at once, while looking for those that a filter wants."""


class StoreSource:
    """Where the dashboard's facts come from. `live` and `lint` are left out where there is nothing to ask.

    `live` is asked on the event loop, all else on threads, and may wait. Of runs a `tenant` is shown its own alone.
    """

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
        self.about: Json = {"title": title, "model": model, "version": __version__}
        self.about |= {"has_live": live is not None, "has_lint": lint is not None}
        self._live = live
        self._lint = lint

    async def live(self) -> Live | None:
        """None where nothing runs, as with a file of recorded runs."""
        return await self._live() if self._live else None

    def runs(self, wanted: RunFilter, tenant: str | None = None) -> Json:
        """Lines are looked through from the newest on until there are enough; `before` says where to go on."""
        found: list[Json] = []
        before, now_ns = wanted.before, self._clock()
        ago_ns = now_ns - _ns(wanted.since_s) if wanted.since_s else 0
        since_ns, until_ns = max(ago_ns, _ns(wanted.from_s or 0)), _ns(wanted.to_s) if wanted.to_s else None
        num_lines = _SCAN if wanted.text or wanted.end or wanted.min_wall_s else wanted.limit + 1
        while True:
            has_errors = True if wanted.has_errors else None
            scanned = self._store.runs(
                num_lines, before=before, tenant=tenant, since_ns=since_ns, until_ns=until_ns, has_errors=has_errors
            )
            for run in scanned:
                state = _state(run, now_ns)
                if not _is_wanted(run, state["end"], wanted):
                    continue
                if len(found) == wanted.limit:
                    return {"runs": found, "before": found[-1]["id"]}
                place = {"id": run.trace_id, "start_ms": run.start_ns / 1e6, "wall_ms": run.wall_s * 1e3}
                found.append(asdict(run) | place | state)
            if len(scanned) < num_lines:
                return {"runs": found, "before": None}
            before = scanned[-1].trace_id

    def summary(self, wanted: SummaryFilter, tenant: str | None = None) -> Json:
        """Of the newest runs of that time, and of the newest requests, `_MAX_SUMMED` at most."""
        until_ns = min(self._clock(), _ns(wanted.to_s or MAX_TIME_S))
        since_ns = until_ns - _ns(wanted.since_s) if wanted.from_s is None else min(_ns(wanted.from_s), until_ns - 1)
        read = self._store.routed if wanted.by == "replica" else self._store.runs
        runs = read(_MAX_SUMMED, tenant=tenant, since_ns=since_ns, until_ns=until_ns)
        answered = self._store.answered(_MAX_SUMMED, tenant=tenant, since_ns=since_ns, until_ns=until_ns)
        return summarise(runs, answered, wanted.by, since_ns, until_ns)

    def version(self, run_id: str, tenant: str | None = None) -> str | None:
        """Another whenever `run` would tell something else; None where there is none of that id.

        What a list would show of a run changes whenever a span is added.
        """
        run = self._store.run(run_id, tenant)
        if run is None:
            return None
        state = repr((run, _state(run, self._clock()) | {"running_ms": None}))
        return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def run(self, run_id: str, tenant: str | None = None) -> Json | None:
        """A run as `draw_run` gives it, and its state."""
        run, spans = self._store.run(run_id, tenant), self._store.spans(run_id)
        if not run or not spans:
            return None
        return draw_run(spans, self._prices) | {"tags": run.tags} | _state(run, self._clock())

    def lint(self, run_id: str, tenant: str | None = None) -> Sequence[LintLine] | None:
        """The linter's findings; None where there is no linter here, or no such run."""
        spans = self._store.spans(run_id) if self._lint and self._store.run(run_id, tenant) else []
        return self._lint(spans) if self._lint and spans else None


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _state(run: RunSummary, now_ns: int) -> Json:
    """How a run ended, or that it has not (empty for a plain client's); how many of its requests were aborted; since
    when it runs, if it does; and whether more may come: a plain client does not say when it is done.
    """
    is_heard_of = now_ns - run.end_ns < LOST_S * 1e9
    end = run.end
    if run.is_running:
        end = "running" if is_heard_of else "lost"
    running_ms = max(now_ns - run.start_ns, 0) / 1e6 if end == "running" else None
    is_open = (run.is_running or not run.end) and is_heard_of
    return {"end": end, "num_aborted": run.num_aborted, "running_ms": running_ms, "is_open": is_open}


def _is_wanted(run: RunSummary, end: str, wanted: RunFilter) -> bool:
    """Whether a run is one of those a filter asks for; how it has gone wrong is the store's to say."""
    if wanted.end is not None and (end or "none") != wanted.end:
        return False
    if run.wall_s < wanted.min_wall_s:
        return False
    text = wanted.text.casefold()
    words = (run.session, run.agent, run.model, run.tags)
    return not text or run.trace_id.startswith(text) or any(text in word.casefold() for word in words)
