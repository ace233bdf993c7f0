"""`python -m benchmarks.claims.gpu`: the rows of `python -m benchmarks.claims`, by the same code, on a card."""

import sys

from benchmarks.claims.__main__ import claims
from benchmarks.command import run

if __name__ == "__main__":
    sys.exit(run(claims, ["--device", "cuda", *sys.argv[1:]]))
