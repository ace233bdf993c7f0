"""The CUDA backend's kernels: on the card if there is one, else in Triton's interpreter; skipped without torch."""

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

from hotloop.core.request import Request
from hotloop.engine.drafting.payoff import ModelPayoff

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


def _patch_language_once_a_launch() -> None:
    """The interpreter patches Triton's language anew with every call of a function within a kernel, which changes
    nothing and takes two fifths of the time: once for each module and launch is enough.
    """
    interpreter: Any = import_module("triton.runtime.interpreter")
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[int] = set()

    def patch_lang(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return interpreter._LangPatchScope()
        patched.add(module)
        return patch(function)

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        launch(self, *args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_lang, call


OBSTACLE = _obstacle()
if OBSTACLE is None and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton: it is read when a kernel is declared
    torch.set_num_threads(1)  # what torch computes here is small, and another process has the other core
    _patch_language_once_a_launch()


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


@pytest.fixture
def always_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model drafts four tokens each time, whether that pays or not: here it is as slow as the model."""

    def lengths(self: ModelPayoff, requests: Sequence[Request], chance: float, num_running: int) -> dict[Request, int]:
        self.is_probing = True  # so that all of it is computed
        return dict.fromkeys(requests, 4)

    monkeypatch.setattr(ModelPayoff, "lengths", lengths)
