"""A process that is killed with SIGKILL, again and again: its run goes on, and no effect is lost or repeated."""

import multiprocessing
import random
import signal
import time
from pathlib import Path

import pytest
from tests.agent import killed

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.agent.killed"])  # a life begins at once, with everything imported
NUM_SEEDS = 4
MOST_KILLS = 4
"""Of one run; then it is left alone."""


def live(folder: Path, delay_s: float | None) -> str:
    """One life of the program, killed so long after it began, if it lives as long; how its run ended."""
    heard, told = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=killed.main, args=(folder, told))
    process.start()
    told.close()
    assert heard.recv() == "begins"
    if delay_s is not None:
        time.sleep(delay_s)
        process.kill()
    ended = "killed"
    try:
        ended = heard.recv()
    except EOFError:
        process.join()
        assert process.exitcode == -signal.SIGKILL
    process.join()
    heard.close()
    return ended


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_no_effect_is_lost_and_none_is_repeated(tmp_path: Path, seed: int, num_kills: int) -> None:
    """With `--kills N` at N random moments."""
    rng = random.Random(f"{seed} {num_kills}")
    kills_left, num_runs = num_kills // NUM_SEEDS, 0
    while kills_left > 0:
        folder = tmp_path / str(num_runs)
        folder.mkdir()
        num_runs += 1
        for _ in range(min(kills_left, MOST_KILLS)):
            if (ended := live(folder, rng.uniform(0, 0.25))) != "killed":
                break
            kills_left -= 1
        else:
            ended = live(folder, None)
        assert ended == "done"
        lines = (folder / "effects").read_text().split()
        assert sorted(lines) == sorted(killed.LINES)  # calls of one turn run at once, in any order
