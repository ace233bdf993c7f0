"""From the settings to a tracer, and to the store it writes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.core.config import TraceConfig, parse_bytes
from hotloop.core.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.trace.content import Content
    from hotloop.trace.tracer import Tracer

_FILE = "trace.db"


def store_path(config: TraceConfig) -> Path | None:
    """Where runs are recorded; None if they are not."""
    from hotloop.models.catalogue import home

    if config.trace == "off":
        return None
    return home() / _FILE if config.trace == "auto" else Path(config.trace).expanduser()


@contextmanager
def tracing(config: TraceConfig) -> "Iterator[Tracer]":
    """What the settings ask for; when it is left, all that was recorded is written."""
    from hotloop.trace.content import Content
    from hotloop.trace.tracer import NullTracer, TeeTracer

    content = Content.parse(config.trace_content, config.trace_redact)
    tracers = [each for each in (_open_store(config, content), _open_otlp(config, content)) if each]
    tracer = TeeTracer(*tracers) if len(tracers) > 1 else next(iter(tracers), NullTracer())
    try:
        yield tracer
    finally:
        tracer.close()


def _open_store(config: TraceConfig, content: "Content") -> "Tracer | None":
    from hotloop.trace.store import Bounds, StoreTracer

    path = store_path(config)
    if path is None:
        return None
    bounds = Bounds(max_bytes=parse_bytes(config.trace_max_size), max_age_days=config.trace_max_age_days)
    try:
        return StoreTracer(path, bounds=bounds, content=content)
    except ConfigError as error:
        if config.trace != "auto":
            raise
        print(f"hotloop: nothing is recorded: {error}", file=sys.stderr)  # nobody asked for it
        return None


def _open_otlp(config: TraceConfig, content: "Content") -> "Tracer | None":
    if not config.trace_otlp:
        return None
    try:
        from hotloop.trace.otel import OtelTracer
    except ImportError:
        raise ConfigError("trace_otlp needs the extra `otel`: pip install 'hotloop[otel]'") from None
    return OtelTracer(config.trace_otlp, content=content)
