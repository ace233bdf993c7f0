"""How `hotloop lint` goes about it: requests read, linted, fixed and shown."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from socket import socket

from rich.console import Console

from hotloop.cli.loading import pull_missing
from hotloop.cli.tracing import load_prices
from hotloop.core.config import DEFAULT_MODEL, TraceConfig
from hotloop.core.errors import ConfigError
from hotloop.core.files import named_errors, write_private
from hotloop.core.home import store_path
from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.engine import Costs, LintReport, lint
from hotloop.lint.fix import fix_file
from hotloop.lint.meter import Meter
from hotloop.lint.output import render_finding, render_github, render_json, render_sarif, render_text, render_waste
from hotloop.lint.proxy import LintProxy, LiveLint, ProxyServer
from hotloop.lint.requests import LintedRequest, read_requests, read_spans
from hotloop.lint.rules.rule import Rule
from hotloop.trace.runs import TraceStore
from hotloop.trace.span import Span
from hotloop.ui.source import LintLine


def make_meter(name: str | None) -> Meter:
    """By the tokenizer of a model, if one is named."""
    if not name:
        return Meter()
    from hotloop.models.model import load_model

    name = DEFAULT_MODEL if name == "default" else name
    pull_missing(name)
    tokenizer = load_model(name).tokenizer
    return Meter(lambda text: len(tokenizer.encode(text)))


def lint_spans(spans: Sequence[Span]) -> list[LintLine]:
    """The findings of a recorded run, as the dashboard shows them; none where its prompts were not recorded."""
    try:
        runs = sort_into_runs(read_spans(spans), Meter())
    except ConfigError:
        return []
    return [
        LintLine(
            rule=finding.rule,
            severity=finding.severity.label,  # type: ignore[arg-type]
            words=finding.words,
            fix=finding.fix,
            place=str(finding.place),
            num_tokens=finding.waste.num_recomputed or finding.waste.num_carried,
            ms=finding.waste.ms,
            money=finding.waste.money,
        )
        for finding in lint(runs, costs=Costs(load_prices(None).find)).findings
    ]


def read_run(run: str, trace: str) -> Iterator[LintedRequest]:
    path = store_path(TraceConfig(trace=trace))
    if path is None:
        raise ConfigError("--run needs a trace file: --trace PATH")
    with TraceStore(path) as store:
        return read_spans(store.spans(store.find(run)))


def lint_all(
    requests: Iterable[LintedRequest], rules: Sequence[Rule], meter: Meter, costs: Costs, out: Path | None
) -> LintReport:
    """With `out`, of the requests as they were fixed and written there: what is reported is what is left."""
    runs = sort_into_runs(requests, meter)
    if out is not None:
        lines = "".join(f"{line}\n" for line in fix_file(runs))
        with named_errors("write", out):
            write_private(out, lines.encode())
        runs = sort_into_runs(read_requests(out), meter)
    return lint(runs, rules=rules, costs=costs)


def watch(url: str, rules: Sequence[Rule], meter: Meter, costs: Costs, listener: socket) -> int:
    console = Console(highlight=False, soft_wrap=True)
    live = LiveLint(rules, lambda finding: console.print(render_finding(finding)), meter=meter, costs=costs)
    server = ProxyServer(
        LintProxy(url, live.see), lambda address: print(f"linting proxy for {url} listening at {address}", flush=True)
    )
    server.run([listener])
    print(f"{live.num_requests:,d} requests linted; {render_waste(live.waste) or 'no waste found'}", file=sys.stderr)
    return 0


def show(report: LintReport, form: str) -> None:
    if form == "text":
        Console(highlight=False, soft_wrap=True).print(render_text(report))
    elif form == "github":
        for line in render_github(report):
            print(line)
    else:
        print(json.dumps(render_json(report) if form == "json" else render_sarif(report)))
