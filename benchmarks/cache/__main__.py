"""What breaks a prefix, and what that costs."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from benchmarks.cache.breakers import BREAKERS
from benchmarks.cache.report import cache_json, cache_table
from benchmarks.cache.run import Company, Held, choose_breakers, hold_all
from benchmarks.cache.script import Script, generate_scripts, read_scripts
from benchmarks.cache.wire import Wire
from benchmarks.command import main
from hotloop.cli.bench import WorkloadFlags
from hotloop.cli.loading import lend_server
from hotloop.cli.output import progress, show
from hotloop.cli.settings import ApiKey, JsonOutput, pick_names
from hotloop.core.errors import ConfigError

GROUPS = tuple(dict.fromkeys(breaker.group for breaker in BREAKERS if breaker.group != "none"))
UNPROTECTED = ("--disable", "exact_turns,canonical_tools,move_volatile_lines,late_system_as_user,retention")
"""A server that reads prompts just as they come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFlags(WorkloadFlags):
    """Which conversations are held, and how; without --url, the model is served."""

    scenario: str = "timestamp,tools,late-system,retokenised"
    """What is measured, separated by commas."""
    conversations: PositiveInt = 2
    """How many conversations are held."""
    agents: PositiveInt = 1
    turns: PositiveInt = 3
    max_out: PositiveInt = 16


_DEFAULTS = CacheFlags()


def cache(
    *,
    url: Annotated[
        tuple[str, ...],
        Parameter(help="A running server or router, or several; without, hotloops with protections and without."),
    ] = (),
    flags: Annotated[CacheFlags, Parameter(name="*")] = _DEFAULTS,
    api_key: ApiKey = None,
    as_json: JsonOutput = False,
) -> None:
    """Hold conversations whose prompts are broken as clients break them: what is recomputed, and why?"""
    held = _measure_all(url, api_key, pick_names(flags.scenario, GROUPS, "scenario"), flags)
    errors = [f"{name}, {error}" for part in held.values() for name, run in part.items() for error in run.errors]
    show(cache_json(held), cache_table(held), as_json, errors)


def _load_scripts(flags: CacheFlags) -> list[Script]:
    if flags.turns < 2:
        raise ConfigError("a conversation of one turn recomputes nothing: --turns must be at least 2")
    limits = {"max_scripts": flags.conversations, "max_turns": flags.turns}
    return (
        generate_scripts(**limits)
        if flags.data is None
        else read_scripts(flags.data, max_chars=flags.skip_chars, **limits)
    )


def _measure_all(
    urls: Sequence[str], api_key: str | None, groups: Collection[str], flags: CacheFlags
) -> dict[str, dict[str, Held]]:
    """By setting of the server."""
    scripts = _load_scripts(flags)
    held: dict[str, dict[str, Held]] = {}
    settings: Mapping[str, Sequence[str]] = dict.fromkeys(urls, ()) or {"protected": (), "unprotected": UNPROTECTED}
    for setting, server_flags in settings.items():
        with lend_server(setting if urls else None, flags.model, server_flags) as address:
            # One that we serve may be a file, and its name on the server another.
            wire = partial(Wire, address, model=flags.model if urls else None, api_key=api_key)
            held[setting] = asyncio.run(_measure(setting, wire, scripts, groups, flags))
    return held


async def _measure(
    setting: str,
    open_wire: Callable[[], Wire],
    scripts: Sequence[Script],
    groups: Collection[str],
    flags: CacheFlags,
) -> dict[str, Held]:
    num_turns = sum(len(script.beats) for script in scripts) * len(choose_breakers(groups))
    async with open_wire() as wire:
        with progress() as bar:
            task = bar.add_task(setting, total=num_turns)
            company = Company(wire, scripts, flags.agents, partial(bar.advance, task))
            return await hold_all(company, groups, flags.max_out)


if __name__ == "__main__":
    main(cache)
