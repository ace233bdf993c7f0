"""Files and batches in a folder: what is known of each is a small JSON file, so several processes may serve one folder.

    batch_dir/  file-….json  file-….jsonl  batch_….json  changes.lock

Ids are made here and hold nothing but letters, digits, `-` and `_`: a name of somebody else's never becomes a path.
"""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.core.files import named_errors, write_private
from hotloop.core.structs import compiled
from hotloop.http.keys import Tenant
from hotloop.server.errors import UnknownRecord

_LOCK = "changes.lock"
_ID = re.compile(r"(?:file-|batch_)[0-9a-f]{32}")
Status = Literal["in_progress", "completed", "failed", "cancelled"]
OPEN: Status = "in_progress"


@compiled
class FileRecord(msgspec.Struct, kw_only=True):
    id: str
    owner: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int


@compiled
class BatchRecord(msgspec.Struct, kw_only=True):
    id: str
    owner: str
    is_apart: bool
    endpoint: str
    input_file_id: str
    output_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    created_at: int
    num_lines: int
    status: Status = OPEN
    ended_at: int | None = None
    num_answered: int = 0
    num_failed: int = 0
    error: str = ""


Record = TypeVar("Record", FileRecord, BatchRecord)
_PREFIXES: dict[type, str] = {FileRecord: "file-", BatchRecord: "batch_"}


class BatchStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with named_errors("write", folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def new_id(self, prefix: Literal["file-", "batch_"]) -> str:
        return f"{prefix}{secrets.token_hex(16)}"

    def content(self, file_id: str) -> Path:
        assert _ID.fullmatch(file_id), "it was made here"
        return self.folder / f"{file_id}.jsonl"

    def add_file(self, tenant: Tenant, filename: str, purpose: str, file_id: str) -> FileRecord:
        """What is known of a file whose content is there already."""
        record = FileRecord(
            id=file_id,
            owner=tenant.id,
            filename=filename[:255],
            purpose=purpose,
            num_bytes=self.content(file_id).stat().st_size,
            created_at=int(time.time()),
        )
        self.save(record)
        return record

    def save(self, record: FileRecord | BatchRecord) -> None:
        with named_errors("write", self.folder):
            write_private(self.folder / f"{record.id}.json", msgspec.json.encode(record))

    def change(self, batch_id: str, change: Callable[[BatchRecord], None]) -> BatchRecord:
        """What is known of a batch, changed: of several that do so, here or in other processes, one after the other."""
        with named_errors("write", self.folder), (self.folder / _LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            record = self.find(batch_id, BatchRecord, Tenant("", is_admin=True))
            change(record)
            self.save(record)
        return record

    def find(self, record_id: str, kind: type[Record], tenant: Tenant) -> Record:
        """Raises UnknownRecord for what is not there, and for what is another tenant's."""
        is_of_kind = _ID.fullmatch(record_id) and record_id.startswith(_PREFIXES[kind])
        record = self._read(record_id, kind) if is_of_kind else None
        if record is None or (tenant.is_apart and not tenant.may_see(record.owner)):
            raise UnknownRecord(
                f"there is no {'file' if kind is FileRecord else 'batch'} {record_id!r:.100}", param="id"
            )
        return record

    def newest(self, kind: type[Record], tenant: Tenant) -> list[Record]:
        """The newest first."""
        found = [each for each in self._all(kind) if not tenant.is_apart or tenant.may_see(each.owner)]
        return sorted(found, key=lambda each: (each.created_at, each.id), reverse=True)

    def open_batches(self) -> list[BatchRecord]:
        return [each for each in self._all(BatchRecord) if each.status == OPEN]

    def remove_file(self, record: FileRecord) -> None:
        for path in (self.folder / f"{record.id}.json", self.content(record.id)):
            path.unlink(missing_ok=True)

    def _all(self, kind: type[Record]) -> Iterator[Record]:
        prefix = _PREFIXES[kind]
        for name in sorted(os.listdir(self.folder)):
            if name.startswith(prefix) and name.endswith(".json") and (record := self._read(name[:-5], kind)):
                yield record

    def _read(self, record_id: str, kind: type[Record]) -> Record | None:
        try:
            return msgspec.json.decode((self.folder / f"{record_id}.json").read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.folder}/{record_id}.json cannot be read: {error}") from None
