"""`python -m tests.fuzz.worker SEED BEGIN END FOLDER TARGET…`: reads inputs BEGIN to END of each target, in a process
that may be killed by one of them. Findings are written to stdout, a JSON object a line, and in the end how many inputs
were found good; before each input its target and number to FOLDER/at, so that who started this knows where it ended.
"""

import json
import os
import random
import resource
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz.targets import TARGETS, make_target

MAX_CPU_S = 10.0
MAX_WALL_S = 120.0  # for a machine that is busy
MAX_BYTES = 6 << 30  # of addresses
MAX_GROWN_BYTES = 512 << 20  # that one input may make the process grow by


def read_input(target: str, seed: int, number: int, folder: Path, good: Counter[str]) -> dict[str, Any] | None:
    """What is wrong with how it was read, if anything."""
    reader = make_target(target, folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        reader.read(random.Random(f"{target} {seed} {number}"))
        good[target] += 1
    except reader.errors as error:
        if "\n" in str(error):
            return {"what": f"an error of several lines: {error}", "where": type(error).__name__}
    except (Exception, RecursionError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = next((f for f in reversed(frames) if "/hotloop/" in f.filename), frames[-1])
        where = f"{Path(ours.filename).name}:{ours.lineno} {type(error).__name__}"
        return {"what": f"{type(error).__name__}: {error}"[:300], "where": where, "trace": traceback.format_exc()}
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    return {"what": f"grew by {grown >> 20} MB", "where": "memory"} if grown > MAX_GROWN_BYTES else None


def main(seed: int, begin: int, end: int, folder: Path, targets: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    good = Counter[str]()
    at = os.open(folder / "at", os.O_CREAT | os.O_WRONLY)
    for number in range(begin, end):
        for target in targets:
            os.pwrite(at, f"{number} {target}".ljust(64).encode(), 0)
            signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # nobody handles these signals: they end the process
            signal.setitimer(signal.ITIMER_REAL, MAX_WALL_S)
            if found := read_input(target, seed, number, folder, good):
                print(json.dumps({"target": target, "number": number, **found}), flush=True)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps({"good": good}), flush=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(*map(int, arguments[:3]), Path(arguments[3]), arguments[4:] or [*TARGETS])
