"""Products on ARM, those of matrices of bytes (i8mm) included, on an emulated CPU, which `make test-arm` installs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from hotloop.backends.cpu.build import SOURCES

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
pytestmark = [
    pytest.mark.long,  # compiles and emulates: 11 s of CPU
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
        reason=f"needs {COMPILER} and {EMULATOR}: make test-arm",
    ),
]
FLAGS = ("-O1", "-std=c++20", "-static", "-ffp-contract=off", f"-I{SOURCES}")


DOTS, PAIRS = "armv8.2-a+fp16+dotprod", "armv8.2-a+fp16+dotprod+i8mm"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program that prints products, for a CPU without and one with matrix products."""
    folder, source = tmp_path_factory.mktemp("arm"), Path(__file__).with_name("products.cpp")
    paths = {march: folder / march for march in (DOTS, PAIRS)}
    for march, path in paths.items():
        subprocess.run([COMPILER, *FLAGS, f"-march={march}", str(source), "-o", str(path)], check=True)
    return paths


def products(path: Path, cpu: str) -> list[str]:
    """A line for each kind of code and number of rows: what it is of, and the sums' bits."""
    ended = subprocess.run([EMULATOR, "-cpu", cpu, str(path)], check=True, capture_output=True, text=True)
    return ended.stdout.splitlines()


def test_matrix_products_give_the_same_bits_as_dot_products(compiled: dict[str, Path]) -> None:
    dots = products(compiled[DOTS], "neoverse-n1")
    assert len(dots) == 13 * 6 * 2
    assert products(compiled[PAIRS], "max") == dots


def test_a_cpu_without_matrix_products_cannot_run_them(compiled: dict[str, Path]) -> None:
    """Or the test above would compare dot products with themselves."""
    ended = subprocess.run([EMULATOR, "-cpu", "neoverse-n1", str(compiled[PAIRS])], capture_output=True, check=False)
    assert ended.returncode
