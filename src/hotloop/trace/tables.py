"""The tables of a store, and each statement that touches them.

spans   one row a span, known by (trace_id, span_id): of one that comes twice, that which ends later
runs    one row a trace, summed up in the same transaction, so that a list is read without the spans; tokens by
        layer, since agent, router and server each tell of the same ones
journals, entries   what it takes to go on with an agent's run (`journal`)
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.span import Span
from hotloop.trace.tree import SpanNode, is_open


class StoreDamaged(ConfigError):
    """What is at that path is no database, or one that cannot be read any more."""


class _Outdated(ConfigError):
    """Of an earlier version, which can be given what it lacks."""


VERSION = 7
BUSY_S = 5.0  # how long a writer waits for another; each holds the lock for a few milliseconds

_LAYERS = {names.CHAT: "chat", names.ROUTE: "route", names.REQUEST: "request"}
_BY_LAYER = (f"{layer}_{what}" for layer in _LAYERS.values() for what in ("calls", "prompt", "cached", "output"))
_SUMS = ("num_spans", "num_errors", "num_turns", *_BY_LAYER, "num_recomputed", "num_open")

_SCHEMA = f"""
CREATE TABLE spans (
    trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL, service TEXT NOT NULL,
    start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, session TEXT NOT NULL, attributes TEXT NOT NULL,
    error TEXT NOT NULL, tenant TEXT NOT NULL, PRIMARY KEY (trace_id, span_id)
) WITHOUT ROWID;
CREATE TABLE runs (
    trace_id TEXT PRIMARY KEY, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, session TEXT NOT NULL,
    tenant TEXT NOT NULL, agent TEXT NOT NULL, model TEXT NOT NULL, end TEXT NOT NULL, tags TEXT NOT NULL,
    money REAL NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in _SUMS)}
) WITHOUT ROWID;
CREATE INDEX runs_by_start ON runs (start_ns);
CREATE INDEX runs_by_end ON runs (end_ns);
CREATE INDEX runs_by_session ON runs (session, start_ns);
CREATE INDEX runs_by_tenant ON runs (tenant, start_ns);
"""
_JOURNAL_SCHEMA = """
CREATE TABLE journals (
    run_id TEXT PRIMARY KEY, root_id TEXT NOT NULL, caller_id TEXT NOT NULL, call_id TEXT NOT NULL,
    trace_id TEXT NOT NULL, span_id TEXT NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL, source TEXT NOT NULL,
    state TEXT NOT NULL, owner TEXT NOT NULL, began_ns INTEGER NOT NULL, updated_ns INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE entries (
    run_id TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, call_id TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;
CREATE INDEX journals_by_root ON journals (root_id);
CREATE INDEX journals_by_caller ON journals (caller_id, call_id);
CREATE INDEX journals_by_trace ON journals (trace_id);
CREATE INDEX journals_by_start ON journals (began_ns);
"""
_KINDS_SCHEMA = "CREATE INDEX entries_by_kind ON entries (run_id, kind);"
_TAGS_SCHEMA = "ALTER TABLE runs ADD COLUMN tags TEXT NOT NULL DEFAULT '';"
_STEPS = {
    0: _SCHEMA + _JOURNAL_SCHEMA + _KINDS_SCHEMA,
    4: _JOURNAL_SCHEMA + _TAGS_SCHEMA + _KINDS_SCHEMA,
    5: _TAGS_SCHEMA + _KINDS_SCHEMA,
    6: _KINDS_SCHEMA,
}
"""What a store of an earlier version lacks."""

SPAN_COLUMNS = ", ".join(Span.__struct_fields__)
_INSERT = f"INSERT OR IGNORE INTO spans ({SPAN_COLUMNS}) VALUES ({', '.join('?' * len(Span.__struct_fields__))})"
_REPLACE = _INSERT.replace("IGNORE", "REPLACE")
_FIND = f"SELECT {SPAN_COLUMNS} FROM spans WHERE trace_id = ? AND span_id = ?"
_WORDS = ("session", "tenant", "agent", "model", "end", "tags")
_RUN_COLUMNS = ("trace_id", "start_ns", "end_ns", *_WORDS, "money", *_SUMS)
_UPSERT = f"""
INSERT INTO runs ({", ".join(_RUN_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in _RUN_COLUMNS)})
ON CONFLICT (trace_id) DO UPDATE SET start_ns = min(start_ns, excluded.start_ns), end_ns = max(end_ns, excluded.end_ns),
{", ".join(f"{name} = iif({name} = '', excluded.{name}, {name})" for name in _WORDS)},
money = money + excluded.money, {", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)}
"""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MAGIC = b"SQLite format 3\0"
_UNSAYABLE = (ValueError, TypeError, OverflowError, RecursionError)

_decoder = msgspec.json.Decoder(dict[str, Any])


def open_to_write(path: Path, *, is_doubted: bool = False) -> sqlite3.Connection:
    """The store at a path, made if it is not there; one that is doubted is looked through. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)  # readable by its owner only: it records what agents did
    except OSError as error:
        raise ConfigError(f"cannot open the trace store {path}: {error}") from None
    return _connect(path, str(path), _check if is_doubted else _prepare)


def open_to_read(path: Path) -> sqlite3.Connection:
    """Raises ConfigError, also where there is none."""
    if not path.exists():
        raise ConfigError(f"there is no trace store at {path}: nothing was recorded there yet")
    address = f"{path.resolve().as_uri()}?mode=ro"
    try:
        return _connect(path, address, _check_version)
    except _Outdated:
        open_to_write(path).close()
        return _connect(path, address, _check_version)


def _connect(path: Path, address: str, prepare: Callable[[sqlite3.Connection, Path], None]) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            address, uri="?mode=" in address, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        kind = StoreDamaged if is_damage(error) else ConfigError
        raise kind(f"cannot open the trace store {path}: {error}") from None
    return connection


def is_damage(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED  # the upper bits say more about it


def set_aside(path: Path) -> Path | None:
    """Give a damaged store another name, which is returned. None if it may be somebody's file that never was one."""
    with path.open("rb") as file:
        if path.suffix != ".db" and file.read(len(_MAGIC)) != _MAGIC:
            return None
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for ending in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{ending}").rename(f"{aside}{ending}")
    return aside


def _check(connection: sqlite3.Connection, path: Path) -> None:
    _prepare(connection, path)
    if (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise StoreDamaged(f"the trace store {path} is damaged: {found.splitlines()[-1]}")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    # Pages can be given back only if this was said before the first table was made.
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = FAST")  # what was said in a run that is done is gone
    connection.execute(f"PRAGMA journal_size_limit = {16 << 20}")
    with transaction(connection):  # two processes may find it empty at once
        if not _version(connection) and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise ConfigError(f"{path} is a database of another program: name another file")
        if (version := _version(connection)) in _STEPS:
            for statement in filter(str.strip, f"{_STEPS[version]} PRAGMA user_version = {VERSION}".split(";")):
                connection.execute(statement)
        _check_version(connection, path)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    if (version := _version(connection)) != VERSION:
        kind = _Outdated if version and version in _STEPS else ConfigError
        raise kind(f"{path} is not a trace store of this version ({version}, not {VERSION}): name another file")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a disk that is full has ended it already
            connection.execute("ROLLBACK")
        raise


def insert(connection: sqlite3.Connection, spans: Iterable[Span]) -> int:
    """Add spans, all or none; how many of them were new."""
    new, old = [], []
    with transaction(connection):
        for span in map(_tidy, spans):
            if not connection.execute(_INSERT, _as_row(span)).rowcount:
                known = as_span(connection.execute(_FIND, (span.trace_id, span.span_id)).fetchone())
                if span.end_ns <= known.end_ns:
                    continue
                connection.execute(_REPLACE, _as_row(span))
                old.append(known)
            new.append(span)
        connection.executemany(_UPSERT, _sum_up(new, old))
    return len(new) - len(old)


def _as_row(span: Span) -> tuple[Any, ...]:
    return astuple(replace(span, attributes=_encode(span.attributes)))


def _encode(attributes: Mapping[str, Any]) -> str:
    try:
        return msgspec.json.encode(attributes).decode()
    except _UNSAYABLE:  # a tool may say what no JSON can
        return msgspec.json.encode({_text(str(name)): _sayable(value) for name, value in attributes.items()}).decode()


def _sayable(value: Any) -> Any:
    """What can be said is told as it is: the numbers beside such a word still count."""
    try:
        msgspec.json.encode(value)
    except _UNSAYABLE:
        return _text(value if isinstance(value, str) else repr(value))
    return value


def _tidy(span: Span) -> Span:
    said = (span.service, span.session, span.error)
    if all(map(str.isascii, said)):
        return span
    service, session, error = map(_text, said)
    return replace(span, service=service, session=session, error=error)


def _text(text: str) -> str:
    """Half of a pair of surrogates cannot be written down."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def as_span(row: Iterable[Any]) -> Span:
    """Raises msgspec's errors for a row that is none."""
    values = dict(zip(Span.__struct_fields__, row, strict=True))
    attributes = _decoder.decode(values["attributes"])
    return msgspec.convert(values | {"attributes": attributes}, Span)


def _sum_up(spans: Iterable[Span], replaced: Iterable[Span]) -> Iterable[dict[str, Any]]:
    """A row for each trace, of what these spans add to it; what those that they replace had added is taken off."""
    runs: dict[str, dict[str, Any]] = {}
    for span in spans:
        if (run := runs.get(span.trace_id)) is None:
            run = runs[span.trace_id] = dict.fromkeys((*_SUMS, "money"), 0) | dict.fromkeys(_WORDS, "")
            run |= {"trace_id": span.trace_id, "start_ns": span.start_ns, "end_ns": span.end_ns}
        run["start_ns"] = min(run["start_ns"], span.start_ns)
        run["end_ns"] = max(run["end_ns"], span.end_ns)
        run["session"] = run["session"] or span.session
        run["tenant"] = run["tenant"] or span.tenant
        run["model"] = run["model"] or _word(span.attributes, names.MODEL)
        if span.is_root and isinstance(tags := span.attributes.get(names.TAGS), list):
            run["tags"] = _text(" ".join(map(str, tags)))
        if _is_root_run(span):
            run["agent"], run["end"] = _word(span.attributes, names.AGENT), _word(span.attributes, names.END)
        _count(run, span, 1)
    for span in replaced:
        _count(runs[span.trace_id], span, -1)
    return runs.values()


def _is_root_run(span: Span) -> bool:
    """Of several in one another, the one that called the others is what the trace is called by, and has paid."""
    return span.name == names.RUN and span.parent_id is None


def _count(run: dict[str, Any], span: Span, times: int) -> None:
    node = SpanNode(span)
    run["num_spans"] += times
    run["num_errors"] += times * bool(span.error)
    run["num_turns"] += times * (span.name == names.TURN)
    if _is_root_run(span):
        run["num_open"] += times * is_open(span)
        run["money"] += times * node.amount(names.MONEY)
    layer = _LAYERS.get(span.name)
    if not layer or span.attributes.get(names.IS_PREFILL_ONLY):
        return
    run[f"{layer}_calls"] += times
    if span.error:  # what was prefilled and decoded for an answer that was not delivered
        return
    for what, name in (("prompt", names.NUM_PROMPT), ("cached", names.NUM_CACHED), ("output", names.NUM_OUTPUT)):
        run[f"{layer}_{what}"] += times * node.count(name)
    if span.name == names.REQUEST:
        run["num_recomputed"] += times * node.count(names.NUM_RECOMPUTED)


def _word(attributes: Mapping[str, Any], name: str) -> str:
    value = attributes.get(name)
    return _text(value) if isinstance(value, str) else ""
