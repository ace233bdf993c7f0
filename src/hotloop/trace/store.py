"""Where spans are kept: one SQLite file that many processes write at once and others read meanwhile.

    record()  ──append──> queue (bounded: the oldest go, and are counted) ─┬─a thread──> one transaction a batch
    journal   ──submit──> queue (nothing is dropped; whoever must, waits) ─┘             at once, one each

What was committed survives the process being killed; after a power cut the last moments may be missing (WAL). A store
holds no more than it was told to, in bytes and in days: the oldest runs go first, whole. Until that is seen to again,
it grows by an eighth of its size at most, and its WAL to a quarter of it.
"""

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.content import Content
from hotloop.trace.journal import StoreJournal
from hotloop.trace.money import PriceTable
from hotloop.trace.span import Clock, Span
from hotloop.trace.tables import (
    SPAN_COLUMNS,
    StoreDamaged,
    as_span,
    insert,
    is_damage,
    open_to_read,
    open_to_write,
    set_aside,
    transaction,
)
from hotloop.trace.tracer import Losses, SpanQueue

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_PENDING = 20_000  # spans that wait to be written; a disk that stands still costs no more memory than these
MAX_PENDING_BYTES = 64 << 20
_MAX_BATCH = 500
_BATCH_S = 0.2
_RETRY_S = 5.0  # after a write that failed
_BOUND_EVERY_S = 10.0
_DAY_NS = 24 * 3600 * 10**9
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
class Bounds:
    max_bytes: int = 256 << 20
    max_age_days: float = 30.0

    @property
    def max_growth(self) -> int:
        """How many bytes are written before the store is held to its bounds again."""
        return self.max_bytes // 8


class StoreTracer:
    """Writes spans to a store in the background. Raises ConfigError where there can be none. One that is damaged is set
    aside, and a new one begun."""

    is_on = True

    def __init__(
        self,
        path: Path | str,
        *,
        bounds: Bounds | None = None,
        content: Content | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        self.path = Path(path)
        self._tags = {names.TAGS: list(tags)} if tags else {}
        self._num_dropped = 0
        self._num_failed = 0
        self._content = content or Content()
        self.keeps_content = self._content.is_kept
        self._bounds = bounds or Bounds()
        self._is_damaged = False
        self._connection = self._open()
        self._pending = SpanQueue(MAX_PENDING, MAX_PENDING_BYTES)
        self._batch: list[Span] = []  # taken, and not yet committed
        self._batch_bytes = 0
        self._unbounded_bytes = 0  # written since the store was last held to its bounds
        self._lock = threading.Lock()
        self._has_news = threading.Event()
        self._is_urgent = threading.Event()
        self._is_closing = threading.Event()
        self._work_waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._bounded_at = -_BOUND_EVERY_S
        self._clock = Clock()  # nothing grows old because somebody sets the system's
        self._has_failed = False
        self.journal = StoreJournal(self.path, self.submit)
        self._thread = threading.Thread(target=self._work, name="hotloop-trace", daemon=True)
        self._thread.start()

    @property
    def losses(self) -> Losses:
        return Losses(self._num_dropped + self._pending.num_dropped, self._num_failed)

    def record(self, span: Span) -> None:
        if self._tags and span.is_root:
            span = msgspec.structs.replace(span, attributes={**span.attributes, **self._tags})
        self._pending.put(span)
        if not self._has_news.is_set():
            self._has_news.set()

    def submit(
        self, work: Callable[[sqlite3.Connection], T], num_bytes: int = 0, is_synced: bool = False
    ) -> "Future[T]":
        """Have something done with the connection, in a transaction of its own, in the order of these calls. The future
        raises ConfigError where it could not be committed. With `is_synced` it survives a power cut, too."""
        future: Future[T] = Future()
        if self._is_closing.is_set():
            future.set_exception(ConfigError(f"the trace store {self.path} is closed"))
            return future
        self._work_waiting.append((lambda: self._do(work, future, is_synced), num_bytes))
        self._is_urgent.set()
        self._has_news.set()
        return future

    def _do(self, work: Callable[[sqlite3.Connection], T], future: "Future[T]", is_synced: bool) -> None:
        if not future.set_running_or_notify_cancel():  # who asked for it has been cancelled meanwhile
            return
        try:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
            with transaction(self._connection):
                value = work(self._connection)
        except sqlite3.Error as error:
            future.set_exception(ConfigError(f"cannot write to the trace store {self.path}: {error}"))
        except Exception as error:  # whoever asked for it is told
            future.set_exception(error)
        else:
            future.set_result(value)

    def flush(self) -> bool:
        """Commit what was recorded before this was called; whether that went well."""
        with self._lock:
            while self._work_waiting:
                work, num_bytes = self._work_waiting.popleft()
                work()
                self._unbounded_bytes += num_bytes
            while self._batch or self._pending:
                if not self._commit():
                    return False
        return True

    def close(self) -> None:
        """Commit what there is. What is recorded from now on is lost."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        self._is_urgent.set()
        self._has_news.set()
        self._thread.join()
        self.flush()  # what came while the thread ended
        with self._lock:
            self._connection.close()
        self.journal.close()
        self._num_dropped += len(self._batch) + len(self._pending)
        if num_dropped := self.losses.num_dropped:
            log.warning("the trace lost %d spans: %s could not be written in time", num_dropped, self.path)

    def _open(self) -> sqlite3.Connection:
        try:
            return open_to_write(self.path, is_doubted=self._is_damaged)
        except StoreDamaged as error:
            if not (aside := set_aside(self.path)):
                raise
            log.warning("%s: it was set aside as %s, and a new one is begun", error, aside)
            return open_to_write(self.path)

    def _work(self) -> None:
        while not self._is_closing.is_set():
            self._has_news.wait()
            self._is_urgent.wait(_BATCH_S)  # more will come: one transaction for all of it
            self._is_urgent.clear()
            self._has_news.clear()
            if not self.flush():
                self._has_news.set()
                self._is_closing.wait(_RETRY_S)
        self.flush()

    def _commit(self) -> bool:
        """Write a batch. One that fails stays for the next time; being told once is enough."""
        if not self._batch:
            self._batch, self._batch_bytes = self._pending.take(_MAX_BATCH, self._bounds.max_growth)
        try:
            if self._is_damaged:
                self._connection.close()
                self._connection = self._open()
                self._is_damaged = False
            insert(self._connection, map(self._content.clean, self._batch))
            self._batch.clear()
            self._has_failed = False
            self._unbounded_bytes += self._batch_bytes
            is_due = time.monotonic() - self._bounded_at >= _BOUND_EVERY_S
            if is_due or self._unbounded_bytes > self._bounds.max_growth:
                bound(self._connection, self._bounds, self._clock.now_ns())
                self._bounded_at, self._unbounded_bytes = time.monotonic(), 0
            self._shorten_wal()
        except (sqlite3.Error, ConfigError) as error:
            if not self._has_failed:
                log.warning("the trace cannot be written to %s and is tried again: %s", self.path, error)
            self._has_failed = True
            self._is_damaged = self._is_damaged or is_damage(error)
            self._num_failed += 1
            return False
        except Exception:  # the top of this thread: who tells nonsense must not end what others record
            log.exception("the trace could not be told of %d spans", len(self._batch))
            self._num_dropped += len(self._batch)
            self._batch.clear()
        return True

    def _shorten_wal(self) -> None:
        """SQLite writes to it anew once all of it is in the file, but leaves it as long as it was."""
        wal = Path(f"{self.path}-wal")
        if wal.exists() and wal.stat().st_size > self._bounds.max_bytes // 4:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def add_spans(path: Path | str, spans: Iterable[Span]) -> int:
    """Put spans that were recorded elsewhere into a store; how many were new. Raises ConfigError."""
    connection, waiting, num_new = open_to_write(Path(path)), iter(spans), 0
    try:
        while batch := list(islice(waiting, _MAX_BATCH)):
            num_new += insert(connection, batch)
    except (sqlite3.Error, msgspec.MsgspecError, UnicodeDecodeError) as error:  # the others: of what is there
        raise ConfigError(f"cannot write to the trace store {path}: {error}") from None
    finally:
        connection.close()
    return num_new


_OLD = """
SELECT trace_id FROM runs WHERE end_ns < ? UNION SELECT trace_id FROM journals
WHERE updated_ns < ? AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.trace_id = journals.trace_id)"""
_OLDEST = (  # a run that can be gone on with goes last
    """SELECT trace_id FROM runs WHERE NOT EXISTS (SELECT 1 FROM journals WHERE journals.trace_id = runs.trace_id
    AND state IN ('running', 'waiting')) ORDER BY end_ns LIMIT 1""",
    "SELECT trace_id FROM runs ORDER BY end_ns LIMIT 1",
)


def bound(connection: sqlite3.Connection, bounds: Bounds, now_ns: int) -> None:
    """Delete what is too old, then the oldest until what is left is small enough. Each run is a transaction."""
    horizon_ns = now_ns - int(min(bounds.max_age_days * _DAY_NS, now_ns))  # they may be kept for ever
    for (trace_id,) in connection.execute(_OLD, (horizon_ns, horizon_ns)).fetchall():
        _delete(connection, trace_id)
    has_shrunk = False
    while _num_bytes(connection) > bounds.max_bytes:
        oldest = next(filter(None, (connection.execute(each).fetchone() for each in _OLDEST)), None)
        if not oldest:
            break
        _delete(connection, oldest[0])
        has_shrunk = True
    if has_shrunk:
        connection.executescript("PRAGMA incremental_vacuum")  # `execute` would give back one page only


def _delete(connection: sqlite3.Connection, trace_id: str) -> None:
    with transaction(connection):
        in_trace = "run_id IN (SELECT run_id FROM journals WHERE trace_id = ?)"
        connection.execute(f"DELETE FROM entries WHERE {in_trace}", (trace_id,))
        for table in ("journals", "spans", "runs"):
            connection.execute(f"DELETE FROM {table} WHERE trace_id = ?", (trace_id,))


def _num_bytes(connection: sqlite3.Connection) -> int:
    """In use; pages that are free will be used again, or given back."""
    pragmas = ("page_count", "freelist_count", "page_size")
    num_pages, num_free, page_bytes = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in pragmas)
    return (num_pages - num_free) * page_bytes


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
        """A run's whole id, from how it may begin, or `last`. Raises ConfigError where that is none, or several."""
        if name == _LAST:
            rows = self._query("SELECT trace_id FROM runs ORDER BY start_ns DESC, trace_id DESC LIMIT 1")
        else:
            rows = self._query("SELECT trace_id FROM runs WHERE substr(trace_id, 1, ?) = ? LIMIT 2", len(name), name)
        if not rows or not name:
            raise ConfigError(f"there is no run {name!r} in {self.path}; `hotloop trace ls` lists them")
        if len(rows) > 1:
            raise ConfigError(f"there are several runs that begin with {name!r}: write more of the id")
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
