"""What `serve` and `route` run with: checked as a whole at the start, and by the same code again on SIGHUP.

A reload applies the settings in `RELOADABLE` and reports any other that has changed. What is wrong with the settings is
found before the first of them is applied.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

from hotloop.cli.tracing import load_prices
from hotloop.core.config import RELOADABLE, ListenerConfig, TraceConfig
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

    def changed(self, new: "Settings[Listener]") -> set[str]:
        pairs = zip((self.listener, self.trace, *self.others), (new.listener, new.trace, *new.others), strict=True)
        return {
            each.name
            for before, after in pairs
            for each in fields(before)
            if getattr(before, each.name) != getattr(after, each.name)
        }


class Reload(Generic[Listener]):
    """Holds what is in force. `read` gives the settings a start would run with now."""

    def __init__(self, settings: Settings[Listener], read: Callable[[], Settings[Listener]]) -> None:
        self.keys = ApiKeys(settings.check())
        self._settings = settings
        self._read = read

    def __call__(self, apply: Callable[[Listener], list[str]] = lambda listener: []) -> str:
        """What has changed, and what needs a restart. `apply` is given the settings that will be in force and says what
        it changed. Both raise ConfigError, and then nothing has changed."""
        new = self._read()
        keys, changed = new.check(), self._settings.changed(new)
        pending = changed - RELOADABLE
        if bool(keys) != bool(self.keys.current):  # who is let in without a key is settled at the start
            pending.add("api_key")
            keys = self.keys.current
        applied = {name: getattr(new.listener, name) for name in changed & RELOADABLE}
        listener = replace(self._settings.listener, **applied)
        told = apply(listener)
        told += ["API keys"] if keys != self.keys.current else []
        told += [f"{name}={value}" for name, value in sorted(applied.items()) if name not in _UNTOLD]
        self._settings = replace(self._settings, listener=listener)
        self.keys.current = keys
        start_logging(listener)
        waiting = f"; needs a restart: {', '.join(sorted(pending))}" if pending else ""
        return f"changed: {', '.join(told) or 'nothing'}{waiting}"
