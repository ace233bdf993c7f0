"""What `serve` and `route` run with: checked as a whole at the start, and by the same code again on SIGHUP.

A reload applies the settings in `RELOADABLE` and reports any other that has changed. What is wrong with the settings is
found before the first of them is applied.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from hotloop.cli.tracing import load_prices
from hotloop.core.config import RELOADABLE, EngineConfig, ListenerConfig, ModelConfig, ServerConfig, TraceConfig
from hotloop.core.files import named_errors
from hotloop.http.keys import ApiKeys, Keys, read_keys
from hotloop.http.logs import start_logging
from hotloop.http.tls import certificate_of
from hotloop.trace.content import Content

Listener = TypeVar("Listener", bound=ListenerConfig)

_UNTOLD = frozenset({"api_key", "api_key_file", "replica", "max_connections"})
"""Told by what they change, which are keys and replicas."""


@dataclass(frozen=True, slots=True)
class Settings(Generic[Listener]):
    """All the settings of a command."""

    listener: Listener
    trace: TraceConfig
    others: tuple[Any, ...] = ()

    def check(self) -> Keys:
        """The API keys. Raises ConfigError where a setting, or a file that one names, cannot be used."""
        Content.parse(self.trace.trace_content, self.trace.trace_redact)
        load_prices(None)
        certificate_of(self.listener)
        return read_keys(self.listener.api_key, self.listener.api_key_file)

    def certificate(self) -> bytes:
        """As it is in its file now; nothing where there is none. Raises ConfigError."""
        if not self.listener.tls_cert:
            return b""
        path = Path(self.listener.tls_cert)
        with named_errors("read", path):
            return path.read_bytes()

    def reloaded(self, new: "Settings[Listener]") -> "Settings[Listener]":
        """These, with what a reload applies as it is in the new ones."""
        others = tuple(map(_reloaded, self.others, new.others))
        return Settings(_reloaded(self.listener, new.listener), self.trace, others)

    def changed(self, new: "Settings[Listener]") -> dict[str, Any]:
        """Each that is another in the new ones, as it is there."""
        pairs = zip((self.listener, self.trace, *self.others), (new.listener, new.trace, *new.others), strict=True)
        return {
            each.name: getattr(after, each.name)
            for before, after in pairs
            for each in fields(before)
            if getattr(before, each.name) != getattr(after, each.name)
        }


@dataclass(frozen=True, slots=True)
class Served:
    """The settings of `hotloop serve`."""

    model: ModelConfig
    engine: EngineConfig
    server: ServerConfig
    trace: TraceConfig

    @property
    def settings(self) -> Settings[ServerConfig]:
        return Settings(self.server, self.trace, (self.model, self.engine))

    def check(self) -> None:
        """Raises ConfigError where a setting, or a file that one names, cannot be used."""
        self.settings.check()


def _reloaded(before: Any, after: Any) -> Any:
    names = RELOADABLE & {each.name for each in fields(before)}
    return replace(before, **{name: getattr(after, name) for name in names})


class Reload(Generic[Listener]):
    """Holds what is in force. `read` gives the settings a start would run with now."""

    def __init__(self, settings: Settings[Listener], read: Callable[[], Settings[Listener]]) -> None:
        self.keys = ApiKeys(settings.check())
        self._certificate = settings.certificate()
        self._settings = settings
        self._read = read

    def __call__(self, apply: Callable[[Settings[Listener]], list[str]] = lambda settings: []) -> str:
        """What has changed, and what needs a restart. `apply` is given the settings that will be in force and says what
        it changed. Both raise ConfigError, and then nothing has changed."""
        new = self._read()
        keys, settings = new.check(), self._settings.reloaded(new)
        applied, pending, certificate = self._settings.changed(settings), settings.changed(new), settings.certificate()
        if bool(keys) != bool(self.keys.current):  # who is let in without a key is settled at the start
            pending["api_key"] = None
            keys = self.keys.current
        told = apply(settings)
        told += ["API keys"] if keys != self.keys.current else []
        told += ["certificate"] if certificate != self._certificate else []
        told += [f"{name}={value}" for name, value in sorted(applied.items()) if name not in _UNTOLD]
        self._settings, self._certificate = settings, certificate
        self.keys.current = keys
        start_logging(settings.listener)
        waiting = f"; needs a restart: {', '.join(sorted(pending))}" if pending else ""
        return f"changed: {', '.join(told) or 'nothing'}{waiting}"
