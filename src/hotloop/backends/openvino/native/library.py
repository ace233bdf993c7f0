"""Kernels compiled once by the machine's own C++ compiler, and kept. Knows nothing of what they do."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import openvino as ov

from hotloop.models.catalogue import home

BUILD_ERRORS = (OSError, AttributeError, subprocess.SubprocessError)
"""What `build` raises where a kernel cannot be had."""

_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared")
_COMPILE_TIMEOUT_S = 60


def build(source: Path, *flags: str) -> ctypes.CDLL:
    """The source's library, compiled with these flags unless that was done before."""
    return load(_target(source, flags), source, *flags)


def compiler() -> str | None:
    return next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def _target(source: Path, flags: tuple[str, ...]) -> Path:
    """Compiled code is kept under a name made from all that went into it, in a folder of ours that can be written."""
    recipe = "\0".join((source.read_text(), ov.__version__, ov.__file__, compiler() or "", *_FLAGS, *flags))
    name = f"{source.stem}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"
    folder = home() / "cache" / "native"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="hotloop-"))
    return folder / name


def load(path: Path, source: Path, *flags: str) -> ctypes.CDLL:
    """What was compiled before, if it is whole: its size stands beside it, since loading half a library is fatal."""
    size = path.with_suffix(".size")
    if not path.exists() or not size.exists() or size.read_text() != str(path.stat().st_size):
        _compile(path, source, flags)
        size.write_text(str(path.stat().st_size))
    return ctypes.CDLL(str(path))


def _compile(path: Path, source: Path, flags: tuple[str, ...]) -> None:
    """Against the TBB that OpenVINO brings, so that both share one pool of threads."""
    openvino = Path(ov.__file__).parent
    tbb = next((openvino / "libs").glob("libtbb.*"), None)
    program = compiler()
    if program is None:
        raise FileNotFoundError("there is no C++ compiler here (c++, g++ or clang++)")
    if tbb is None:
        raise FileNotFoundError("OpenVINO came without its TBB library")
    draft = path.with_name(f"{path.stem}-{os.getpid()}.so")
    command = [program, *_FLAGS, *flags, f"-I{openvino / 'include'}", str(source), "-o", str(draft), str(tbb)]
    command.append(f"-Wl,-rpath,{tbb.parent}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise OSError(errors[0] if errors else f"the compiler ended with status {done.returncode}")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
