"""The command line as cyclopts parses it: one file a command.

A command's module is imported when the command is run, and what it needs to run inside it.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import BoundArguments
from typing import Any

from cyclopts import CycloptsError, Group, Parameter

from hotloop.cli.command_line import CommandLine
from hotloop.cli.commands import ABOUT, COMMANDS, unknown_command
from hotloop.cli.settings import Sources
from hotloop.core.config import TraceConfig
from hotloop.core.errors import ConfigError
from hotloop.core.version import __version__

app = CommandLine(
    name="hotloop",
    help=ABOUT,
    help_format="plaintext",
    version=__version__,
    version_flags="--version",
    default_parameter=Parameter(negative_iterable=()),
    result_action="return_value",
)
_WITH_SETTINGS = ("serve", "chat", "route", "serve-agent")
_CONFIGS = {**dict.fromkeys(_WITH_SETTINGS, Sources()), **dict.fromkeys(("run", "lint"), Sources(only=TraceConfig))}
_GROUPS = {title: Group.create_ordered(title) for title in COMMANDS}
for title, commands in COMMANDS.items():
    for name, (home, summary) in commands.items():
        app.command(f"hotloop.cli.{home}", name=name, help=summary, group=_GROUPS[title])
for flag in ("--help", "--version"):
    app[flag].group = _GROUPS["Other"]


def load(name: str) -> None:
    """Put the command itself in the place of its summary."""
    for title, commands in COMMANDS.items():
        if name in commands:
            module, _, attribute = commands[name][0].partition(":")
            command = getattr(import_module(f"hotloop.cli.{module}"), attribute)
            del app[name]
            options: dict[str, Any] = {"config": _CONFIGS[name]} if name in _CONFIGS else {}
            app.command(command, name=name, **options)
            app[name].group = _GROUPS[title]


def load_all() -> CommandLine:
    """The command line with every command loaded."""
    for commands in COMMANDS.values():
        for name in commands:
            load(name)
    return app


def ask(argv: Sequence[str]) -> Any:
    """Run a command, and give what it returns. Raises ConfigError where the command line is wrong.

    A command that can be reloaded is also given a function that parses the same command line anew.
    """
    for name in argv[:1]:
        if name not in app:
            raise ConfigError(unknown_command(name))
        load(name)
    command, bound, unread = _parse(argv)

    def reread() -> Mapping[str, Any]:
        _, again, _ = _parse(argv)
        again.apply_defaults()
        return again.arguments

    return command(*bound.args, **bound.kwargs, **({"reread": reread} if "reread" in unread else {}))


def _parse(argv: Sequence[str]) -> tuple[Any, BoundArguments, Mapping[str, Any]]:
    try:
        return app.parse_args(argv, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise ConfigError(str(error)) from None
