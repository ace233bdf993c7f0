"""The command line: one file a command.

A command's module is imported when the command is run, and what it needs to run inside it: `hotloop --help` loads no
engine.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

from cyclopts import CycloptsError, Group, Parameter

from hotloop.cli.command_line import CommandLine
from hotloop.cli.exits import run_app
from hotloop.cli.settings import Sources
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

_COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Serving": {
        "serve": ("serving.serve:serve", "Serve a model over the OpenAI and Anthropic APIs."),
        "chat": ("chat:chat", "Chat with a model in the terminal; /help lists the commands."),
        "route": (
            "serving.serve:route",
            "Route requests to many replicas: each goes to the one that has its prefix cached.",
        ),
        "batch": (
            "batch:batch",
            "Ask all requests of a file in the background class, and write each answer as it comes.",
        ),
        "ray": ("serving.ray:ray", "Deploy replicas and their router on Ray Serve (needs the extra `ray`)."),
    },
    "Agents": {
        "run": (
            "agent.run:run_agent",
            "Run the agent defined in a file, showing turns, tools, cached tokens and cost.",
        ),
        "runs": ("agent.runs:runs", "List agents' runs, and go on with those that were cut off."),
        "predict": ("agent.predict:predict", "Inspect what speculative tool execution has learned."),
    },
    "Measuring and checking": {
        "trace": ("trace.app:trace", "Analyse recorded runs: time, tokens, cache."),
        "bench": ("bench:bench", "Benchmark a server with agent workloads."),
        "doctor": (
            "advice.doctor:doctor",
            "Check a live deployment for common production problems and suggest fixes.",
        ),
        "lint": (
            "advice.lint:lint",
            "Find patterns in prompts that waste tokens, time or money, and suggest fixes.",
        ),
        "check": (
            "advice.check:check",
            "Compare recorded runs with those after a change; fail if they take more steps, tokens recomputed or cost.",
        ),
        "size": (
            "advice.size:size",
            "Estimate the hardware a load needs: memory, TTFT, tokens/s, cost. Runs no model.",
        ),
        "spend": (
            "serving.spend:spend",
            "Show what was spent behind a router: requests, tokens and money, by key, model or session tree.",
        ),
        "simulate": (
            "serving.simulate:simulate",
            "Replay recorded traffic against simulated replicas and compare routing policies.",
        ),
    },
    "Models": {
        "models": (
            "models:models",
            "List the models that can be loaded by name; show one; find one for this machine.",
        ),
        "pull": ("models:pull", "Download a model, or register a local one under its name."),
        "rm": ("models:rm", "Remove a model and its downloaded files. Your own files are not deleted."),
    },
    "Other": {
        "demo": (
            "demo:demo",
            "Run a few agents without and with prefix reuse and batching, then tool calls without and with shortcuts.",
        ),
        "version": (
            "models:version",
            "Print the versions of hotloop, Python and, where it is installed, PyTorch.",
        ),
    },
}
"""Where each command is, and the first line of its help; its module is imported when it is run."""

_CONFIGS = {"serve": Sources(), "chat": Sources(), "route": Sources(), "run": Sources(only=TraceConfig)}
_GROUPS = {title: Group.create_ordered(title) for title in _COMMANDS}
for title, commands in _COMMANDS.items():
    for name, (home, summary) in commands.items():
        app.command(f"hotloop.cli.{home}", name=name, help=summary, group=_GROUPS[title])
for flag in ("--help", "--version"):
    app[flag].group = _GROUPS["Other"]


def load(name: str) -> None:
    """Put the command itself in the place of its summary."""
    for title, commands in _COMMANDS.items():
        if name in commands:
            module, _, attribute = commands[name][0].partition(":")
            command = getattr(import_module(f"hotloop.cli.{module}"), attribute)
            del app[name]
            options: dict[str, Any] = {"config": _CONFIGS[name]} if name in _CONFIGS else {}
            app.command(command, name=name, **options)
            app[name].group = _GROUPS[title]


def load_all() -> CommandLine:
    """The command line with every command loaded."""
    for commands in _COMMANDS.values():
        for name in commands:
            load(name)
    return app


app.meta.help_flags = app.meta.version_flags = ()  # for the command that they are given to


@app.meta.default
def launch(*argv: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> Any:
    """Run a command. A command that can be reloaded is also given a function that parses the same command line anew."""
    for name in argv[:1]:
        load(name)
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
