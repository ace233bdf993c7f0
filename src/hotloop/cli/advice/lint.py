"""`hotloop lint`: what in prompts wastes tokens, time or money."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hotloop.core.errors import ConfigError

Format = Literal["text", "json", "sarif", "github"]
FailOn = Literal["note", "warning", "error", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFlags:
    """Rules, costs and output."""

    select: tuple[str, ...] = ()
    """Only these rules, by id or name."""
    ignore: tuple[str, ...] = ()
    """Not these rules."""
    fail_on: FailOn = "warning"
    """Exit with 1 if a finding is at least this severe."""
    format: Format = "text"
    """Output format: for people, programs, code scanners, or a pull request."""
    tokenizer: str | None = None
    """Tokenizer to count with (`default`, model name, GGUF file or folder). Estimated from words, digits and signs
    if not given."""
    prefill_speed: float | None = None
    """Prefill speed of the server, tokens/s; measured if the input has times."""
    prices: Path | None = None
    """TOML file of model prices; overrides the built-in price table."""
    trace: str = "auto"
    """Trace file that --run is in; `auto` is the one in `HOTLOOP_HOME`."""
    host: str = "127.0.0.1"
    """Address that --proxy listens on."""
    port: int = 8720
    """Port that --proxy listens on; 0 takes a free one."""


def lint(
    *paths: Annotated[Path, Parameter(help="JSON lines of requests or transcripts; .gz if compressed.")],
    run: Annotated[str | None, Parameter(help="A recorded run: its id (or a unique prefix of it), or `last`.")] = None,
    proxy: Annotated[str | None, Parameter(help="Run as a proxy in front of this API and lint live traffic.")] = None,
    fix: Annotated[
        bool,
        Parameter(negative="", help="Apply safe fixes and write the result to --out; remaining findings are reported."),
    ] = False,
    out: Annotated[Path | None, Parameter(help="File that --fix writes the requests to.")] = None,
    list_rules: Annotated[bool, Parameter(name="--list", negative="", help="List the rules.")] = False,
    flags: Annotated[LintFlags, Parameter(name="*")] = LintFlags(),
) -> int:
    """Find patterns in prompts that waste tokens, time or money, and suggest fixes.

    Exits with 1 if a finding is at or above --fail-on.
    """
    from hotloop.cli.advice import linting
    from hotloop.cli.tracing import load_prices
    from hotloop.http.listen import bind
    from hotloop.lint.engine import Costs, choose
    from hotloop.lint.finding import Severity
    from hotloop.lint.requests import read_requests

    rules = choose(flags.select, flags.ignore)
    if list_rules:
        for rule in rules:
            print(f"{rule.id}  {rule.severity.label:8} {rule.name:28} {rule.summary}")
        return 0
    if [bool(paths), run is not None, proxy is not None].count(True) != 1:
        raise ConfigError("nothing to lint: pass files, --run RUN or --proxy URL")
    if fix != (out is not None) or (fix and len(paths) != 1):
        raise ConfigError("--fix needs one file of requests, and --out to write them to")
    meter, costs = linting.make_meter(flags.tokenizer), Costs(load_prices(flags.prices).find, flags.prefill_speed)
    if proxy is not None:
        return linting.watch(proxy, rules, meter, costs, bind(flags.host, flags.port))
    given = (request for path in paths for request in read_requests(path))
    report = linting.lint_all(linting.read_run(run, flags.trace) if run else given, rules, meter, costs, out)
    linting.show(report, flags.format)
    worst = report.worst()
    return int(flags.fail_on != "never" and worst is not None and worst >= Severity[flags.fail_on.upper()])
