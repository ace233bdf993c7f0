"""Journals: what it takes to go on with a run, in the store that its spans are in.

    begin ── entry ── entry ── entry ── end        numbered; what an entry says is the agent's business

A run belongs to the process that runs it, which holds a lock on a file of its own for as long as it lives. So a run
whose process was killed is free at once, whatever clocks say, and of two that want it one gets it. A store of another
kind implements `Journal`.
"""

import fcntl
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.structs import compiled

StopEnd = Literal["paused", "cancelled"]
RunState = Literal["running", "interrupted", "waiting", "paused", "done", "limit", "failed", "cancelled"]
"""`interrupted` is one that was running when its process ended; `waiting` one that waits for an approval."""

_COLUMNS = (
    "run_id", "root_id", "caller_id", "call_id", "trace_id", "span_id", "agent", "session", "source", "state", "owner",
    "began_ns", "updated_ns",
)  # fmt: skip
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM journals"
_INSERT = f"INSERT INTO journals ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
_APPEND = """
INSERT INTO entries SELECT run_id, (SELECT coalesce(max(seq), 0) + 1 FROM entries WHERE run_id = :run_id),
:kind, :call_id, :body FROM journals WHERE run_id = :run_id AND owner = :owner"""

_APPEND_ANY = _APPEND.replace("owner = :owner", "true")

_READ = "SELECT kind, body, call_id FROM entries WHERE run_id = :run_id ORDER BY seq"
_READ_KIND = _READ.replace("entries WHERE", "entries INDEXED BY entries_by_kind WHERE kind = :kind AND")
"""Asked twice a second by a run that may have many entries, in the thread that writes them."""

Work = Callable[[sqlite3.Connection], Any]
Submit = Callable[..., "Future[Any]"]


class RunTaken(HotloopError):
    """Another process runs this run, or has taken it over."""


@compiled
class JournalRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as lists of runs have it."""

    run_id: str
    root_id: str  # the run that was begun by the program; of a sub-agent's run the outermost
    caller_id: str = ""  # the run that it is a call of
    call_id: str = ""
    trace_id: str
    span_id: str
    agent: str = ""
    session: str = ""
    source: str = ""  # the file that the agent is in, if it came from one
    state: RunState = "running"
    owner: str = ""  # the process that runs it; empty where none does
    began_ns: int = 0
    updated_ns: int = 0


@compiled
class Entry(msgspec.Struct, frozen=True):
    kind: str
    body: bytes
    call_id: str = ""


class Journal(Protocol):
    """Entries are committed in the order of these calls: where one is, so are all before it. Futures raise
    HotloopError."""

    def begin(self, row: JournalRow, entry: Entry) -> "Future[None]":
        """A run begins, and is this process's."""
        ...

    def write(self, run_id: str, entry: Entry, *, is_synced: bool = False) -> "Future[None]":
        """Add an entry; with `is_synced` it is on the disk when the future is done. RunTaken if it is not ours."""
        ...

    def end(self, run_id: str, entry: Entry, state: RunState, *, keeps_entries: bool) -> "Future[None]":
        """The run is nobody's any more. Without its entries, nor those of the runs it has called, if it is a root."""
        ...

    def take(self, run_id: str) -> "Future[JournalRow]":
        """Make a run this process's. Raises RunTaken if another runs it, ConfigError if there is no such run."""
        ...

    def tell(self, run_id: str, entry: Entry) -> "Future[None]":
        """Add an entry to a run that a program began, whoever runs it. Raises ConfigError if it is done."""
        ...

    def read(self, run_id: str, kind: str = "") -> "Future[tuple[JournalRow, list[Entry]]]":
        """The run and its entries, or those of one kind."""
        ...

    def find(self, caller_id: str, call_id: str) -> "Future[str]":
        """The run that a call of a run is; empty if it is none."""
        ...

    def decide(self, run_id: str, entry: Entry, *, waits: str) -> "Future[None]":
        """Add an entry to the run that waits for it: this one, or one it has called, whose last entry for that call is
        of the kind `waits`, or a decision that nothing has come of yet. Raises ConfigError if none does, or several
        do."""
        ...

    def list(self, limit: int) -> "Future[list[JournalRow]]":
        """Those that a program began, the newest first."""
        ...


class StoreJournal:
    def __init__(self, path: Path, submit: Submit) -> None:
        self._path = path
        self._owners = _Owners(Path(f"{path}-owners"))
        self._submit = submit

    def begin(self, row: JournalRow, entry: Entry) -> "Future[None]":
        owner, now_ns = self._owners.own(), time.time_ns()

        def work(connection: sqlite3.Connection) -> None:
            values = {name: getattr(row, name) for name in _COLUMNS}
            connection.execute(_INSERT, values | {"owner": owner, "began_ns": now_ns, "updated_ns": now_ns})
            self._append(connection, row.run_id, entry)

        return self._submit(work, len(entry.body))

    def write(self, run_id: str, entry: Entry, *, is_synced: bool = False) -> "Future[None]":
        return self._submit(lambda connection: self._append(connection, run_id, entry), len(entry.body), is_synced)

    def end(self, run_id: str, entry: Entry, state: RunState, *, keeps_entries: bool) -> "Future[None]":
        def work(connection: sqlite3.Connection) -> None:
            self._append(connection, run_id, entry)
            update = "UPDATE journals SET state = ?, owner = '', updated_ns = ? WHERE run_id = ?"
            connection.execute(update, (state, time.time_ns(), run_id))
            if not keeps_entries:
                within = "run_id IN (SELECT run_id FROM journals WHERE root_id = ?)"
                connection.execute(f"DELETE FROM entries WHERE {within}", (run_id,))

        return self._submit(work, len(entry.body))

    def take(self, run_id: str) -> "Future[JournalRow]":
        owner = self._owners.own()

        def work(connection: sqlite3.Connection) -> JournalRow:
            row = self._row(connection, run_id)
            if self._owners.is_alive(row.owner):
                raise RunTaken(f"the run {run_id} is running already, in {_whose(row.owner == owner)} process")
            update = "UPDATE journals SET state = 'running', owner = ?, updated_ns = ? WHERE run_id = ?"
            connection.execute(update, (owner, time.time_ns(), run_id))
            return row

        return self._submit(work)

    def tell(self, run_id: str, entry: Entry) -> "Future[None]":
        def work(connection: sqlite3.Connection) -> None:
            row = self._row(connection, run_id)
            if row.run_id != row.root_id:
                raise ConfigError(f"the run {row.run_id} is a call of the run {row.root_id}: tell that")
            if row.state == "done":
                raise ConfigError(f"the run {row.run_id} is done")
            connection.execute(_APPEND_ANY, _values(row.run_id, entry))

        return self._submit(work, len(entry.body))

    def read(self, run_id: str, kind: str = "") -> "Future[tuple[JournalRow, list[Entry]]]":
        def work(connection: sqlite3.Connection) -> tuple[JournalRow, list[Entry]]:
            row = self._row(connection, run_id)
            found = connection.execute(_READ_KIND if kind else _READ, {"run_id": row.run_id, "kind": kind})
            return row, [Entry(name, bytes(body), call) for name, body, call in found]

        return self._submit(work)

    def find(self, caller_id: str, call_id: str) -> "Future[str]":
        def work(connection: sqlite3.Connection) -> str:
            query = "SELECT run_id FROM journals WHERE caller_id = ? AND call_id = ? ORDER BY began_ns DESC LIMIT 1"
            found = connection.execute(query, (caller_id, call_id)).fetchone()
            return str(found[0]) if found else ""

        return self._submit(work)

    def decide(self, run_id: str, entry: Entry, *, waits: str) -> "Future[None]":
        def work(connection: sqlite3.Connection) -> None:
            row = self._row(connection, run_id)
            query = f"""{_SELECT} WHERE (run_id = :run OR root_id = :run) AND state != 'done' AND
            (SELECT kind FROM entries WHERE entries.run_id = journals.run_id AND call_id = :call AND kind != :kind
            ORDER BY seq DESC LIMIT 1) = :waits"""
            values = {"run": row.run_id, "waits": waits, "call": entry.call_id, "kind": entry.kind}
            found = [_as_row(each) for each in connection.execute(query, values)]
            if len(found) != 1:
                several = "several runs of it wait for a call of that id: name the sub-agent's run"
                none = (
                    f"the run {row.run_id} does not wait for {entry.call_id!r}; if that was decided, resume it without"
                )
                raise ConfigError(several if found else none)
            if self._owners.is_alive(found[0].owner):
                raise RunTaken(f"the run {found[0].run_id} is running: its own process asks for the decision")
            connection.execute(_APPEND_ANY, _values(found[0].run_id, entry))

        return self._submit(work)

    def list(self, limit: int) -> "Future[list[JournalRow]]":
        query = f"{_SELECT} WHERE run_id = root_id ORDER BY began_ns DESC LIMIT ?"

        def work(connection: sqlite3.Connection) -> "list[JournalRow]":
            return [self._as_of_now(_as_row(each)) for each in connection.execute(query, (limit,))]

        return self._submit(work)

    def close(self) -> None:
        self._owners.close()

    def _row(self, connection: sqlite3.Connection, run_id: str) -> JournalRow:
        """By its id, or how that begins."""
        query = f"{_SELECT} WHERE run_id = ? OR (run_id = root_id AND substr(run_id, 1, ?) = ?) LIMIT 2"
        found = connection.execute(query, (run_id, len(run_id), run_id)).fetchall()
        if not found or not run_id:
            raise ConfigError(f"there is no run {run_id!r} in {self._path}; `hotloop runs list` lists them")
        if len(found) > 1:
            raise ConfigError(f"several runs begin with {run_id!r}: give more of the id")
        return self._as_of_now(_as_row(found[0]))

    def _as_of_now(self, row: JournalRow) -> JournalRow:
        if row.state == "running" and not self._owners.is_alive(row.owner):
            return msgspec.structs.replace(row, state="interrupted", owner="")
        return row

    def _append(self, connection: sqlite3.Connection, run_id: str, entry: Entry) -> None:
        values = _values(run_id, entry) | {"owner": self._owners.own()}
        if not connection.execute(_APPEND, values).rowcount:
            raise RunTaken(f"the run {run_id} now belongs to another process, or has ended")


def _whose(is_ours: bool) -> str:
    return "this" if is_ours else "another"


def _values(run_id: str, entry: Entry) -> dict[str, Any]:
    return {"run_id": run_id, "kind": entry.kind, "call_id": entry.call_id, "body": entry.body}


def _as_row(values: Sequence[Any]) -> JournalRow:
    try:
        return msgspec.convert(dict(zip(_COLUMNS, values, strict=True)), JournalRow)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the journal of a run is damaged: {error}") from None


_own: dict[str, int] = {}
"""The names of this process, and which process that is: a fork has a copy, and none of the locks."""


class _Owners:
    """Processes, each by a file that it has locked. The system unlocks it when the process ends, however that ends.

    A process that opens its own file and closes it lets go of the lock: so it never looks at one of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._token = ""
        self._file = -1

    def own(self) -> str:
        """This process's name; raises ConfigError where it cannot have one."""
        with self._lock:
            if not self._token:
                try:
                    self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    for path in self._folder.iterdir():  # of those that were killed
                        self.is_alive(path.name)
                    self._token, self._file = self._make()
                except OSError as error:
                    raise ConfigError(f"cannot lock a file in {self._folder}: {error}") from None
            return self._token

    def is_alive(self, token: str) -> bool:
        if not token or _own.get(token) == os.getpid():
            return bool(token)
        path = self._folder / Path(token).name
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # which of them is the system's choice
            return True
        else:
            with suppress(FileNotFoundError):
                path.unlink()
            return False
        finally:
            os.close(file)

    def close(self) -> None:
        with self._lock:
            if self._token:
                with suppress(OSError):
                    (self._folder / self._token).unlink()
                del _own[self._token]
                os.close(self._file)
                self._token, self._file = "", -1

    def _make(self) -> tuple[str, int]:
        """A file is made, locked and looked for again: whoever found it unlocked in between has removed it."""
        while True:
            token = secrets.token_hex(8)
            _own[token] = os.getpid()
            file = os.open(self._folder / token, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with suppress(BlockingIOError, PermissionError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (self._folder / token).exists():
                    return token, file
            os.close(file)
            del _own[token]
