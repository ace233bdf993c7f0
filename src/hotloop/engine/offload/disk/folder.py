"""KV segments as files in one folder, each of them whole or not there.

    [ magic | version | key | checksum ][ data ......... ]

A file is named after its key, written under another name first and then renamed, and only its owner may read it; its
time is that of its last use. Other processes may write and delete here; files that are not ours are left alone.
"""

import os
import re
import struct
import tempfile
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

VERSION = 1
KEY_BYTES = 20
_MAGIC = b"hotloopK"
_HEADER = struct.Struct(f"<8sI{KEY_BYTES}sI")
HEADER_BYTES = _HEADER.size
_NAME = re.compile(rf"([0-9a-f]{{{2 * KEY_BYTES}}})\.kv")
_DRAFT = re.compile(r"hotloop-\w+\.draft")
_ABANDONED_S = 60.0  # a segment is written in far less


class FoundSegment(NamedTuple):
    """A segment that is on disk, as far as its name tells."""

    used_at: float
    num_bytes: int
    key: bytes


class Folder:
    """Every method may raise OSError: it is the world outside."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """See to it that the folder is there and can be written to."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.path):
            pass

    def list(self) -> list[FoundSegment]:
        """Every segment, of any model. What a killed process left half written goes."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # another process was quicker
                    stat = entry.stat(follow_symlinks=False)
                    if match := _NAME.fullmatch(entry.name):
                        found.append(FoundSegment(stat.st_mtime, stat.st_size, bytes.fromhex(match[1])))
                    elif _DRAFT.fullmatch(entry.name) and time.time() - stat.st_mtime > _ABANDONED_S:
                        os.unlink(entry.path)
        return found

    def write(self, key: bytes, data: memoryview, used_at: float) -> None:
        descriptor, draft = tempfile.mkstemp(".draft", "hotloop-", self.path)
        try:
            with open(descriptor, "wb") as file:
                file.write(_HEADER.pack(_MAGIC, VERSION, key, zlib.crc32(data)))
                file.write(data)
            os.utime(draft, (used_at, used_at))
            os.replace(draft, self._path(key))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)

    def read(self, key: bytes, num_bytes: int) -> memoryview:
        """The data of a segment. ValueError says that the file is damaged, or none of ours."""
        with open(self._path(key), "rb") as file:
            content = memoryview(file.read(HEADER_BYTES + num_bytes + 1))
        header, data = content[:HEADER_BYTES], content[HEADER_BYTES:]
        if len(data) != num_bytes:
            raise ValueError("it has another length")
        if header != _HEADER.pack(_MAGIC, VERSION, key, zlib.crc32(data)):
            raise ValueError("its header or its checksum is wrong")
        return data

    def touch(self, key: bytes, used_at: float) -> None:
        os.utime(self._path(key), (used_at, used_at))

    def delete(self, key: bytes) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(key))

    def _path(self, key: bytes) -> str:
        return os.path.join(self.path, f"{key.hex()}.kv")
