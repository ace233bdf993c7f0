"""An agent out of a Python file: the file is run as a script would be, and what it made is looked at.

Whatever is wrong with it is one line that says where.
"""

import importlib.util
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop.agent.agent import Agent
from hotloop.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AgentFile:
    """What a file has for us: an agent, and what its tools are given (a list or tuple named `context`)."""

    agent: "Agent[Any]"
    context: Sequence[Any] = ()


def load_agent_file(path: Path, name: str | None = None) -> AgentFile:
    """The agent of that name; without one, `agent`, or the only one there is. Raises ConfigError."""
    module = _load(path)
    agents = {key: value for key, value in vars(module).items() if isinstance(value, Agent)}
    context = getattr(module, "context", ())
    if not isinstance(context, list | tuple):
        raise ConfigError(f"{path}: `context` must be a list of what the tools are given, not {type(context).__name__}")
    return AgentFile(agents[_choose(path, agents, name)], context)


def _choose(path: Path, agents: dict[str, "Agent[Any]"], name: str | None) -> str:
    there = ", ".join(sorted(agents))
    if not agents:
        raise ConfigError(f"{path} does not define an Agent")
    if name is not None:
        if name not in agents:
            raise ConfigError(f"{path} has no agent {name!r}; it has: {there}")
        return name
    if "agent" in agents:
        return "agent"
    if len({id(agent) for agent in agents.values()}) > 1:
        raise ConfigError(f"{path} has several agents, choose one with --agent: {there}")
    return next(iter(agents))


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    name = f"hotloop_run_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # types written as text are looked up there
    sys.path.insert(0, str(path.resolve().parent))  # as for a script
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{_where(path, error)}: {type(error).__name__}: {error}") from error
    return module


def _where(path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{path}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f"{path}, line {lines[-1]}" if lines else str(path)
