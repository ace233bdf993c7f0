"""Files and streams that are nearly valid: what reads them says what is wrong in a line, soon, and in little memory.

FUZZ_INPUTS says how many of each kind (`make test-fuzz`: many), FUZZ_SEED which. A finding names its target and number:
`python -m tests.fuzz.worker SEED NUMBER NUMBER+1 FOLDER TARGET` has it again.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz.targets import TARGETS

NUM_INPUTS = int(os.environ.get("FUZZ_INPUTS", "40"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
ROOT = Path(__file__).parents[2]
MAX_DEATHS = 20


def run_worker(folder: Path, begin: int) -> tuple[int, list[dict[str, Any]]]:
    """Inputs from that number on; how it ended, and what it found."""
    command = [sys.executable, "-m", "tests.fuzz.worker", str(SEED), str(begin), str(NUM_INPUTS), str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_what_is_nearly_valid_is_refused_in_a_line(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    good = Counter[str]()
    begin, deaths = 0, 0
    status = -1
    while status and deaths < MAX_DEATHS:
        folder = tmp_path / str(deaths)
        folder.mkdir()
        status, told = run_worker(folder, begin)
        found += [each for each in told if "good" not in each]
        good.update({name: num for each in told for name, num in each.get("good", {}).items()})
        if status:
            number, target = (folder / "at").read_text().split()
            how = signal.Signals(-status).name if status < 0 else f"status {status}"
            found.append({"target": target, "number": int(number), "what": f"its process ended: {how}"})
            begin, deaths = int(number) + 1, deaths + 1
    print(f"seed {SEED}: {NUM_INPUTS} inputs for each of {len(TARGETS)} targets; good were {dict(good)}")
    for each in found:
        print(json.dumps({"seed": SEED, **each}))
    assert not found, f"{len(found)} findings, first {found[0]}"
    assert NUM_INPUTS < 40 or set(good) == set(TARGETS), "a target that finds nothing good is not looked into far"
