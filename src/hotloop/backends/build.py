"""C++ sources of ours as libraries: compiled once by the machine's own compiler, and kept."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from hotloop.models.catalogue import home

BUILD_ERRORS = (OSError, AttributeError, subprocess.SubprocessError)
_COMPILE_TIMEOUT_S = 300


def compiler() -> str | None:
    return next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def build_path(name: str, *recipe: str) -> Path:
    """Compiled code is kept under a name made from all that went into it, in a folder of ours that can be written."""
    digest = hashlib.sha256("\0".join((*recipe, compiler() or "")).encode()).hexdigest()[:16]
    folder = home() / "cache" / "native"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="hotloop-"))
    return folder / f"{name}-{digest}.so"


def build(path: Path, *arguments: str) -> ctypes.CDLL:
    """What was compiled before, if it is whole: its size stands beside it, since loading half a library is fatal."""
    size = path.with_suffix(".size")
    if not path.exists() or not size.exists() or size.read_text() != str(path.stat().st_size):
        _compile(path, arguments)
        size.write_text(str(path.stat().st_size))
    return ctypes.CDLL(str(path))


def _compile(path: Path, arguments: tuple[str, ...]) -> None:
    program = compiler()
    if program is None:
        raise FileNotFoundError("there is no C++ compiler here (c++, g++ or clang++)")
    draft = path.with_name(f"{path.stem}-{os.getpid()}.so")
    command = [program, "-O3", "-fPIC", "-shared", *arguments, "-o", str(draft)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise OSError(errors[0] if errors else f"the compiler ended with status {done.returncode}")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
