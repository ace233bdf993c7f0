"""What an install takes: each set of extras in a fresh environment, its size and time, and that its commands run.

make test-install                           prints a table, and how long a new user waits for the first finding about
                                            their own vLLM; a failure, or a light install that is too large, fails it
make test-install EXTRAS='mcp ray'          these extras, each by itself
make test-install WHEEL=dist/….whl          of this wheel, as `make wheel` made it; else of one without our libraries
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
_MAX_LIGHT_MB = 60
_WHEEL = os.environ.get("WHEEL", "")
_NOBODY = "http://127.0.0.1:1"
_EXTRAS = ("", "cpu", "fast", "hub", "kv-events", "mcp", "otel", "ray")
_LIGHT = (
    (("--help",), 0),
    (("lint", "--list"), 0),
    (("doctor", _NOBODY), 1),
    (("route", "--port", "99999", "--replica", _NOBODY), 2),
    (("trace", "ls", "--trace", "none.db"), 2),
)
_COMMANDS = {"cpu": ((("serve", "none.gguf", "--port", "0"), 1),), "ray": ((("ray", "status"), 1),)}
_IMPORTS = """
from hotloop.core.extras import EXTRA_OF
for name, extra in EXTRA_OF.items():
    if extra == {!r}:
        __import__(name)
"""
_VLLM = "from tests.vllm_server import VllmServer\nwith VllmServer() as server: print(server.url, flush=True); input()"


def main(extras: Sequence[str]) -> int:
    failed = []
    with tempfile.TemporaryDirectory(prefix="hotloop-wheel-") as wheels:
        wheel = Path(_WHEEL).absolute() if _WHEEL else build(Path(wheels))
        for extra in extras:
            folder = Path(tempfile.mkdtemp(prefix="hotloop-install-"))
            try:
                failed += examine(folder, wheel, extra)
            finally:
                shutil.rmtree(folder)
    for failure in failed:
        print(failure, file=sys.stderr)
    return int(bool(failed))


def build(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "wheel", "--no-deps", "-w", folder]
    subprocess.run([*pip, ROOT], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def examine(folder: Path, wheel: Path, extra: str) -> list[str]:
    """What is wrong with the install of that extra alone."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    empty = size_mb(folder)
    begun_at = time.monotonic()
    name = f"[{extra}]" if extra else ""
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    subprocess.run([*pip, f"{wheel}{name}", "-c", ROOT / "constraints.txt"], check=True)
    took_s, size, failed = time.monotonic() - begun_at, size_mb(folder) - empty, []
    print(f"{f'hotloop{name}':20} {size:5.0f} MB {took_s:6.1f} s", flush=True)
    if not extra:
        failed = find_first(folder)
        print(f"  to the first finding about a vLLM: 2 commands, {time.monotonic() - begun_at:.1f} s", flush=True)
        if size > _MAX_LIGHT_MB:
            failed.append(f"hotloop takes {size:.0f} MB, more than {_MAX_LIGHT_MB}")
    if subprocess.run([python, "-c", _IMPORTS.format(extra)], check=False).returncode:
        failed.append(f"hotloop{name} does not bring what it is for")
    return failed + [why for argv, code in (*_LIGHT, *_COMMANDS.get(extra, ())) if (why := run(folder, argv, code))]


def find_first(folder: Path) -> list[str]:
    """`hotloop doctor` at a server that speaks like vLLM finds what is wrong with it."""
    server = [folder / "bin" / "python", "-c", _VLLM]
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as vllm:
        assert vllm.stdout
        why = run(folder, ("doctor", vllm.stdout.readline().strip()), 1)
        vllm.communicate("\n")
    return [why] if why else []


def run(folder: Path, argv: tuple[str, ...], code: int) -> str | None:
    command = [str(folder / "bin" / "hotloop"), *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    if done.returncode == code and "Traceback" not in done.stderr:
        return None
    return f"{' '.join(command)} ended with {done.returncode}, not {code}: {done.stderr}"


def size_mb(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or _EXTRAS))
