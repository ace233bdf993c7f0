"""Where settings come from: flags, then `HOTLOOP_*` in the environment, then `hotloop.toml`, then the defaults.

One name everywhere: the field `max_running` is `--max-running`, `HOTLOOP_MAX_RUNNING` and `max_running = 8`. A key of
the file that no setting has is an error; a key that this command has no use for is not. What only `serve` or `route` is
to have can stand in its own table, [serve] or [route]; what classes of requests may wait can stand below [classes].
"""

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Parameter, Token
from cyclopts.config import Dict

from hotloop.cli.command_line import OUTPUT_GROUP, SETTING_GROUPS
from hotloop.core.config import (
    CLASS_SETTINGS,
    CONFIG_CLASSES,
    FEATURES,
    AgentServerConfig,
    EngineConfig,
    Feature,
    ModelConfig,
    RouterConfig,
    ServerConfig,
    TraceConfig,
)
from hotloop.core.errors import ConfigError
from hotloop.core.files import read_toml

CONFIG_FILE = "hotloop.toml"
_OWN_TABLES: Mapping[str, tuple[type, ...]] = {
    "serve": (ModelConfig, EngineConfig, ServerConfig, TraceConfig),
    "route": (RouterConfig, TraceConfig),
    "serve-agent": (AgentServerConfig, TraceConfig),
}

ModelFlags = Annotated[ModelConfig, Parameter(name="*")]
EngineFlags = Annotated[EngineConfig, Parameter(name="*")]
ServerFlags = Annotated[ServerConfig, Parameter(name="*")]
RouterFlags = Annotated[RouterConfig, Parameter(name="*")]
AgentServerFlags = Annotated[AgentServerConfig, Parameter(name="*")]
TraceFlags = Annotated[TraceConfig, Parameter(name="*")]
TRACED = TraceConfig()


def _split(_: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    names = tuple(name for token in tokens for name in token.value.replace(",", " ").split())
    for name in names:
        if name not in FEATURES:
            raise ValueError(f"there is no feature {name!r}; there are {', '.join(FEATURES)}")
    return names


Disable = Annotated[
    tuple[Feature, ...],
    Parameter(
        name="--disable",
        converter=_split,
        group=SETTING_GROUPS["disable"],
        help="Features to turn off, separated by commas; docs/configuration.md says what each does.",
    ),
]
ConfigFile = Annotated[Path | None, Parameter(name="--config", help=f"Read this file instead of ./{CONFIG_FILE}.")]
Reread = Annotated[Callable[[], Mapping[str, Any]] | None, Parameter(parse=False)]
"""The arguments of a command as they would be if it was started now. Raises ConfigError."""
JsonOutput = Annotated[
    bool, Parameter(name="--json", negative="", group=OUTPUT_GROUP, help="Print machine-readable JSON.")
]
Url = Annotated[str, Parameter(help="Address of an OpenAI-compatible server, such as http://127.0.0.1:8700.")]
ApiKey = Annotated[str | None, Parameter(env_var="HOTLOOP_API_KEY", help="Bearer token for the server.")]

_SPLIT = {"disable", *(field.name for cls in CONFIG_CLASSES for field in fields(cls) if "tuple" in str(field.type))}
_OTHER_VARIABLES = ("HOTLOOP_HOME", "HOTLOOP_OPENAI_SPEC")
_TABLES = ("replicas", "tiers", "routes", "ray", "prices")
"""What a file holds beside settings, and others read: `hotloop.router`, `hotloop.ray`, `hotloop.cli.tracing`."""


def _names(*classes: type) -> set[str]:
    """What may be set by environment and file; features by the list `disable`."""
    names = {field.name for cls in classes for field in fields(cls)}
    return names - {*FEATURES} | ({"disable"} if names & {*FEATURES} else set())


_NAMES = _names(*CONFIG_CLASSES)


def env_name(setting: str) -> str:
    return f"HOTLOOP_{setting.upper()}"


def flag_name(setting: str) -> str:
    return "--" + setting.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Sources:
    """What stands behind the flags. A cyclopts config: called with the arguments before they are converted."""

    environ: Callable[[], Mapping[str, str]] = lambda: os.environ
    folder: Callable[[], Path] = Path.cwd
    only: type | None = None
    """A class of settings: of others nothing is taken, since the command's flags only have their names."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        taken = {argument.name.removeprefix("--").replace("-", "_") for argument in arguments}
        taken &= _names(self.only) if self.only else taken
        command = commands[-1] if commands else ""
        path, is_shared = self._find_file(arguments)
        file = read_config(path, command, is_shared=is_shared) if path else {}
        for source, values in (("the environment", self._read_environ()), (str(path), file)):
            used = {name: value for name, value in values.items() if name in taken}
            # Without the commands: else a setting that is called as a command is would be passed over.
            Dict(used, source=source)(app, (), arguments)

    def _read_environ(self) -> dict[str, Any]:
        """A variable that is set but empty counts as not set; one that no setting has is most likely mistyped."""
        environ = self.environ()
        known = {*map(env_name, _NAMES), *_OTHER_VARIABLES}
        for name in sorted(name for name in environ if name.startswith("HOTLOOP_") and name not in known):
            nearest = get_close_matches(name, known, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            print(f"hotloop: unknown environment variable {name}{hint} (ignored)", file=sys.stderr)
        values = {name: environ[env_name(name)] for name in _NAMES if environ.get(env_name(name))}
        return {name: value.split() if name in _SPLIT else value for name, value in values.items()}

    def _find_file(self, arguments: ArgumentCollection) -> tuple[Path | None, bool]:
        """The file, and whether it is that of the folder, which other commands read as well."""
        given = next((argument.tokens for argument in arguments if argument.name == "--config"), [])
        path = Path(given[0].value) if given else self.folder() / CONFIG_FILE
        return (path if given or path.exists() else None), not given


def read_config(path: Path, command: str = "", *, is_shared: bool = False) -> dict[str, Any]:
    """The settings in a TOML file, the command's own table before what stands at the top. A key no setting has, or a
    value no flag could give, is an error naming both.

    A router beside a server cannot have its port: at the top of a file that is shared, `port` is the server's.
    """
    values = {name: value for name, value in read_toml(path).items() if name not in _TABLES}
    own = {name: values.pop(name, {}) for name in (*_OWN_TABLES, "classes")}
    _check_values(str(path), values, _NAMES)
    for name, table in own.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: write [{name}]")
        known = _names(*_OWN_TABLES[name]) if name in _OWN_TABLES else CLASS_SETTINGS
        _check_values(f"{path}: [{name}]", table, known)
    if is_shared and command == "route" and values.pop("port", None) and "port" not in own[command]:
        print(f"hotloop: {path}: port is that of serve; for route, write it below [route]", file=sys.stderr)
    return {**values, **own["classes"], **own.get(command, {})}


def _check_values(place: str, values: Mapping[str, Any], known: Collection[str]) -> None:
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"{place}: there is no setting {name!r}")
        if not isinstance(value, str | int | float | list) or (isinstance(value, list) and name not in _SPLIT):
            raise ConfigError(f"{place}: {name} cannot be {value!r}")


def pick_names(text: str, known: Collection[str], what: str) -> list[str]:
    """The names in a flag that takes several, separated by commas; at least one. Raises ConfigError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names or [""]:
        if name not in known:
            raise ConfigError(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return names
