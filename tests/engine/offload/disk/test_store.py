"""What is on disk stays within its bound, and nothing that happens to the folder is anybody's problem."""

import logging
import os
import threading
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.offload.disk.fakes import FullFolder

from hotloop.engine.offload.disk.folder import HEADER_BYTES, KEY_BYTES, Folder
from hotloop.engine.offload.disk.store import Keys, KvStore

SIZE = 1000
FILE_BYTES = SIZE + HEADER_BYTES


def make_store(folder: Folder | Path, **changes: Any) -> KvStore:
    settings = {"layout": "l", "segment_bytes": SIZE, "max_bytes": 100 * FILE_BYTES, "segment_tokens": 4}
    return KvStore(folder if isinstance(folder, Folder) else Folder(folder), **{**settings, **changes})


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def data(number: int) -> memoryview:
    return memoryview(bytes([number % 256]) * SIZE)


def fill(store: KvStore, numbers: Sequence[int]) -> None:
    for number in numbers:
        store.save(key(number), partial(data, number), depth=0)
    assert store.flush()


def read(store: KvStore, number: int) -> memoryview | None:
    results: list[memoryview | None] = []
    has_come = threading.Event()

    def on_data(found: memoryview | None) -> None:
        results.append(found)
        has_come.set()

    store.read(key(number), on_data)
    assert has_come.wait(30)
    return results[0]


def segments_in(folder: Path) -> set[bytes]:
    return {bytes.fromhex(path.stem) for path in folder.glob("*.kv")}


tokens = st.lists(st.integers(0, 3), max_size=12)


@given(tokens, tokens, st.sampled_from(["", "a", "b", "ab"]), st.sampled_from(["", "a", "b", "ab"]))
def test_keys_are_the_same_exactly_where_all_before_them_is(
    one: list[int], other: list[int], salt: str, other_salt: str
) -> None:
    def keys(token_ids: list[int], salt: str) -> list[bytes]:
        return Keys("l", salt, 2).first(len(token_ids) // 2, array("i", token_ids))

    for i, (mine, theirs) in enumerate(zip(keys(one, salt), keys(other, other_salt), strict=False)):
        assert (mine == theirs) == (salt == other_salt and one[: 2 * i + 2] == other[: 2 * i + 2])


def test_keys_grow_with_the_tokens() -> None:
    token_ids = array("i", range(12))
    growing = Keys("l", "", 4)
    assert [growing.first(count, token_ids) for count in (1, 3, 2)] == [
        Keys("l", "", 4).first(count, token_ids) for count in (1, 3, 2)
    ]
    assert Keys("other", "", 4).first(1, token_ids) != growing.first(1, token_ids)
    assert Keys("l ", "x", 4).first(1, token_ids) != Keys("l", " x", 4).first(1, token_ids)


def test_a_second_store_finds_what_the_first_wrote(tmp_path: Path) -> None:
    first = make_store(tmp_path)
    fill(first, [1, 2])
    first.close()
    second = make_store(tmp_path)
    assert second.has(key(1))
    assert second.num_leading([key(1), key(2), key(3)]) == 2
    assert read(second, 2) == data(2)
    assert second.stats().num_bytes == 2 * FILE_BYTES
    second.close()


def test_the_folder_is_bounded_and_the_longest_unused_goes(tmp_path: Path) -> None:
    first = make_store(tmp_path)
    fill(first, range(30))
    first.close()
    for number in range(30):
        os.utime(tmp_path / f"{key(number).hex()}.kv", (1000 + number, 1000 + number))
    store = make_store(tmp_path, max_bytes=32 * FILE_BYTES)
    assert store.num_leading([key(0)]) == 1
    for number in range(30, 45):
        fill(store, [number])
        assert len(segments_in(tmp_path)) <= 32
        assert store.stats().num_bytes == len(segments_in(tmp_path)) * FILE_BYTES
    assert key(0) in segments_in(tmp_path), "it was used"
    assert key(1) not in segments_in(tmp_path)
    store.close()
    smaller = make_store(tmp_path, max_bytes=16 * FILE_BYTES)
    assert len(segments_in(tmp_path)) <= 16
    smaller.close()


def test_of_a_prefix_the_end_goes_first(tmp_path: Path) -> None:
    first = make_store(tmp_path)
    for number in range(20):
        first.save(key(number), partial(data, number), depth=number)
    first.close()
    second = make_store(tmp_path, max_bytes=16 * FILE_BYTES)
    num_left = len(segments_in(tmp_path))
    assert 0 < num_left <= 16
    assert segments_in(tmp_path) == {key(number) for number in range(num_left)}
    second.close()


def test_two_stores_on_one_folder_share_it_and_its_bound(tmp_path: Path) -> None:
    stores = [make_store(tmp_path, max_bytes=64 * FILE_BYTES) for _ in range(2)]

    def work(index: int) -> None:
        for number in range(150):
            fill(stores[index], [1000 * index + number])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slack = 2 * (64 // 16 + 1)  # what each may write before it looks again
    assert len(segments_in(tmp_path)) <= 64 + slack
    stores[0].save(key(7777), partial(data, 1), depth=0)
    assert stores[0].flush()
    for store in stores:
        for number in range(150):
            assert read(store, number) in (None, data(number))
        assert store.stats().num_damaged == 0
        store.close()


def test_a_full_disk_is_told_once_and_drops_what_comes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store(FullFolder(tmp_path))
    assert store.has_room()
    fill(store, range(5))
    assert not store.has_room(), "it waits before it tries again"
    assert not store.has(key(0))
    assert store.stats().num_dropped == 5
    store.close()
    [message] = [record.getMessage() for record in caplog.records]
    assert "No space left on device" in message
    assert "in memory only" in message


def test_a_folder_that_cannot_be_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store = make_store(tmp_path / "file" / "kv")
    assert not store.has_room()
    fill(store, range(3))
    assert read(store, 1) is None
    store.close()
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1 + 1
    assert "cannot be written to" in caplog.text


def test_damage_is_told_deleted_and_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store(tmp_path)
    fill(store, [1, 2])
    path = tmp_path / f"{key(1).hex()}.kv"
    path.write_bytes(path.read_bytes()[:-1])
    assert read(store, 1) is None
    assert store.flush()
    assert segments_in(tmp_path) == {key(2)}
    assert store.num_leading([key(1)]) == 0
    assert store.stats().num_damaged == 1
    assert "another length" in caplog.text
    fill(store, [1])
    assert read(store, 1) == data(1)
    store.close()


def test_what_others_delete_was_never_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store(tmp_path)
    fill(store, [1])
    (tmp_path / f"{key(1).hex()}.kv").unlink()
    assert read(store, 1) is None
    assert not store.has(key(1))
    store.close()
    assert not caplog.records


def test_a_use_in_memory_counts_on_disk(tmp_path: Path) -> None:
    first = make_store(tmp_path)
    fill(first, [1])
    first.close()
    path = tmp_path / f"{key(1).hex()}.kv"
    os.utime(path, (1000, 1000))
    store = make_store(tmp_path)
    assert store.num_leading([key(1)]) == 1
    assert store.flush()
    assert path.stat().st_mtime > 1000
    store.close()


class StuckFolder(Folder):
    """Writes once it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_write = threading.Event()

    def write(self, key: bytes, data: memoryview, used_at: float) -> None:
        assert self.may_write.wait(30)
        super().write(key, data, used_at)


def test_what_waits_to_be_written_is_bounded(tmp_path: Path) -> None:
    folder = StuckFolder(tmp_path)
    store = make_store(folder, max_queued_bytes=3 * SIZE)
    for number in range(3):
        assert store.has_room()
        store.save(key(number), partial(data, number), depth=0)
        assert store.has(key(number))
    assert not store.has_room()
    assert store.num_leading([key(0)]) == 0, "it cannot be read yet"
    folder.may_write.set()
    store.close()
    assert segments_in(tmp_path) == {key(0), key(1), key(2)}
    assert store.has_room()
