"""What the process that serves does about memory; signals and limits are tested on real servers."""

import subprocess
import sys
from pathlib import Path

import pytest

FREE_LARGE_BLOCKS = """
import sys
from pathlib import Path
from resource import getpagesize
from hotloop.http.serving import return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()

if sys.argv[1] == "returned":
    return_freed_memory()
before = resident()
for num_bytes in (24 << 20, 20 << 20):  # glibc keeps what is smaller than the largest block that was ever freed
    block, behind = b"a" * num_bytes, b"a" * 50_000
    del block
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is resident")
def test_large_blocks_are_returned_when_they_are_freed() -> None:
    def kept(how: str) -> int:
        command = [sys.executable, "-c", FREE_LARGE_BLOCKS, how]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert kept("returned") < 4 << 20
