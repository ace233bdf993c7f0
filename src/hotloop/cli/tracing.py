"""From the settings to a tracer, to the store it writes, and to what tokens cost."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.cli.settings import CONFIG_FILE, flag_name
from hotloop.core.config import TraceConfig
from hotloop.core.errors import ConfigError
from hotloop.core.extras import needs_extra
from hotloop.core.files import read_toml
from hotloop.core.home import store_path

if TYPE_CHECKING:
    from hotloop.trace.content import Content
    from hotloop.trace.money import PriceTable
    from hotloop.trace.tracer import Tracer


def trace_flags(config: TraceConfig) -> tuple[str, ...]:
    """The same settings for another process of ours, such as the server of a run."""
    given = {**asdict(config), "trace": str(store_path(config) or "off")}
    return tuple(flag for name, value in given.items() for flag in _render_flag(name, value))


def _render_flag(name: str, value: Any) -> Iterator[str]:
    flag = flag_name(name)
    match value:
        case bool():
            yield flag if value else f"--no-{flag.removeprefix('--')}"
        case tuple():
            yield from (f"{flag}={each}" for each in value)
        case None:
            pass
        case _:
            yield f"{flag}={value}"


def load_prices(file: Path | None) -> "PriceTable":
    """What models cost: by a file of prices, or by the table `prices` of hotloop.toml, before what is known anyway."""
    from hotloop.trace.money import PriceTable

    if file:
        return PriceTable.parse(read_toml(file), str(file))
    settings = Path.cwd() / CONFIG_FILE
    return PriceTable.parse(read_toml(settings).get("prices", {}) if settings.exists() else {}, str(settings))


@contextmanager
def tracing(config: TraceConfig) -> "Iterator[Tracer]":
    """What the settings ask for; when it is left, all that was recorded is written."""
    from hotloop.trace.content import Content
    from hotloop.trace.tracer import TeeTracer

    content = Content.parse(config.trace_content, config.trace_redact)
    collector = _open_otlp(config, content)
    store = _open_store(config)
    tracer = TeeTracer(store, collector) if collector else store
    try:
        yield tracer
    finally:
        tracer.close()


def _open_store(config: TraceConfig) -> "Tracer":
    from hotloop.trace.default import open_store
    from hotloop.trace.tracer import NullTracer

    try:
        return open_store(config)
    except ConfigError as error:
        if config.trace != "auto":
            raise
        print(f"hotloop: tracing disabled: {error}", file=sys.stderr)  # nobody asked for it
        return NullTracer()


def _open_otlp(config: TraceConfig, content: "Content") -> "Tracer | None":
    if not config.trace_otlp:
        return None
    try:
        from hotloop.trace.otel import OtelTracer
    except ImportError:
        raise needs_extra("otel", "trace_otlp") from None
    return OtelTracer(config.trace_otlp, content=content)
