"""How many cores this process may keep busy."""

import os
import sys
from pathlib import Path


def num_cores(root: Path = Path("/"), cpus: set[int] | None = None) -> int:
    """Whole ones: two threads of a core share its tiles. No more than a container's quota of time comes to."""
    if cpus is None:
        cpus = os.sched_getaffinity(0) if sys.platform == "linux" else set(range(os.cpu_count() or 1))
    cores = {_siblings(root, cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota(root / "sys/fs/cgroup/cpu.max", len(cores))))


def _siblings(root: Path, cpu: int) -> str:
    try:
        return (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(path: Path, default: int) -> int:
    """`max 100000`, or so many microseconds of each period."""
    try:
        limit, period = path.read_text().split()
        return -(-int(limit) // int(period))
    except (OSError, ValueError):
        return default
