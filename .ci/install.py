"""What an install takes: each set of extras in a fresh environment, its size and time, and that its commands run.

make test-install    prints a table, and how long a new user waits for the first finding about their own vLLM; a command
                     that fails, or a light install that is too large, fails the target
make test-install EXTRAS='ray mcp'    those extras, each by itself, beside the light install
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
_MAX_LIGHT_MB = 60
_NOBODY = "http://127.0.0.1:1"
_LIGHT = (
    (("--help",), 0),
    (("lint", "--list"), 0),
    (("doctor", _NOBODY), 1),
    (("route", "--port", "99999", "--replica", _NOBODY), 2),
    (("trace", "ls", "--trace", "none.db"), 2),
)
_CASES = {"hotloop": ("", _LIGHT), "hotloop[cpu]": ("[cpu]", (*_LIGHT, (("serve", "none.gguf", "--port", "0"), 1)))}


def main() -> int:
    failed = []
    for name, (extras, commands) in _CASES.items():
        folder = Path(tempfile.mkdtemp(prefix="hotloop-install-"))
        try:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            empty = size_mb(folder)
            begun_at = time.monotonic()
            install(folder, extras)
            took_s = time.monotonic() - begun_at
            size = size_mb(folder) - empty
            print(f"{name:14} {size:6.0f} MB {took_s:6.1f} s", flush=True)
            if not extras and size > _MAX_LIGHT_MB:
                failed.append(f"{name} takes {size:.0f} MB, more than {_MAX_LIGHT_MB}")
            failed += [failure for argv, code in commands if (failure := run(folder, argv, code))]
        finally:
            shutil.rmtree(folder)
    for failure in failed:
        print(failure, file=sys.stderr)
    return int(bool(failed))


def install(folder: Path, extras: str) -> None:
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    subprocess.run([*pip, f"{ROOT}{extras}", "-c", ROOT / "constraints.txt"], check=True)


def run(folder: Path, argv: tuple[str, ...], code: int) -> str | None:
    command = [str(folder / "bin" / "hotloop"), *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    if done.returncode == code and "Traceback" not in done.stderr:
        return None
    return f"{' '.join(command)} ended with {done.returncode}, not {code}: {done.stderr}"


def size_mb(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    sys.exit(main())
