"""`hotloop check`: did a change make agents dearer? For CI."""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat

from hotloop.cli.settings import ApiKey, JsonOutput

if TYPE_CHECKING:
    from hotloop.lint.requests import LintedRequest

_AGAINST_HELP = (
    "File of requests that the changed agent sent, or address of a server to replay the baseline's requests against."
)


def check(
    *,
    baseline: Annotated[Path, Parameter(help="Requests before the change, JSON lines as for `hotloop lint`.")],
    against: Annotated[str, Parameter(help=_AGAINST_HELP)],
    tolerance: Annotated[NonNegativeFloat, Parameter(help="Relative increase of a figure that is accepted.")] = 0.02,
    out: Annotated[Path | None, Parameter(help="Save the server's answers to this file: the next baseline.")] = None,
    model: Annotated[str | None, Parameter(help="Model to request instead of the recorded one.")] = None,
    prices: Annotated[Path | None, Parameter(help="TOML file of model prices.")] = None,
    api_key: ApiKey = None,
    as_json: JsonOutput = False,
) -> int:
    """Compare recorded runs with those after a change; fail if they take more steps, tokens recomputed or cost.

    Prints a markdown summary for a pull request. Exits with 1 if a figure grew by more than --tolerance.
    """
    from hotloop.cli.tracing import load_prices
    from hotloop.core.errors import ConfigError
    from hotloop.lint.conversations import sort_into_runs
    from hotloop.lint.gate import compare, measure, render_markdown
    from hotloop.lint.meter import Meter
    from hotloop.lint.requests import read_requests

    is_server = against.startswith(("http://", "https://"))
    if out is not None and not is_server:
        raise ConfigError("--out needs a server, and --against is a file")
    before = list(read_requests(baseline))
    after = _replayed(against, before, model, api_key, out) if is_server else list(read_requests(Path(against)))
    if not before or not after:
        raise ConfigError(f"there is no request in {against if before else baseline}")
    price_of = load_prices(prices).find
    figures = [measure(sort_into_runs(requests, Meter()), price_of) for requests in (before, after)]
    changes = compare(figures[0], figures[1], tolerance)
    if as_json:
        print(json.dumps([asdict(each) for each in changes]))
    else:
        print(render_markdown(changes))
    return int(any(each.is_worse for each in changes))


def _replayed(
    url: str, requests: "Sequence[LintedRequest]", model: str | None, api_key: str | None, out: Path | None
) -> "list[LintedRequest]":
    from hotloop.core.files import named_errors, write_private
    from hotloop.http.url import check_url
    from hotloop.lint.replay import replay
    from hotloop.lint.requests import read_requests

    async def ask() -> bytes:
        rows = replay(check_url(url).removesuffix("/v1"), requests, model=model, api_key=api_key)
        return "".join([f"{json.dumps(row)}\n" async for row in rows]).encode()

    with tempfile.TemporaryDirectory() as folder:
        path = out or Path(folder) / "answers.jsonl"
        answers = asyncio.run(ask())
        with named_errors("write", path):
            write_private(path, answers)
        return list(read_requests(path))
