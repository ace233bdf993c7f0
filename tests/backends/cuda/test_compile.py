"""What the interpreter runs, the compiler may refuse: an argument that is None is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.backends.cuda import compiled


@pytest.mark.parametrize("family", [each.__name__ for each in compiled.FAMILIES])
def test_kernels_compile_without_a_card(family: str, tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.backends.cuda.compiled", family]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
