"""Segments as files: whole or not there, and damage is noticed."""

import os
import stat
from pathlib import Path

import pytest

from hotloop.engine.offload.disk.folder import HEADER_BYTES, KEY_BYTES, Folder

KEY, OTHER = b"k" * KEY_BYTES, b"o" * KEY_BYTES
DATA = memoryview(bytes(range(256)) * 4)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "deep" / "kv")
    folder.prepare()
    folder.write(KEY, DATA, 2000.0)
    return folder


def file_of(folder: Folder, key: bytes = KEY) -> Path:
    return folder.path / f"{key.hex()}.kv"


def test_what_is_written_is_read_and_listed(folder: Folder) -> None:
    assert folder.read(KEY, len(DATA)) == DATA
    [found] = folder.list()
    assert found == (2000.0, HEADER_BYTES + len(DATA), KEY)
    folder.touch(KEY, 3000.0)
    assert folder.list()[0].used_at == 3000.0
    folder.delete(KEY)
    folder.delete(KEY)
    assert folder.list() == []
    with pytest.raises(FileNotFoundError):
        folder.read(KEY, len(DATA))


def test_nobody_else_may_read_it(folder: Folder) -> None:
    assert stat.S_IMODE(file_of(folder).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_every_flipped_bit_is_noticed(folder: Folder) -> None:
    path = file_of(folder)
    whole = path.read_bytes()
    for at in [*range(HEADER_BYTES), HEADER_BYTES + 500, len(whole) - 1]:
        flip(path, at)
        with pytest.raises(ValueError, match="checksum"):
            folder.read(KEY, len(DATA))
        path.write_bytes(whole)
    assert folder.read(KEY, len(DATA)) == DATA


@pytest.mark.parametrize("length", [0, 3, HEADER_BYTES, HEADER_BYTES + 100])
def test_a_file_cut_short_is_noticed(folder: Folder, length: int) -> None:
    os.truncate(file_of(folder), length)
    with pytest.raises(ValueError, match="another length"):
        folder.read(KEY, len(DATA))


def test_a_file_under_anothers_name_is_noticed(folder: Folder) -> None:
    file_of(folder).rename(file_of(folder, OTHER))
    with pytest.raises(ValueError, match="checksum"):
        folder.read(OTHER, len(DATA))


def test_a_file_of_another_version_is_noticed(folder: Folder) -> None:
    flip(file_of(folder), 8)
    with pytest.raises(ValueError, match="checksum"):
        folder.read(KEY, len(DATA))


def test_only_what_is_ours_is_listed_and_only_old_drafts_go(folder: Folder) -> None:
    names = ["notes.txt", "hotloop-abc.draft", "hotloop-old.draft", "deadbeef.kv"]
    for name in names:
        (folder.path / name).write_text("x")
    os.utime(folder.path / "hotloop-old.draft", (1000, 1000))
    assert [found.key for found in folder.list()] == [KEY]
    assert {path.name for path in folder.path.iterdir()} == {*names, file_of(folder).name} - {"hotloop-old.draft"}


def test_a_write_that_fails_leaves_nothing(folder: Folder) -> None:
    file_of(folder, OTHER).mkdir()  # nothing can be renamed onto it
    with pytest.raises(OSError, match="irectory"):
        folder.write(OTHER, DATA, 2000.0)
    assert not list(folder.path.glob("*.draft"))
