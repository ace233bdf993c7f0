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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.content import Content
from hotloop.trace.journal import StoreJournal
from hotloop.trace.span import Clock, Span
from hotloop.trace.tables import StoreDamaged, insert, is_damage, open_to_write, set_aside, transaction
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
            log.warning("%s: it was renamed to %s, and a new one is created", error, aside)
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
                log.warning("the trace cannot be written to %s, and will be retried: %s", self.path, error)
            self._has_failed = True
            self._is_damaged = self._is_damaged or is_damage(error)
            self._num_failed += 1
            return False
        except Exception:  # the top of this thread: who tells nonsense must not end what others record
            log.exception("%d spans could not be recorded", len(self._batch))
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
