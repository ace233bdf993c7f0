"""`hotloop lint`: what in prompts makes a model read, wait or cost for nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hotloop.core.errors import ConfigError

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
    """Count tokens as this model does: `default`, a name, a GGUF file or a folder. Estimated if not given."""
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


def lint(
    *paths: Annotated[Path, Parameter(help="JSON lines of requests or transcripts; .gz if compressed.")],
    run: Annotated[str | None, Parameter(help="A recorded run: how its id begins, or `last`.")] = None,
    proxy: Annotated[str | None, Parameter(help="Sit before the API at this address and lint what goes by.")] = None,
    fix: Annotated[
        bool, Parameter(negative="", help="Rewrite what is safe; needs --out. Told is what is left.")
    ] = False,
    out: Annotated[Path | None, Parameter(help="Where --fix writes the requests.")] = None,
    list_rules: Annotated[bool, Parameter(name="--list", negative="", help="List the rules.")] = False,
    flags: Annotated[LintFlags, Parameter(name="*")] = LintFlags(),
) -> int:
    """Find what in prompts makes a model read, wait or cost for nothing, where exactly, and how to fix it.

    Exits with 1 where something at or above --fail-on was found.
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
        raise ConfigError("say what to lint: files, --run RUN or --proxy URL")
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
