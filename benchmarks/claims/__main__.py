"""What is published about serving agents, beside what comes out here."""

import shlex
import sys
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt
from rich.table import Table
from rich.text import Text

from benchmarks.claims.bench import CARD, FULL, QUICK, Supplies, open_bench
from benchmarks.claims.page import KEPT, PAGE, write_page
from benchmarks.claims.published import CLAIMS, DRAFT, LINEAR, SPECULATION, TOOLS, Device, says_more
from benchmarks.claims.result import Result, plain_of, taken_here, write_results
from benchmarks.claims.run import GROUPS, run_claims
from benchmarks.command import main
from hotloop.bench.serving import exit_on_sigterm
from hotloop.cli.loading import pull_model
from hotloop.cli.output import console, show
from hotloop.cli.settings import JsonOutput, pick_names
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import ConfigError

_NOTHING = Supplies()
_WITHOUT_MODEL = frozenset({"tokens", SPECULATION, LINEAR})
_WITH_WORDS = frozenset({TOOLS, DRAFT})


def claims(
    *,
    only: str | None = None,
    device: Device = "cpu",
    keep: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    machine: str = "",
    commit: str = "",
    repeats: PositiveInt = 3,
    quick: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    supplies: Annotated[Supplies, Parameter(name="*")] = _NOTHING,
    as_json: JsonOutput = False,
) -> int:
    """Measure what is claimed in public, each claim against the baseline it names: one table.

    Takes some minutes, in which nothing else should run on the machine. Ends with 1 if something failed.

    Parameters
    ----------
    only
        Which parts, separated by commas, such as "loop,tiers"; all if not given.
    device
        What the models run on; python -m benchmarks.claims.gpu is short for cuda.
    keep
        Keep the figures in docs/figures, in place of those of the same claims, and write docs/benchmarks.md anew.
        Figures that are measured well enough stay where the new ones are not.
    machine
        What to call this machine; its number of cores and their kind if not given.
    commit
        Which commit this is, where there is no repository to ask.
    repeats
        How often each figure is taken; fewer than three are no verdict.
    quick
        A little of everything, to see that it works; the figures mean nothing.
    """
    wanted = GROUPS if only is None else pick_names(only, list(GROUPS), "part")
    if quick and keep:
        raise ConfigError("--quick gives figures that mean nothing: they are not kept")
    exit_on_sigterm()
    if _needs_default(wanted, device, supplies):
        pull_model(DEFAULT_MODEL)
    taken = taken_here(shlex.join(["python", "-m", "benchmarks.claims", *_public(sys.argv[1:])]), machine, commit)
    scale = QUICK if quick else replace(CARD if device == "cuda" else FULL, repeats=repeats, num_splits=max(5, repeats))
    results = []
    with open_bench(device, scale, supplies) as bench, console.status("claims ...") as status:
        for result in run_claims(bench, only=wanted, watch=lambda name: status.update(f"{name} ...")):
            console.print(f"{result.claim}: {_measured(result)}", markup=False)
            results.append(result)
            if keep and not result.missing.startswith("failed"):
                write_results(PAGE.with_name("figures") / KEPT[device], [result], taken, says_more)
    if keep:
        write_page()
    show({"claims": [plain_of(result) for result in results]}, _table(results, device), as_json)
    return int(any(result.missing.startswith("failed") for result in results))


def _needs_default(wanted: Collection[str], device: Device, supplies: Supplies) -> bool:
    """On a card all else is asked of shapes with random weights."""
    if device == "cpu":
        return not _WITHOUT_MODEL.issuperset(wanted)
    return supplies.words == DEFAULT_MODEL and not _WITH_WORDS.isdisjoint(wanted)


def _public(argv: list[str]) -> list[str]:
    """Flags as they are kept. A path says nothing to anybody else, so its flag's name stands for it."""
    kept = [(flag, word) for flag, word in pairwise(["", *argv]) if not {"--machine", "--commit"} & {flag, word}]
    return [flag.strip("-").upper() if "/" in word else word for flag, word in kept]


def _table(results: list[Result], device: Device) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("claim", "published", "measured here", "holds"):
        table.add_column(title, overflow="fold")
    for result in results:
        claim = CLAIMS.get(result.claim)
        verdict = claim.verdict(result, device) if claim and result.figures else ""
        table.add_row(*map(Text, (result.claim, claim.published if claim else "", _measured(result), verdict)))
    return table


def _measured(result: Result) -> str:
    return "; ".join(figure.shown() for figure in result.figures) or result.missing


if __name__ == "__main__":
    main(claims)
