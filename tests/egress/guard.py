"""Processes that reach nothing but loopback: whatever else they, or their children, try is refused and recorded."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotloop.backends.cpu.build import compiler

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


class Guard:
    """A home, a folder to work in, and an environment for processes that are watched."""

    def __init__(self, folder: Path) -> None:
        self.home, self.work, watch = folder / "home", folder / "work", folder / "watch"
        for each in (self.home, self.work, watch):
            each.mkdir()
        shutil.copy(_HERE / "audit.py", watch / "sitecustomize.py")
        self.record = watch / "contacted"
        paths = (watch, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), _ROOT)
        self.env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, paths))}
        if sys.platform == "linux":
            self.env["LD_PRELOAD"] = str(self._compile_preload(watch))

    def _compile_preload(self, folder: Path) -> Path:
        library, program = folder / "preload.so", compiler()
        assert program, "the guard needs a compiler"
        record = f'-DRECORD="{self.record}"'
        command = [program, "-x", "c", "-shared", "-fPIC", "-O1", record, str(_HERE / "preload.c"), "-o", str(library)]
        subprocess.run([*command, "-ldl"], check=True)
        return library

    def contacted(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []

    def python(self, *argv: str, stdin: str = "", **environ: str) -> "subprocess.CompletedProcess[str]":
        command, env = [sys.executable, *argv], self.env | environ
        return subprocess.run(
            command, cwd=self.work, env=env, input=stdin, capture_output=True, text=True, timeout=280, check=False
        )

    @contextmanager
    def serving(self, *argv: str, **environ: str) -> Iterator[str]:
        """`hotloop` with these arguments, until the context is left; yields the address that it prints."""
        process = subprocess.Popen(
            [sys.executable, "-m", "hotloop", *argv],
            cwd=self.work,
            env=self.env | environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout
            addresses = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stdout)
            yield next(found[0] for found in addresses if found)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
        finally:
            process.kill()
            process.communicate()
