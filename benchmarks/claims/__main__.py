"""What the field claims, beside what comes out here."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from benchmarks.claims.published import CLAIMS
from benchmarks.claims.report import claims_json, claims_table, write_page
from benchmarks.claims.run import FULL, QUICK, WITHOUT_MODEL, Supplies, run_claims
from benchmarks.command import main
from hotloop.bench.serving import exit_on_sigterm
from hotloop.cli.loading import console, pull_model
from hotloop.cli.output import show
from hotloop.cli.settings import Json, pick_names
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import ConfigError

_NOTHING = Supplies()


def claims(
    *,
    only: str | None = None,
    out: Path | None = None,
    quick: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    supplies: Annotated[Supplies, Parameter(name="*")] = _NOTHING,
    as_json: Json = False,
) -> int:
    """Try the field's published claims here, one small scenario each: one table, claimed beside measured.

    Takes some minutes, in which nothing else should run on the machine. Ends with 1 if a scenario failed.

    Parameters
    ----------
    only
        Which claims, separated by commas, such as "loop tokens,tiers"; all if not given.
    out
        A page, such as docs/benchmarks.md, whose marked section is written anew, with a picture beside it.
    quick
        A little of everything, to see that it works; the figures mean nothing.
    """
    wanted = tuple(CLAIMS) if only is None else pick_names(only, CLAIMS, "claim")
    if quick and out:
        raise ConfigError("--quick gives figures that mean nothing: they are not written to a page")
    exit_on_sigterm()
    if not WITHOUT_MODEL.issuperset(wanted):
        pull_model(DEFAULT_MODEL)
    with console.status("claims ...") as status:
        scale = QUICK if quick else FULL
        rows = []
        for row in run_claims(scale, supplies, only=wanted, watch=lambda name: status.update(f"{name} ...")):
            console.print(f"{row.name}: {row.measured}", markup=False)
            rows.append(row)
    if out:
        write_page(out, rows)
    show(claims_json(rows), claims_table(rows), as_json)
    return int(any(row.error for row in rows))


if __name__ == "__main__":
    main(claims)
