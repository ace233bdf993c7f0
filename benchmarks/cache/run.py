"""Conversations held with a server, turn by turn, and what it read of each prompt.

All conversations take their first turn, then all their second, as agents that work side by side: so what the server
learns from the first of them is there for the others, and every run meets the server in the same order. A conversation
that fails ends there; what it gave until then counts.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count

from benchmarks.cache.breakers import BREAKERS, Breaker
from benchmarks.cache.dialogue import Asking, ChatDialogue, Said
from benchmarks.cache.script import Script
from benchmarks.cache.wire import Explanation, Wire
from hotloop.core.errors import RemoteError
from hotloop.wire.field import Json


@dataclass(frozen=True, slots=True)
class Taken:
    """One turn, and the one before it in its conversation."""

    number: int
    ttft_s: float
    said: Said
    explanation: Explanation
    before: "Taken | None" = field(repr=False)

    @property
    def num_lost(self) -> int:
        """Tokens of the turn before, its answer included, that were not found again: the server is not asked.

        At most: the end of a last block is never found, nor are forced tokens that end an answer, which nobody read.
        """
        if self.before is None:
            return 0
        return max(0, self.before.said.num_prompt + self.before.said.num_output - self.said.num_cached)

    @property
    def is_exact(self) -> bool:
        """Whether the answer before is in the prompt in the very tokens it was generated as.

        The server finds them only where all tokens before them are the same too. The last one may be the end of the
        turn, which is the template's to write.
        """
        if self.before is None:
            return False
        num_more = self.explanation.exact_tokens - self.before.explanation.exact_tokens
        return num_more >= self.before.said.num_output - 1


@dataclass(slots=True)
class Held:
    """What a run gave."""

    taken: list[Taken] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Company:
    """Who talks, to whom, how many at a time, and who hears of every turn."""

    wire: Wire
    scripts: Sequence[Script]
    num_agents: int = 1
    watch: Callable[[], None] = lambda: None


def choose_breakers(groups: Collection[str]) -> list[Breaker]:
    """Those of the groups and, to compare with, none."""
    wanted = [breaker for breaker in BREAKERS if breaker.group in groups]
    return [breaker for breaker in BREAKERS if breaker.group == "none"] + wanted if wanted else []


async def hold_all(company: Company, groups: Collection[str], max_tokens: int) -> dict[str, Held]:
    """By breaker. Every run has a salt of its own, so that nothing of one is known to another."""
    stem = secrets.token_hex(4)
    return {
        breaker.name: await hold(
            company,
            Asking(max_tokens=max_tokens, temperature=breaker.temperature, salt=f"{stem} {breaker.name}"),
            breaker,
        )
        for breaker in choose_breakers(groups)
    }


async def hold(company: Company, asking: Asking, breaker: Breaker) -> Held:
    """All conversations, their bodies broken so."""
    talks = [_Talk(company.wire, script, ChatDialogue(script, asking), breaker.name) for script in company.scripts]
    held, gate = Held(), asyncio.Semaphore(company.num_agents)

    async def take(talk: _Talk, number: int) -> bool:
        async with gate:
            try:
                held.taken.append(await talk.take(lambda body: breaker.apply(body, number)))
            except RemoteError as error:
                held.errors.append(f"{talk.script.id}: {error}")
                return False
            finally:
                company.watch()
        return talk.has_more

    numbers = count()
    while talks:
        goes_on = await asyncio.gather(*(take(talk, next(numbers)) for talk in talks))
        talks = [talk for talk, is_going in zip(talks, goes_on, strict=True) if is_going]
    return held


class _Talk:
    """One conversation, and how far it has come."""

    def __init__(self, wire: Wire, script: Script, dialogue: ChatDialogue, label: str) -> None:
        self.script = script
        self._wire = wire
        self._dialogue = dialogue
        self._session_id = f"{label}/{script.id}"
        self._last: Taken | None = None

    @property
    def has_more(self) -> bool:
        return self._last is None or self._last.number + 1 < len(self.script.beats)

    async def take(self, breaks: Callable[[Json], Json]) -> Taken:
        number = 0 if self._last is None else self._last.number + 1
        body = breaks(self._dialogue.ask(self.script.beats[number]))
        streamed = await self._wire.stream(self._dialogue.path, body, self._session_id)
        said = self._dialogue.hear(streamed.events)
        explanation = await self._wire.explain(said.id, body["cache_salt"])
        self._last = Taken(number, streamed.ttft_s, said, explanation, self._last)
        return self._last
