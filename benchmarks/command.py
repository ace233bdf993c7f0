"""How every benchmark is run: `python -m PACKAGE.NAME`, its flags read and its errors shown as hotloop's are."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from cyclopts import App, CycloptsError, Parameter

from hotloop.cli.exits import run_command
from hotloop.cli.output import show
from hotloop.core.errors import ConfigError

Command = Callable[..., int | None]


class Report(Protocol):
    """Figures that can be shown either way."""

    def to_json(self) -> dict[str, Any]: ...

    def to_table(self) -> Any: ...


def show_report(report: Report, as_json: bool) -> None:
    show(report.to_json(), report.to_table(), as_json)


def main(command: Command, package: str = "benchmarks") -> None:
    """Run a benchmark with the flags of this process, and leave with its exit code."""
    sys.exit(run(command, sys.argv[1:], package))


def run(command: Command, argv: Sequence[str], package: str = "benchmarks") -> int:
    return run_command(partial(_parse, app_of(command, package)), argv)


def _parse(app: App, argv: Sequence[str]) -> Any:
    try:
        return app(list(argv), print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise ConfigError(str(error)) from None


def app_of(command: Command, package: str = "benchmarks") -> App:
    app = App(
        name=f"python -m {package}.{command.__name__}",
        help_format="plaintext",
        default_parameter=Parameter(negative_iterable=()),
        result_action="return_value",
    )
    app.default(command)
    return app
