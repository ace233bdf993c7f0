"""Runs read from a store (`store`) while others write it: summed up, span by span, and request by request."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.money import PriceTable
from hotloop.trace.span import Span
from hotloop.trace.tables import SPAN_COLUMNS, as_span, is_damage, open_to_read

_LAST = "last"
_AS_STORED = (
    "trace_id", "start_ns", "end_ns", "session", "tenant", "agent", "model", "end", "tags", "num_spans", "num_errors",
    "num_recomputed", "num_aborted", "num_lost_prompt", "num_lost_output", "error",
)  # fmt: skip


def _of_failed(value: str) -> str:
    """A sum over the requests of a run that gave no answer, 0 without a look at the spans where nothing failed."""
    spans = f"spans WHERE spans.trace_id = runs.trace_id AND name = '{names.REQUEST}' AND error != ''"
    return f"iif(num_errors, coalesce((SELECT sum({value}) FROM {spans}), 0), 0)"


_RUNS = f"""
SELECT *, {_of_failed("error = 'abort'")} AS num_aborted,
{_of_failed(f"json_extract(attributes, '$.{names.NUM_PROMPT}')")} AS num_lost_prompt,
{_of_failed(f"json_extract(attributes, '$.{names.NUM_OUTPUT}')")} AS num_lost_output,
iif(num_errors, (SELECT error FROM spans WHERE spans.trace_id = runs.trace_id AND error != ''
    ORDER BY name != '{names.RUN}', end_ns DESC LIMIT 1), '') AS error
FROM runs"""
_FACTS = {"replica": names.REPLICA, "model": names.MODEL}
_COUNTS = {name: name for name in (names.NUM_PROMPT, names.NUM_CACHED, names.NUM_OUTPUT)}
_IN_TIME = "runs.start_ns >= ? AND runs.start_ns < ? AND runs.tenant = ifnull(?, runs.tenant)"
_ROUTED = f"""
SELECT spans.trace_id, spans.start_ns, spans.end_ns, spans.session, spans.tenant, spans.error,
{", ".join(f"coalesce(json_extract(attributes, '$.{name}'), '') AS {what}" for what, name in _FACTS.items())},
{", ".join(f"coalesce(json_extract(attributes, '$.{name}'), 0) AS {what}" for what, name in _COUNTS.items())}
FROM runs JOIN spans USING (trace_id) WHERE name = '{names.ROUTE}' AND {_IN_TIME}
ORDER BY runs.start_ns DESC LIMIT ?"""
_SERVED = f"""
SELECT max(iif(name = '{names.REQUEST}', spans.start_ns, 0)) AS asked_ns,
max(iif(name = '{names.QUEUE}', spans.end_ns, NULL)) AS scheduled_ns,
max(iif(name = '{names.PREFILL}', spans.end_ns, NULL)) AS first_ns,
max(iif(name = '{names.REQUEST}', coalesce(json_extract(attributes, '$.{names.PRIORITY}'), ''), '')) AS priority,
max(coalesce(json_extract(attributes, '$.{names.IS_PREFILL_ONLY}'), 0)) AS is_ahead
FROM runs JOIN spans USING (trace_id)
WHERE name IN ('{names.REQUEST}', '{names.QUEUE}', '{names.PREFILL}') AND {_IN_TIME}
GROUP BY trace_id, iif(name = '{names.REQUEST}', span_id, parent_id) HAVING asked_ns AND NOT is_ahead
ORDER BY asked_ns DESC LIMIT ?"""
_PASSED_ON = f"""
SELECT spans.start_ns AS asked_ns, spans.start_ns + json_extract(attributes, '$.{names.QUEUE_NS}') AS scheduled_ns,
json_extract(attributes, '$.{names.FIRST_BYTE_NS}') AS first_ns,
coalesce(json_extract(attributes, '$.{names.PRIORITY}'), '') AS priority
FROM runs JOIN spans USING (trace_id) WHERE name = '{names.ROUTE}' AND {_IN_TIME}
ORDER BY spans.start_ns DESC LIMIT ?"""
_FOREVER_NS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A line of a list of runs. What an agent paid is known from itself, or by a price table."""

    trace_id: str
    start_ns: int
    end_ns: int
    session: str
    tenant: str  # from its spans; empty if only an agent recorded the run
    agent: str
    model: str
    end: str  # how the agent's run ended; empty for one that has not, or a plain client's
    is_running: bool  # whether an agent's run has begun and not ended, be it because it was killed
    num_turns: int
    num_spans: int
    num_errors: int
    num_aborted: int  # requests whose client left before the answer's end
    num_lost_prompt: int  # tokens of requests that failed or were aborted, which the counts below leave out
    num_lost_output: int
    num_prompt: int
    num_cached: int
    num_output: int
    num_recomputed: int  # prompt tokens that were recomputed, as far as a server of ours tells
    money: float
    tags: str = ""  # separated by spaces
    error: str = ""  # what went wrong last; of a run that failed, why
    replica: str = ""  # of one request that a router passed on

    @property
    def wall_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """How long one request waited, for its turn and for its first token; None where that never came."""

    start_ns: int
    priority: str
    queue_ms: float | None
    first_token_ms: float | None


class TraceStore:
    """Reads a store, while others may be writing it, from any thread. Raises ConfigError where there is none."""

    def __init__(self, path: Path | str, *, prices: PriceTable | None = None) -> None:
        self.path = Path(path)
        self._prices = prices or PriceTable()
        self._lock = threading.Lock()
        self._connect()

    def _connect(self) -> None:
        self._connection = open_to_read(self.path)
        self._connection.row_factory = sqlite3.Row

    def runs(
        self,
        limit: int = 50,
        *,
        before: str | None = None,
        session: str | None = None,
        tenant: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        has_errors: bool | None = None,
    ) -> list[RunSummary]:
        """The newest first. `before` is a run's id: those older than it, for the next page."""
        if before and tenant is not None and not self.run(before, tenant):
            return []  # as for an id that no run has
        conditions: list[tuple[str, Any]] = [
            ("session = ?", session),
            ("tenant = ?", tenant),
            ("start_ns >= ?", since_ns),
            ("start_ns < ?", until_ns),
            ("(num_errors > 0) = ?", has_errors),
            ("(start_ns, trace_id) < (SELECT start_ns, trace_id FROM runs WHERE trace_id = ?)", before),
        ]
        given = [(condition, value) for condition, value in conditions if value is not None]
        where = f"WHERE {' AND '.join(condition for condition, _ in given)}" if given else ""
        query = f"{_RUNS} {where} ORDER BY start_ns DESC, trace_id DESC LIMIT ?"
        rows = self._query(query, *(value for _, value in given), limit)
        with self._readable():
            return [self._summarise(row) for row in rows]

    def routed(
        self, limit: int, *, since_ns: int, until_ns: int = _FOREVER_NS, tenant: str | None = None
    ) -> list[RunSummary]:
        """Requests that a router passed on, each as a run of one turn; the newest first."""
        rows = self._query(_ROUTED, since_ns, until_ns, tenant, limit)
        with self._readable():
            return [self._as_run(row) for row in rows]

    def answered(
        self, limit: int, *, since_ns: int, until_ns: int = _FOREVER_NS, tenant: str | None = None
    ) -> list[AnsweredRequest]:
        """The requests of those runs: what servers recorded, or routers where no server did; the newest first."""
        asked = since_ns, until_ns, tenant, limit
        rows = self._query(_SERVED, *asked) or self._query(_PASSED_ON, *asked)
        with self._readable():
            return [_as_answered(row) for row in rows]

    def num_runs(self) -> int:
        return int(self._query("SELECT count(*) FROM runs")[0][0])

    def run(self, trace_id: str, tenant: str | None = None) -> RunSummary | None:
        """None if there is no such run, or it is not that tenant's."""
        rows = self._query(f"{_RUNS} WHERE trace_id = ? AND tenant = ifnull(?, tenant)", trace_id, tenant)
        with self._readable():
            return self._summarise(rows[0]) if rows else None

    def spans(self, trace_id: str) -> list[Span]:
        """All of a trace, as they began; empty if there is none of that id."""
        query = f"SELECT {SPAN_COLUMNS} FROM spans WHERE trace_id = ? ORDER BY start_ns, end_ns DESC, span_id"
        rows = self._query(query, trace_id)
        with self._readable():
            return [as_span(row) for row in rows]

    def find(self, name: str) -> str:
        """The full id of a run, given a prefix of it or `last`. Raises ConfigError if no run matches, or several."""
        if name == _LAST:
            rows = self._query("SELECT trace_id FROM runs ORDER BY start_ns DESC, trace_id DESC LIMIT 1")
        else:
            rows = self._query("SELECT trace_id FROM runs WHERE substr(trace_id, 1, ?) = ? LIMIT 2", len(name), name)
        if not rows or not name:
            raise ConfigError(f"there is no run {name!r} in {self.path}; `hotloop trace ls` lists them")
        if len(rows) > 1:
            raise ConfigError(f"several runs begin with {name!r}: give more of the id")
        return str(rows[0][0])

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def __enter__(self) -> "TraceStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _query(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock:
            try:
                try:
                    return self._connection.execute(query, values).fetchall()
                except sqlite3.DatabaseError as error:
                    if not is_damage(error):
                        raise
                    self._connect()  # whoever writes it may have begun a new one
                    return self._connection.execute(query, values).fetchall()
            except (sqlite3.Error, UnicodeError, OverflowError) as error:  # the others: of what was asked, or is there
                raise ConfigError(f"cannot read the trace store {self.path}: {error}") from None

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """SQLite does not mind rows of other columns or types than were written, once a page is damaged."""
        try:
            yield
        except (msgspec.MsgspecError, IndexError, TypeError, RecursionError) as error:
            raise ConfigError(f"the trace store {self.path} is damaged: {error}") from None

    def _as_run(self, row: sqlite3.Row) -> RunSummary:
        found = dict(row)
        tokens = {name: found[name] for name in _COUNTS}
        nothing: dict[str, Any] = {
            "num_aborted": 0,
            "num_lost_prompt": 0,
            "num_lost_output": 0,
            "num_recomputed": 0,
            "is_running": False,
        }
        return RunSummary(
            **found,
            **nothing,
            agent="",
            end="",
            num_turns=1,
            num_spans=1,
            num_errors=int(bool(found["error"])),
            money=self._prices.cost(found["model"], **tokens),
        )

    def _summarise(self, row: sqlite3.Row) -> RunSummary:
        layer = "chat" if row["chat_calls"] else "route" if row["route_prompt"] else "request"
        tokens = {f"num_{what}": row[f"{layer}_{what}"] for what in ("prompt", "cached", "output")}
        calls = row["chat_calls"] or row["route_calls"] or row["request_calls"]
        return RunSummary(
            **{name: row[name] for name in _AS_STORED},
            **tokens,
            is_running=row["num_open"] > 0,
            num_turns=row["num_turns"] or calls,
            money=row["money"] or self._prices.cost(row["model"], **tokens),
        )


def _as_answered(row: sqlite3.Row) -> AnsweredRequest:
    queue_ms, first_token_ms = (
        None if row[name] is None else (row[name] - row["asked_ns"]) / 1e6 for name in ("scheduled_ns", "first_ns")
    )
    return AnsweredRequest(
        start_ns=row["asked_ns"], priority=row["priority"], queue_ms=queue_ms, first_token_ms=first_token_ms
    )
