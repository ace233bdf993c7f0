"""`hotloop bench seeds`: what the field claims, beside what comes out here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hotloop.cli.bench_output import show
from hotloop.cli.settings import Json
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedsFlags:
    """Which claims are tried, and on what."""

    only: str | None = None
    """Which seeds, separated by commas, such as "loop tokens,tiers"; all if not given."""
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


_DEFAULTS = SeedsFlags()


def seeds(*, flags: Annotated[SeedsFlags, Parameter(name="*")] = _DEFAULTS, as_json: Json = False) -> int:
    """Try the field's published claims here, one small scenario each: one table, claimed beside measured.

    Takes some minutes, in which nothing else should run on the machine. Ends with 1 if a scenario failed.
    """
    from hotloop.bench.seeds.report import seeds_json, seeds_table, write_page
    from hotloop.bench.seeds.run import FULL, QUICK, WITHOUT_MODEL, Supplies, run_seeds
    from hotloop.bench.serving import exit_on_sigterm
    from hotloop.cli.loading import console, pull_model

    only = _parse_only(flags.only)
    if flags.quick and flags.out:
        raise ConfigError("--quick gives figures that mean nothing: they are not written to a page")
    supplies = Supplies(transcripts=flags.data, questions=flags.questions, small=flags.small, large=flags.large)
    exit_on_sigterm()
    if not WITHOUT_MODEL.issuperset(only):
        pull_model(DEFAULT_MODEL)
    with console.status("seeds ...") as status:
        scale = QUICK if flags.quick else FULL
        rows = []
        for row in run_seeds(scale, supplies, only=only, watch=lambda seed: status.update(f"{seed} ...")):
            console.print(f"{row.seed}: {row.measured}", markup=False)
            rows.append(row)
    if flags.out:
        write_page(flags.out, rows)
    show(seeds_json(rows), seeds_table(rows), as_json)
    return int(any(row.error for row in rows))


def _parse_only(text: str | None) -> Sequence[str]:
    from hotloop.bench.seeds.claims import CLAIMS

    if text is None:
        return tuple(CLAIMS)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names or [""]:
        if name not in CLAIMS:
            raise ConfigError(f"there is no seed {name!r}; there are {', '.join(CLAIMS)}")
    return names
