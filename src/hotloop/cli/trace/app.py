"""`hotloop trace`: look at what was recorded of runs. A run is named by how its id begins, or as `last`."""

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, PositiveInt

from hotloop.cli.command_line import CommandLine
from hotloop.cli.output import count
from hotloop.cli.settings import JsonOutput, Sources
from hotloop.cli.tracing import load_prices
from hotloop.core.config import TraceConfig
from hotloop.core.errors import ConfigError
from hotloop.core.extras import needs_extra
from hotloop.core.files import named_errors, write_private
from hotloop.core.home import store_path

if TYPE_CHECKING:
    from hotloop.trace.ledger import RunLedger
    from hotloop.trace.runs import TraceStore
    from hotloop.trace.span import Span

trace = CommandLine(name="trace", help="Analyse recorded runs: time, tokens, cache.", config=Sources(only=TraceConfig))

Format = Literal["jsonl", "transcript", "traffic", "perfetto", "otlp"]
_LOOPBACK = "127.0.0.1"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFlags:
    """Which store."""

    trace: str = "auto"
    """Trace file; `auto` is the one in `HOTLOOP_HOME`."""
    prices: Path | None = None
    """TOML file of model prices, instead of the table `prices` in hotloop.toml."""


Store = Annotated[StoreFlags, Parameter(name="*")]
Run = Annotated[str, Parameter(help="Run id (or a unique prefix of it), or `last`.")]
_DEFAULTS = StoreFlags()


@trace.command
def ls(
    *,
    session: Annotated[str | None, Parameter(help="Only runs of this session.")] = None,
    since: Annotated[
        str | None,
        Parameter(help="Only runs started since then: 30m, 2h or 7d ago, or a date such as 2026-01-31T12:00."),
    ] = None,
    limit: Annotated[PositiveInt, Parameter(help="Maximum runs to list.")] = 20,
    store: Store = _DEFAULTS,
    as_json: JsonOutput = False,
) -> None:
    """List recorded runs, newest first."""
    since_ns = _parse_since(since) if since else None
    with _open(store) as opened:
        runs = opened.runs(limit, session=session, since_ns=since_ns)
        num_runs = opened.num_runs()
    if as_json:
        print(json.dumps([{**asdict(run), "wall_s": run.wall_s} for run in runs]))
        return
    from hotloop.cli.trace.view import list_runs, make_console

    console = make_console()
    if runs:
        console.print(list_runs(runs, console.width))
    console.print(f"{len(runs):,} of {num_runs:,} runs" if len(runs) < num_runs else f"{num_runs:,} runs", style="dim")


@trace.command
def show(
    run: Run = "last",
    *,
    turns: Annotated[str | None, Parameter(help="Only these turns, such as 3 or 3-7.")] = None,
    store: Store = _DEFAULTS,
    as_json: JsonOutput = False,
) -> None:
    """Show a run: timeline, tokens per turn, what was recomputed and why, and waits."""
    chosen = _parse_turns(turns) if turns else None
    with _open(store) as opened:
        spans, ledger = _read(opened, run, store)
    if as_json:
        print(json.dumps(asdict(ledger)))
        return
    from hotloop.cli.trace.view import make_console, show_run

    if chosen and not any(turn.index in chosen for turn in ledger.turns):
        raise ConfigError(f"the run has {len(ledger.turns)} turns, and no {turns}")
    console = make_console()
    console.print(show_run(spans, ledger, console.width, chosen))


@trace.command
def diff(old: Run, new: Run, *, store: Store = _DEFAULTS, as_json: JsonOutput = False) -> None:
    """Compare two runs turn by turn: tokens, time, cache hits and the causes of misses."""
    from hotloop.cli.trace.diff import compare, show_diff
    from hotloop.cli.trace.view import make_console

    with _open(store) as opened:
        ledgers = [_read(opened, run, store)[1] for run in (old, new)]
    if as_json:
        print(json.dumps(compare(*ledgers)))
    else:
        make_console().print(show_diff(*ledgers))


@trace.command
def export(
    run: Run = "last",
    *,
    format: Annotated[  # noqa: A002
        Format,
        Parameter(
            help="jsonl for `trace import`, transcript for `lint` and `bench replay`, traffic for `simulate`; "
            "otlp sends to a collector."
        ),
    ] = "jsonl",
    output: Annotated[Path | None, Parameter(alias="-o", help="Output file; stdout if not given.")] = None,
    endpoint: Annotated[
        str, Parameter(env_var="OTEL_EXPORTER_OTLP_ENDPOINT", help="Address of the collector, for otlp.")
    ] = "http://127.0.0.1:4318",
    store: Store = _DEFAULTS,
) -> None:
    """Export a run as JSON lines, a transcript, traffic, a Perfetto trace, or to an OpenTelemetry collector."""
    with _open(store) as opened:
        spans = opened.spans(opened.find(run))
    if format == "otlp":
        if output:
            raise ConfigError("otlp goes to a collector (--endpoint), not to a file (--output)")
        _send(spans, endpoint)
    elif output is None:
        sys.stdout.buffer.write(_render(spans, format))
    else:
        with named_errors("write", output):
            write_private(output, _render(spans, format))


@trace.command(name="import")
def import_file(
    path: Annotated[Path, Parameter(help="JSON lines written by `hotloop trace export`.")], *, store: Store = _DEFAULTS
) -> None:
    """Import runs from a file; spans that the store has already are skipped."""
    from hotloop.trace.store import add_spans

    spans = _read_file(path)
    num_new = add_spans(_path(store), spans)
    runs = count(len({span.trace_id for span in spans}), "run")
    print(f"{runs}: {num_new:,} spans are new, {len(spans) - num_new:,} were here")


@trace.command(name="open")
def open_page(
    run: Annotated[
        str | None, Parameter(help="Run id (or a unique prefix of it), or `last`; the list of runs if not given.")
    ] = None,
    *,
    url: Annotated[
        str | None, Parameter(help="Use the dashboard of this server or router; serve it here if not given.")
    ] = None,
    port: Annotated[NonNegativeInt, Parameter(help="Port to serve the dashboard on; 0 takes a free one.")] = 0,
    browser: Annotated[bool, Parameter(negative="", help="Also open it in a browser.")] = False,
    store: Store = _DEFAULTS,
) -> None:
    """Open the dashboard: serve it locally, or print the URL of a running server's (--url)."""
    with _open(store) as opened:
        place = f"#/runs/{opened.find(run)}" if run else "#/runs"
        if url:
            _announce(f"{url.rstrip('/')}/ui{place}", browser)
        else:
            _serve(opened, store, port, lambda base: _announce(f"{base}/ui{place}", browser))


def _announce(address: str, in_browser: bool) -> None:
    print(address, flush=True)
    if in_browser:
        import webbrowser

        webbrowser.open(address)


def _serve(opened: "TraceStore", flags: StoreFlags, port: int, on_ready: Callable[[str], None]) -> None:
    from hotloop.cli.advice.linting import lint_spans
    from hotloop.http.listen import bind, url_of
    from hotloop.http.serving import ApiServer
    from hotloop.ui.app import create_ui
    from hotloop.ui.store_source import StoreSource

    source = StoreSource(opened, title=str(opened.path), lint=lint_spans, prices=load_prices(flags.prices))
    app = create_ui(source)
    with bind(_LOOPBACK, port) as listener:
        listener.listen()
        on_ready(url_of(listener))
        ApiServer(app, grace_s=1).run([listener])


def _send(spans: "Sequence[Span]", endpoint: str) -> None:
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"--endpoint must begin with http:// or https://, not {endpoint!r}")
    try:
        from hotloop.trace.otel import send
    except ImportError:
        raise needs_extra("otel", "otlp") from None
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # what goes wrong is told once, and by us
    send(spans, endpoint)


def _render(spans: "Sequence[Span]", wanted: Format) -> bytes:
    from hotloop.trace.perfetto import render_perfetto
    from hotloop.trace.recordings import render_traffic, render_transcripts
    from hotloop.trace.span import render_line

    match wanted:
        case "perfetto":
            return json.dumps(render_perfetto(spans)).encode() + b"\n"
        case "transcript":
            return render_transcripts(spans)
        case "traffic":
            return render_traffic(spans)
    return b"".join(map(render_line, spans))


def _read_file(path: Path) -> "list[Span]":
    from hotloop.trace.span import parse_lines

    with named_errors("read", path), path.open("rb") as file:
        try:
            return list(parse_lines(file))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None


def _path(flags: StoreFlags) -> Path:
    path = store_path(TraceConfig(trace=flags.trace))
    if path is None:
        raise ConfigError("tracing is off; pass --trace FILE to choose a trace file")
    return path


def _open(flags: StoreFlags) -> "TraceStore":
    from hotloop.trace.runs import TraceStore

    return TraceStore(_path(flags), prices=load_prices(flags.prices))


def _read(opened: "TraceStore", run: str, flags: StoreFlags) -> "tuple[list[Span], RunLedger]":
    from hotloop.trace.ledger import build_ledger

    spans = opened.spans(opened.find(run))
    return spans, build_ledger(spans, load_prices(flags.prices))


def _parse_since(text: str) -> int:
    """A moment in unix nanoseconds, from how long ago it was or from a date; one without a zone is of here."""
    if ago := re.fullmatch(r"(\d{1,6})([smhd])", text, re.ASCII):
        return time.time_ns() - int(ago[1]) * _UNITS_S[ago[2]] * 10**9
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1e9)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"--since must be like 30m, 2h or 7d, or a date, not {text!r}") from None


def _parse_turns(text: str) -> range:
    found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", text, re.ASCII)
    if not found:
        raise ConfigError(f"--turns must be like 3 or 3-7, not {text!r}")
    return range(int(found[1]), int(found[2] or found[1]) + 1)
