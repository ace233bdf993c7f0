"""All that is measured of one server: round trips by every API, and chats with every breaker, each by itself.

Every run has a salt of its own, so that nothing of one is known to another.
"""

import secrets
from collections.abc import Collection, Iterator

from benchmarks.cache.breakers import BREAKERS, Breaker
from benchmarks.cache.dialogue import APIS, Asking, ChatDialogue
from benchmarks.cache.report import Measured, figures_of
from benchmarks.cache.run import Company, hold

ROUND_TRIPS = "round-trips"
GROUPS = (ROUND_TRIPS, *dict.fromkeys(breaker.group for breaker in BREAKERS if breaker.group != "none"))
"""What can be asked for by name."""

UNPROTECTED = (
    "--no-exact-turns",
    "--no-canonical-tools",
    "--no-move-nonces",
    "--no-word-late-system",
    "--no-retention",
)
"""A server that reads prompts just as they come."""


def count_runs(groups: Collection[str]) -> int:
    """How often every conversation is held."""
    return len(APIS) * (ROUND_TRIPS in groups) + len([*_breakers(groups)])


async def measure(company: Company, groups: Collection[str], max_tokens: int) -> Measured:
    measured, stem = Measured(), secrets.token_hex(4)
    for api, begin in APIS.items() if ROUND_TRIPS in groups else ():
        asking = Asking(max_tokens=max_tokens, salt=f"{stem} {api}")
        held = await hold(company, begin, asking, label=api)
        measured.trips[api] = figures_of(held)
        measured.errors += [f"{api}, {error}" for error in held.errors]
    for breaker in _breakers(groups):
        asking = Asking(max_tokens=max_tokens, temperature=breaker.temperature, salt=f"{stem} {breaker.name}")
        held = await hold(company, ChatDialogue, asking, label=breaker.name, breaks=breaker.apply)
        measured.broken[breaker.name] = figures_of(held)
        measured.errors += [f"{breaker.name}, {error}" for error in held.errors]
    return measured


def _breakers(groups: Collection[str]) -> Iterator[Breaker]:
    """Those of the groups and, to compare with, none."""
    wanted = [breaker for breaker in BREAKERS if breaker.group in groups]
    if wanted:
        yield from (breaker for breaker in BREAKERS if breaker.group == "none")
        yield from wanted
