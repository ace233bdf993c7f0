"""Files that a person names are read, or it is said in a line why not."""

import gzip
import os
from pathlib import Path

import pytest

from hotloop.core.errors import ConfigError
from hotloop.core.files import read_lines, read_toml, write_private


def test_lines_have_their_numbers(tmp_path: Path):
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text("one\n\n  \nfour\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert [*read_lines(plain)] == [*read_lines(packed)] == [(1, "one\n"), (4, "four\n")]


PACKED = gzip.compress(b"one\n", mtime=0)


@pytest.mark.parametrize("data", [PACKED[:-6], PACKED[:10] + b"\xff" + PACKED[11:], b"not gzip"])
def test_what_cannot_be_unpacked(data: bytes, tmp_path: Path):
    path = tmp_path / "a.gz"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_lines(path))


def test_what_is_no_text(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(b"one\n"))
    with pytest.raises(ConfigError, match=r"must end in \.gz"):
        list(read_lines(path))


@pytest.mark.parametrize(("data", "complaint"), [(None, "cannot read"), (b"a = ", "not TOML"), (b"\xff", "not TOML")])
def test_what_is_no_toml(data: bytes | None, complaint: str, tmp_path: Path):
    path = tmp_path / "a.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=complaint):
        read_toml(path)


def test_a_private_file_is_written_whole_or_not_at_all(tmp_path: Path):
    path, link = tmp_path / "a.json", tmp_path / "link.json"
    link.symlink_to(path)
    write_private(link, "ü")
    assert (path.read_bytes(), link.is_symlink()) == ("ü".encode(), True)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UnicodeEncodeError):
        write_private(path, "\ud800")
    with pytest.raises(OSError, match="directory"):
        write_private(tmp_path, b"")
    assert path.read_bytes() == "ü".encode()
    assert sorted(os.listdir(tmp_path)) == ["a.json", "link.json"]
