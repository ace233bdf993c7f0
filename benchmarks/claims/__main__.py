"""What the field claims, beside what comes out here."""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsFlags:
    """Which claims are tried, and on what."""

    only: str | None = None
    """Which claims, separated by commas, such as "loop tokens,tiers"; all if not given."""
    data: Path | None = None
    """Recorded transcripts with tool calls, .jsonl or .jsonl.gz; generated workflows if not given."""
    small: str | None = None
    """A small model for tiers: a name `hotloop models` lists, or a path."""
    large: str | None = None
    """A large one."""
    questions: Path | None = None
    """A folder of questions for tiers, such as simple_python.jsonl.gz; downloaded if not given."""
    out: Path | None = None
    """A page, such as docs/benchmarks.md, whose marked section is written anew, with a picture beside it."""
    quick: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """A little of everything, to see that it works; the figures mean nothing."""


_DEFAULTS = ClaimsFlags()


def claims(*, flags: Annotated[ClaimsFlags, Parameter(name="*")] = _DEFAULTS, as_json: Json = False) -> int:
    """Try the field's published claims here, one small scenario each: one table, claimed beside measured.

    Takes some minutes, in which nothing else should run on the machine. Ends with 1 if a scenario failed.
    """
    only = tuple(CLAIMS) if flags.only is None else pick_names(flags.only, CLAIMS, "claim")
    if flags.quick and flags.out:
        raise ConfigError("--quick gives figures that mean nothing: they are not written to a page")
    supplies = Supplies(transcripts=flags.data, questions=flags.questions, small=flags.small, large=flags.large)
    exit_on_sigterm()
    if not WITHOUT_MODEL.issuperset(only):
        pull_model(DEFAULT_MODEL)
    with console.status("claims ...") as status:
        scale = QUICK if flags.quick else FULL
        rows = []
        for row in run_claims(scale, supplies, only=only, watch=lambda name: status.update(f"{name} ...")):
            console.print(f"{row.name}: {row.measured}", markup=False)
            rows.append(row)
    if flags.out:
        write_page(flags.out, rows)
    show(claims_json(rows), claims_table(rows), as_json)
    return int(any(row.error for row in rows))


if __name__ == "__main__":
    main(claims)
