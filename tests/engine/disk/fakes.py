"""Folders that misbehave, and a store on one of them."""

import errno
import threading
from pathlib import Path
from typing import Any

from hotloop.backends.null import NullBackend
from hotloop.engine.disk.folder import Folder
from hotloop.engine.disk.store import KvStore

SEGMENT_TOKENS = 8


class FullFolder(Folder):
    """No space left."""

    def write(self, key: bytes, data: memoryview, used_at: float) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class GatedFolder(Folder):
    """Reads once for each permit it is given."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads = threading.Semaphore(0)
        self.num_asked = 0

    def read(self, key: bytes, num_bytes: int) -> memoryview:
        self.num_asked += 1
        assert self.reads.acquire(timeout=30)
        return super().read(key, num_bytes)


def make_store(folder: Folder | Path, backend: NullBackend, **changes: Any) -> KvStore:
    num_blocks = SEGMENT_TOKENS // backend.block_size
    settings = {
        "layout": backend.kv_layout,
        "segment_bytes": num_blocks * backend.block_bytes,
        "max_bytes": 1 << 20,
        "segment_tokens": SEGMENT_TOKENS,
    }
    return KvStore(folder if isinstance(folder, Folder) else Folder(folder), **{**settings, **changes})
