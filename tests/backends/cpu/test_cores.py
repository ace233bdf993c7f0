from pathlib import Path

import pytest

from hotloop.backends.cpu.cores import num_cores


def write_siblings(root: Path, *lists: str) -> None:
    for cpu, siblings in enumerate(lists):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")


def test_two_threads_are_one_core(tmp_path: Path) -> None:
    write_siblings(tmp_path, "0,2", "1,3", "0,2", "1,3")
    assert num_cores(tmp_path, {0, 1, 2, 3}) == 2
    assert num_cores(tmp_path, {0, 2}) == 1


def test_cpus_nobody_describes_are_cores(tmp_path: Path) -> None:
    assert num_cores(tmp_path, {0, 1, 5}) == 3


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("max 100000", 4), ("10000 100000", 1), ("?", 4)])
def test_a_container_has_its_quota(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota)
    assert num_cores(tmp_path, {0, 1, 2, 3}) == cores
