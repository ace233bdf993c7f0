"""`hotloop bench cache`: what breaks a prefix, what that costs, and whether the server says so."""

import asyncio
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from hotloop.cli.bench_output import progress, show
from hotloop.cli.settings import ApiKey, Json
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.bench.cache.report import Measured
    from hotloop.bench.cache.script import Script
    from hotloop.bench.cache.wire import Wire
    from hotloop.bench.gaps import GapReport

GAPS = "gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFlags:
    """Which conversations are held, and how."""

    data: Path | None = None
    """Recorded transcripts, .jsonl or .jsonl.gz; generated workflows if not given."""
    scenario: str = "round-trips,timestamp,tools,late-system,retokenised"
    """What is measured, separated by commas; `gaps`, which takes minutes, only if it is named."""
    agents: PositiveInt = 1
    """How many conversations take a turn at a time."""
    conversations: PositiveInt = 2
    """How many conversations are held."""
    turns: PositiveInt = 3
    """Most turns of a conversation."""
    max_out: PositiveInt = 16
    """Most tokens of an answer; calls have a few more."""
    skip_chars: PositiveInt = 28_000
    """Leave out transcripts with as many characters."""
    model: str | None = None
    """The model to ask for or, without --url, to serve."""


_DEFAULTS = CacheFlags()


def cache(
    *,
    url: Annotated[
        str | None, Parameter(help="A running hotloop; without it one is started with its protections, one without.")
    ] = None,
    flags: Annotated[CacheFlags, Parameter(name="*")] = _DEFAULTS,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Hold conversations whose prompts are broken as clients break them: what is read again, and is the cause named?"""
    from hotloop.bench.cache.report import cache_json, cache_tables

    groups = _parse_groups(flags.scenario)
    gaps = _measure_gaps(url, flags) if GAPS in groups else []
    measured = _measure_all(url, api_key, [name for name in groups if name != GAPS], flags)
    show(cache_json(measured, gaps), cache_tables(measured, gaps), as_json)
    errors = [error for part in measured.values() for error in part.errors]
    for error in [*errors, *(error for gap in gaps for error in gap.errors)][:3]:
        print(f"hotloop: {error}", file=sys.stderr)


def _parse_groups(text: str) -> list[str]:
    from hotloop.bench.cache.measure import GROUPS

    groups = [name.strip() for name in text.split(",") if name.strip()]
    for name in groups or [""]:
        if name not in (*GROUPS, GAPS):
            raise ConfigError(f"there is no scenario {name!r}; there are {', '.join((*GROUPS, GAPS))}")
    return groups


def _load_scripts(flags: CacheFlags) -> "list[Script]":
    from hotloop.bench.cache.script import generate_scripts, read_scripts

    if flags.turns < 2:
        raise ConfigError("a conversation of one turn reads nothing again: --turns must be at least 2")
    limits = {"max_scripts": flags.conversations, "max_turns": flags.turns}
    return (
        generate_scripts(**limits)
        if flags.data is None
        else read_scripts(flags.data, max_chars=flags.skip_chars, **limits)
    )


def _measure_gaps(url: str | None, flags: CacheFlags) -> "list[GapReport]":
    """Agents that are away while their tools run, with room for a third of them, kept for and not."""
    if url is not None or flags.data is None:
        raise ConfigError(f"{GAPS}: needs --data, and servers of its own with little room, so no --url")
    from hotloop.bench.gaps import compare_gaps, read_errands
    from hotloop.bench.serving import exit_on_sigterm
    from hotloop.cli.loading import pull_model

    exit_on_sigterm()
    model = flags.model or DEFAULT_MODEL
    pull_model(model)
    errands = read_errands(flags.data)
    num_turns = 2 * sum(len(errand.results) for errand in errands)
    with progress() as bar:
        task = bar.add_task(GAPS, total=num_turns)
        return compare_gaps(errands, flags=("--model", model), watch=lambda _: bar.advance(task))


def _measure_all(
    url: str | None, api_key: str | None, groups: Collection[str], flags: CacheFlags
) -> "dict[str, Measured]":
    """By setting of the server."""
    if not groups:
        return {}
    from hotloop.bench.cache.wire import Wire

    scripts = _load_scripts(flags)
    measured: dict[str, Measured] = {}
    for setting, server_flags in _settings(url).items():
        with _server(url, flags.model, server_flags) as address:
            # One that we serve may be a file, and its name on the server another.
            wire = partial(Wire, address, model=flags.model if url else None, api_key=api_key)
            measured[setting] = asyncio.run(_measure(setting, wire, scripts, groups, flags))
    return measured


def _settings(url: str | None) -> dict[str, Sequence[str]]:
    from hotloop.bench.cache.measure import UNPROTECTED

    return {"protected": (), "unprotected": UNPROTECTED} if url is None else {"as it is": ()}


@contextmanager
def _server(url: str | None, model: str | None, server_flags: Sequence[str]) -> Iterator[str]:
    """The address of the server given, or of one with these flags that lives as long as the context."""
    if url is not None:
        yield url
        return
    from hotloop.bench.serving import ChildServer, exit_on_sigterm
    from hotloop.cli.loading import console, pull_model

    exit_on_sigterm()
    name = model or DEFAULT_MODEL
    pull_model(name)
    with ExitStack() as stack:
        with console.status(f"loading {name} ..."):
            server = stack.enter_context(ChildServer(("--model", name, *server_flags)))
        yield server.url


async def _measure(
    setting: str,
    open_wire: "Callable[[], Wire]",
    scripts: "Sequence[Script]",
    groups: Collection[str],
    flags: CacheFlags,
) -> "Measured":
    from hotloop.bench.cache.measure import count_runs, measure
    from hotloop.bench.cache.run import Company

    num_turns = sum(len(script.beats) for script in scripts) * count_runs(groups)
    async with open_wire() as wire:
        with progress() as bar:
            task = bar.add_task(setting, total=num_turns)
            company = Company(wire, scripts, flags.agents, partial(bar.advance, task))
            return await measure(company, groups, flags.max_out)
