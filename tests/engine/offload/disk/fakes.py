"""Folders that misbehave, a store on one of them, and workers that wait to be told."""

import errno
import random
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop.backends.null import NullBackend
from hotloop.engine.offload.disk.folder import Folder
from hotloop.engine.offload.disk.store import KvStore, ThreadWorker

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


class WornFolder(Folder):
    """Fails at times: no space left, a sector that cannot be read, data that is not what it was."""

    def __init__(self, path: Path, rng: random.Random, share: float) -> None:
        super().__init__(path)
        self._rng = rng
        self.share = share

    def write(self, key: bytes, data: memoryview, used_at: float) -> None:
        if self._rng.random() < self.share:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(key, data, used_at)

    def read(self, key: bytes, num_bytes: int) -> memoryview:
        if self._rng.random() < self.share:
            raise OSError(errno.EIO, "Input/output error")
        if self._rng.random() < self.share:
            raise ValueError("its checksum is wrong")
        return super().read(key, num_bytes)


class PatientWorker(ThreadWorker):
    """Does its jobs in their order, each when the test says so: nothing depends on a thread's luck."""

    def __init__(self, name: str) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self.is_prompt = False
        """Whether it does what it is asked for at once, as for an engine that is closed."""

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        if self.is_prompt:
            self.work()

    def work(self, most: int = 1 << 30) -> None:
        for _ in range(min(most, len(self._jobs))):
            self._jobs.popleft()()

    def close(self) -> None:
        self.work()


def make_store(folder: Folder | Path, backend: NullBackend, **changes: Any) -> KvStore:
    num_blocks = SEGMENT_TOKENS // backend.block_size
    settings = {
        "layout": backend.kv_layout,
        "segment_bytes": num_blocks * backend.block_bytes,
        "max_bytes": 1 << 20,
        "segment_tokens": SEGMENT_TOKENS,
    }
    return KvStore(folder if isinstance(folder, Folder) else Folder(folder), **{**settings, **changes})


def spoil(folder: Path, rng: random.Random) -> None:
    """Delete or cut short a few of its files."""
    paths = sorted(folder.glob("*.kv"))
    for path in rng.sample(paths, min(2, len(paths))):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # it was trimmed
            continue
        if rng.random() < 0.5:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content[: len(content) // 2])
