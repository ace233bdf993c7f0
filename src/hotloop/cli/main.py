"""The command line: one file a command.

What a command needs to run is imported inside it: `hotloop --help` loads no engine.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

from cyclopts import CycloptsError, Group, Parameter

from hotloop.cli.advice.doctor import doctor
from hotloop.cli.advice.lint import lint
from hotloop.cli.advice.size import size
from hotloop.cli.agent.predict import predict
from hotloop.cli.agent.run import run_agent
from hotloop.cli.agent.runs import runs
from hotloop.cli.bench import bench
from hotloop.cli.chat import chat
from hotloop.cli.command_line import CommandLine
from hotloop.cli.demo import demo
from hotloop.cli.exits import run_app
from hotloop.cli.models import models, pull, rm, version
from hotloop.cli.serving.ray import ray
from hotloop.cli.serving.serve import route, serve
from hotloop.cli.serving.simulate import simulate
from hotloop.cli.settings import Sources
from hotloop.cli.trace.app import trace
from hotloop.core.config import TraceConfig
from hotloop.core.errors import ConfigError
from hotloop.core.version import __version__

app = CommandLine(
    name="hotloop",
    help="The inference stack for agents: every turn pays only for what is new.",
    help_format="plaintext",
    version=__version__,
    version_flags="--version",
    default_parameter=Parameter(negative_iterable=()),
    result_action="return_value",
)
app.command(serve, config=Sources())
app.command(chat, config=Sources())
app.command(route, config=Sources())
app.command(run_agent, name="run", config=Sources(only=TraceConfig))
for command in (simulate, size, lint, doctor, pull, rm, demo, version, models, bench, predict, ray, runs, trace):
    app.command(command)

_GROUPS = {
    "Serving": ("serve", "chat", "route", "ray"),
    "Agents": ("run", "runs", "predict"),
    "Measuring and checking": ("trace", "bench", "doctor", "lint", "size", "simulate"),
    "Models": ("models", "pull", "rm"),
    "Other": ("demo", "version", "--help", "--version"),
}
for title, names in _GROUPS.items():
    group = Group.create_ordered(title)
    for name in names:
        app[name].group = group


app.meta.help_flags = app.meta.version_flags = ()  # for the command that they are given to


@app.meta.default
def launch(*argv: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> Any:
    """Run a command. A command that can be reloaded is also given a function that parses the same command line anew."""
    command, bound, unread = app.parse_args(argv, print_error=False, exit_on_error=False)

    def reread() -> Mapping[str, Any]:
        try:
            _, again, _ = app.parse_args(argv, print_error=False, exit_on_error=False)
        except CycloptsError as error:
            raise ConfigError(str(error)) from None
        again.apply_defaults()
        return again.arguments

    return command(*bound.args, **bound.kwargs, **({"reread": reread} if "reread" in unread else {}))


def run(argv: Sequence[str]) -> int:
    return run_app(app.meta, argv)


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:]))
