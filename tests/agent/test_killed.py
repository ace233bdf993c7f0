"""A process that is killed with SIGKILL, again and again: its run goes on, and no effect is lost or repeated."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.agent.killed import LINES

ROOT = Path(__file__).parents[2]


def start(store: Path, effects: Path, run_id: str | None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.agent.killed", str(store), str(effects), *([run_id] if run_id else [])]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_after(process: "subprocess.Popen[str]", delay_s: float) -> threading.Thread:
    def kill() -> None:
        time.sleep(delay_s)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def live(store: Path, effects: Path, run_id: str | None, delay_s: float | None) -> tuple[str | None, str]:
    """One life of the program, killed so long after its first turn began; the run's id and its last line."""
    with start(store, effects, run_id) as process:
        assert process.stdout
        assert process.stderr
        first = process.stdout.readline().strip()
        run_id = first.split()[-1] if first.startswith("turn") else run_id
        killer = kill_after(process, delay_s) if delay_s is not None else None
        last = (process.stdout.read().splitlines() or [first])[-1]
        said = process.stderr.read()
        if killer:
            killer.join()
    assert process.returncode in (0, -signal.SIGKILL), said
    return run_id, last


@pytest.mark.parametrize("seed", range(4))
def test_no_effect_is_lost_and_none_is_repeated(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store, effects = tmp_path / "trace.db", tmp_path / "effects"
    run_id, last = None, ""
    for _ in range(3):
        run_id, last = live(store, effects, run_id, rng.uniform(0, 0.12))
        if last.startswith("done"):
            break
    if not last.startswith("done"):
        _, last = live(store, effects, run_id, None)
    assert last.startswith("done done")
    assert sorted(effects.read_text().split()) == sorted(LINES)  # calls of one turn run at once, in any order
