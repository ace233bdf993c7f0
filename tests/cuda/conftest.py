"""The CUDA backend's kernels: on the card if there is one, else in Triton's interpreter; skipped without torch."""

import os
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

with suppress(ImportError):
    import torch


def _obstacle() -> str | None:
    """Why nothing here can run."""
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        return f"needs the extra `cuda`: {' and '.join(missing)} missing"
    if not torch.cuda.is_available() and [*map(int, version("triton").split(".")[:2])] < [3, 7]:
        return "needs a card or Triton 3.7: older interpreters cannot loop up to a length they have loaded"
    return None


OBSTACLE = _obstacle()
if OBSTACLE is None and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton: it is read when a kernel is declared


class SkippedModule(pytest.Module):
    """A module that is not imported, for it could not be."""

    def collect(self) -> NoReturn:
        pytest.skip(str(OBSTACLE), allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return SkippedModule.from_parent(parent, path=module_path) if OBSTACLE else None


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
