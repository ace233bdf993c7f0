"""`hotloop lint`: what in prompts makes a model read, wait or cost for nothing."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from hotloop.core.config import TraceConfig
from hotloop.core.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.lint.costs import Costs
    from hotloop.lint.engine import LintReport
    from hotloop.lint.meter import Count, Meter
    from hotloop.lint.requests import LintedRequest
    from hotloop.lint.rules.rule import Rule
    from hotloop.lint.run import LintedRun
    from hotloop.trace.span import Span
    from hotloop.ui.source import LintLine

Format = Literal["text", "json", "sarif", "github"]
FailOn = Literal["note", "warning", "error", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFlags:
    """What is looked for, how it is weighed, and how it is told."""

    select: tuple[str, ...] = ()
    """Only these rules, by id or name."""
    ignore: tuple[str, ...] = ()
    """Not these rules."""
    fail_on: FailOn = "warning"
    """Exit with 1 where something as severe was found."""
    format: Format = "text"
    """For people, programs, code scanners, or a pull request."""
    tokenizer: str | None = None
    """Count tokens as this model does: `default`, a name, a GGUF file or a folder. Otherwise four bytes are one."""
    prefill_speed: float | None = None
    """Prompt tokens a second that the server reads; measured where the input has times."""
    prices: Path | None = None
    """A TOML file of what models cost, by name; goes before the prices that are known."""
    trace: str = "auto"
    """The file that --run is in; `auto` is the one in `HOTLOOP_HOME`."""
    host: str = "127.0.0.1"
    """Where --proxy listens."""
    port: int = 8720
    """Port that --proxy listens on; 0 takes a free one."""


_DEFAULTS = LintFlags()


def lint(
    *paths: Annotated[Path, Parameter(help="JSON lines of requests or transcripts; .gz if compressed.")],
    run: Annotated[str | None, Parameter(help="A recorded run: how its id begins, or `last`.")] = None,
    proxy: Annotated[str | None, Parameter(help="Sit before the API at this address and lint what goes by.")] = None,
    fix: Annotated[
        bool, Parameter(negative="", help="Rewrite what is safe; needs --out. Told is what is left.")
    ] = False,
    out: Annotated[Path | None, Parameter(help="Where --fix writes the requests.")] = None,
    list_rules: Annotated[bool, Parameter(name="--list", negative="", help="List the rules.")] = False,
    flags: Annotated[LintFlags, Parameter(name="*")] = _DEFAULTS,
) -> int:
    """Find what in prompts makes a model read, wait or cost for nothing, where exactly, and how to mend it.

    Exits with 1 where something at or above --fail-on was found.
    """
    from hotloop.lint.engine import choose
    from hotloop.lint.meter import Meter

    rules = choose(flags.select, flags.ignore)
    if list_rules:
        return _list(rules)
    _check_asked(paths, run, proxy, out, is_fix=fix)
    meter = Meter(load_count(flags.tokenizer)) if flags.tokenizer else Meter()
    if proxy is not None:
        return _watch(proxy, rules, meter, flags)
    return _lint_all(_read(paths, run, flags), rules, meter, flags, out)


def load_count(name: str) -> "Count":
    """How many tokens a text is to that model."""
    from hotloop.cli.loading import pull_model
    from hotloop.core.config import DEFAULT_MODEL
    from hotloop.models.model import load_model
    from hotloop.models.registry import list_models

    name = DEFAULT_MODEL if name == "default" else name
    if any(entry.name == name and not entry.is_pulled for entry in list_models()):
        pull_model(name)
    tokenizer = load_model(name).tokenizer
    return lambda text: len(tokenizer.encode(text))


def lint_spans(spans: "Sequence[Span]") -> "list[LintLine]":
    """The findings of a recorded run, as the page shows them; none where its prompts were not recorded."""
    from hotloop.cli.tracing import load_prices
    from hotloop.lint.conversations import sort_into_runs
    from hotloop.lint.costs import Costs
    from hotloop.lint.engine import lint as lint_runs
    from hotloop.lint.meter import Meter
    from hotloop.lint.recorded import read_spans
    from hotloop.ui.source import LintLine

    try:
        runs = sort_into_runs(read_spans(spans), Meter())
    except ConfigError:
        return []
    return [
        LintLine(
            rule=finding.rule,
            severity=finding.severity.label,  # type: ignore[arg-type]
            words=finding.words,
            fix=finding.mend,
            place=str(finding.place),
            num_tokens=finding.waste.num_recomputed or finding.waste.num_carried,
            ms=finding.waste.ms,
            money=finding.waste.money,
        )
        for finding in lint_runs(runs, costs=Costs(load_prices(None).find)).findings
    ]


def _check_asked(paths: Sequence[Path], run: str | None, proxy: str | None, out: Path | None, *, is_fix: bool) -> None:
    if [bool(paths), run is not None, proxy is not None].count(True) != 1:
        raise ConfigError("say what to lint: files, --run RUN or --proxy URL")
    if is_fix != (out is not None) or (is_fix and len(paths) != 1):
        raise ConfigError("--fix needs one file of requests, and --out to write them to")


def _read(paths: Sequence[Path], run: str | None, flags: LintFlags) -> "Iterator[LintedRequest]":
    from hotloop.lint.recorded import read_spans
    from hotloop.lint.requests import read_requests

    if run is not None:
        return read_spans(_spans(run, flags.trace))
    return (exchange for path in paths for exchange in read_requests(path))


def _spans(run: str, trace: str) -> "list[Span]":
    from hotloop.cli.tracing import store_path
    from hotloop.trace.store import TraceStore

    path = store_path(TraceConfig(trace=trace))
    if path is None:
        raise ConfigError("--run needs the file that it was recorded in: --trace PATH")
    with closing(TraceStore(path)) as store:
        return store.spans(store.find(run))


def _lint_all(
    exchanges: "Iterator[LintedRequest]", rules: "Sequence[Rule]", meter: "Meter", flags: LintFlags, out: Path | None
) -> int:
    from hotloop.lint.conversations import sort_into_runs
    from hotloop.lint.engine import lint as lint_runs

    runs = sort_into_runs(exchanges, meter)
    if out is not None:
        runs = _fix(runs, out, meter)
    report = lint_runs(runs, rules=rules, costs=_costs(flags))
    _show(report, flags.format)
    return _status(report, flags.fail_on)


def _costs(flags: LintFlags) -> "Costs":
    from hotloop.cli.tracing import load_prices
    from hotloop.lint.costs import Costs

    return Costs(load_prices(flags.prices).find, flags.prefill_speed)


def _fix(runs: "Sequence[LintedRun]", out: Path, meter: "Meter") -> "list[LintedRun]":
    """Write the mended requests, and read them again: what is told is what is left."""
    from hotloop.lint.conversations import sort_into_runs
    from hotloop.lint.fix import fix_file
    from hotloop.lint.requests import read_requests

    lines = fix_file(runs)
    try:
        out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}") from None
    return sort_into_runs(read_requests(out), meter)


def _show(report: "LintReport", form: Format) -> None:
    from rich.console import Console

    from hotloop.lint.output import render_github, render_json, render_sarif, render_text

    if form == "text":
        Console(highlight=False, soft_wrap=True).print(render_text(report))
    elif form == "github":
        for line in render_github(report):
            print(line)
    else:
        rendered: Any = render_json(report) if form == "json" else render_sarif(report)
        print(json.dumps(rendered))


def _status(report: "LintReport", fail_on: FailOn) -> int:
    from hotloop.lint.finding import Severity

    worst = report.worst()
    return int(fail_on != "never" and worst is not None and worst >= Severity[fail_on.upper()])


def _list(rules: "Sequence[Rule]") -> int:
    for rule in rules:
        print(f"{rule.id}  {rule.severity.label:8} {rule.name:28} {rule.summary}")
    return 0


def _watch(url: str, rules: "Sequence[Rule]", meter: "Meter", flags: LintFlags) -> int:
    from rich.console import Console

    from hotloop.border.listen import bind
    from hotloop.lint.live import LiveLint
    from hotloop.lint.output import render_finding, render_waste
    from hotloop.lint.proxy import LintProxy, ProxyServer

    console = Console(highlight=False, soft_wrap=True)
    watch = LiveLint(rules, lambda finding: console.print(render_finding(finding)), meter=meter, costs=_costs(flags))
    server = ProxyServer(LintProxy(url, watch.see), lambda address: print(f"{url} is at {address}, linted", flush=True))
    server.run([bind(flags.host, flags.port)])
    print(f"{watch.num_requests:,d} requests went by; {render_waste(watch.waste) or 'nothing wasted'}", file=sys.stderr)
    return 0
