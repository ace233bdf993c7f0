"""How every benchmark is run: `python -m benchmarks.NAME`, its flags read and its errors shown as hotloop's are."""

import sys
from collections.abc import Callable, Sequence

from cyclopts import App, Parameter

from hotloop.cli.exits import run_app

Command = Callable[..., int | None]


def main(command: Command) -> None:
    """Run a benchmark with the flags of this process, and leave with its exit code."""
    sys.exit(run(command, sys.argv[1:]))


def run(command: Command, argv: Sequence[str]) -> int:
    return run_app(app_of(command), argv)


def app_of(command: Command) -> App:
    app = App(
        name=f"python -m benchmarks.{command.__name__}",
        help_format="plaintext",
        default_parameter=Parameter(negative_iterable=()),
        result_action="return_value",
    )
    app.default(command)
    return app
