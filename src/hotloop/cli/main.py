"""What `hotloop` runs: `--help` at once, everything else as soon as the parser of the command line is loaded."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from hotloop.cli.commands import overview
from hotloop.cli.exits import run_command


def run(argv: Sequence[str]) -> int:
    return run_command(_answer, argv)


def _answer(argv: Sequence[str]) -> Any:
    if [*argv] in ([], ["-h"], ["--help"]):
        print(overview())
        return 0
    from hotloop.cli.app import ask

    return ask(argv)


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:]))
