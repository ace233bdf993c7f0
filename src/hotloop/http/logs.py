"""Log lines, for people or as JSON objects, and one of them for each request that was answered.

An application says what it knows of a request in `scope["state"]["access"]`, a function that is called when the answer
is over. Neither headers nor bodies nor query strings are logged: no line has a key, a prompt or an answer.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from hotloop.core.config import ListenerConfig
from hotloop.http.keys import METRICS_PATH
from hotloop.http.page import Application
from hotloop.http.requests import OPEN_PATHS, is_from_front

Facts = Mapping[str, Any]
FACTS = "access"
"""The key of `scope["state"]` with the function that gives them."""
REFUSED = "refused"
"""The key of `scope["state"]` with the code of the error that was answered, where one was."""

_QUIET = OPEN_PATHS | {METRICS_PATH}
"""What probes ask for, many times a minute: logged at the level debug."""
_MAX_CHARS = 200
_TEXT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("hotloop.access")


class JsonFormatter(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `message`, and of an access line its values."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start_logging(config: ListenerConfig) -> None:
    """Lines go to stderr. A reload calls this again."""
    logging.basicConfig()
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter() if config.log_format == "json" else _TEXT)
    logging.getLogger("hotloop").setLevel(config.log_level.upper())


class AccessLog:
    """An ASGI application with a line for each of its answers."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        level = logging.DEBUG if scope.get("path") in _QUIET or is_from_front(scope) else logging.INFO
        if scope["type"] != "http" or not log.isEnabledFor(level):
            await self.app(scope, receive, send)
            return
        began_at, status, state = time.monotonic(), 0, scope.setdefault("state", {})

        async def watched_send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        finally:
            # an open connection keeps the scope of its last request
            tell: Callable[[], Facts] = state.pop(FACTS, dict)
            refused, told = state.pop(REFUSED, None), tell()
            facts = {
                "method": scope["method"],
                "path": scope["path"][:_MAX_CHARS],
                "status": status,
                "duration_ms": _ms(time.monotonic() - began_at),
                "request": state.get("request_id"),
                **_tenant(state),
                **told,
                "error": told.get("error") or refused,
            }
            _write(level, {name: _short(value) for name, value in facts.items() if value not in (None, "")})


def _tenant(state: Mapping[str, Any]) -> Facts:
    tenant = state.get("tenant")
    return {"key": tenant.label} if tenant else {}


def first_token(began_at: float | None, first_at: float | None) -> Facts:
    return {"ttft_ms": _ms(first_at - began_at)} if began_at and first_at else {}


def _write(level: int, facts: Facts) -> None:
    head = f"{facts['method']} {_word(facts['path'])} {facts['status']}"
    rest = " ".join(f"{name}={_word(value)}" for name, value in facts.items() if name not in _HEAD)
    log.log(level, "%s %s", head, rest, extra={"facts": facts})


_HEAD = ("method", "path", "status")
_PLAIN = re.compile(r"[!#-<>-~]*")


def _short(value: Any) -> Any:
    return value[:_MAX_CHARS] if isinstance(value, str) else value


def _word(value: Any) -> str:
    """As one word: what a client chose may hold anything, a line break too."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _ms(duration_s: float) -> float:
    return round(duration_s * 1000, 1)
