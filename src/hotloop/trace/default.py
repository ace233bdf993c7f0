"""Where runs are recorded that nobody said anything about: the store that `hotloop run` writes to.

    HOTLOOP_TRACE           off, a file, or auto: `trace.db` in HOTLOOP_HOME
    HOTLOOP_TRACE_TAGS      tags that its runs are given, separated by spaces
    HOTLOOP_TRACE_CONTENT   1 to record what was said, too; what matches HOTLOOP_TRACE_REDACT is redacted

It is opened when the first run begins, once in each process, and written to the end when the program ends.
"""

import atexit
import logging
import os
import threading

from hotloop.core.config import TraceConfig, parse_bytes
from hotloop.core.errors import ConfigError
from hotloop.core.home import store_path
from hotloop.trace.content import Content
from hotloop.trace.store import Bounds, StoreTracer
from hotloop.trace.tracer import NullTracer, Tracer

log = logging.getLogger(__name__)

_lock = threading.Lock()
_opened: dict[tuple[int, str], Tracer] = {}


def open_store(config: TraceConfig) -> Tracer:
    """What the settings ask for. Raises ConfigError."""
    content = Content.parse(config.trace_content, config.trace_redact)
    path = store_path(config)
    if path is None:
        return NullTracer()
    bounds = Bounds(max_bytes=parse_bytes(config.trace_max_size), max_age_days=config.trace_max_age_days)
    return StoreTracer(path, bounds=bounds, content=content, tags=config.trace_tags)


def default_tracer() -> Tracer:
    """Raises ConfigError if the environment names a file that cannot be written."""
    config = _read_environ()
    key = os.getpid(), f"{store_path(config)} {config}"  # a fork has no thread that writes
    with _lock:
        if key not in _opened:
            _opened[key] = _open(config)
            atexit.register(_opened[key].close)
        return _opened[key]


def _open(config: TraceConfig) -> Tracer:
    try:
        return open_store(config)
    except ConfigError as error:
        if config.trace != "auto":
            raise
        log.warning("runs are not recorded: %s", error)  # nobody asked for it
        return NullTracer()


def _read_environ() -> TraceConfig:
    usual = TraceConfig()
    return TraceConfig(
        trace=os.environ.get("HOTLOOP_TRACE") or usual.trace,
        trace_content=os.environ.get("HOTLOOP_TRACE_CONTENT", "").lower() in ("1", "true", "yes"),
        trace_redact=tuple(os.environ.get("HOTLOOP_TRACE_REDACT", "").split()),
        trace_tags=tuple(os.environ.get("HOTLOOP_TRACE_TAGS", "").split()),
        trace_max_size=os.environ.get("HOTLOOP_TRACE_MAX_SIZE") or usual.trace_max_size,
        trace_max_age_days=_number("HOTLOOP_TRACE_MAX_AGE_DAYS", usual.trace_max_age_days),
    )


def _number(name: str, usual: float) -> float:
    given = os.environ.get(name)
    try:
        return float(given) if given else usual
    except ValueError:
        raise ConfigError(f"{name} must be a number, not {given!r}") from None
