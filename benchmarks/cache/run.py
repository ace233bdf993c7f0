"""Conversations held with a server, turn by turn, and what it read of each prompt.

All conversations take their first turn, then all their second, as agents that work side by side: so what the server
learns from the first of them is there for the others, and every run meets the server in the same order. A conversation
that fails ends there; what it gave until then counts.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from benchmarks.cache.breakers import Break, leave
from benchmarks.cache.dialogue import Asking, ChatDialogue, Dialogue, Said
from benchmarks.cache.faults import Told, find_fault, is_explained
from benchmarks.cache.script import Json, Script
from benchmarks.cache.wire import Explanation, Wire
from hotloop.core.errors import RemoteError


@dataclass(frozen=True, slots=True)
class Taken:
    """One turn, and the one before it in its conversation."""

    script_id: str
    number: int
    ttft_s: float
    said: Said
    explanation: Explanation
    before: "Taken | None" = field(repr=False)
    is_explained: bool | None = None
    """Whether the cause was named rightly; None where there is nothing to name."""

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

    @property
    def has_recomputed(self) -> bool:
        """By the server's account or, if it has none, because of the prompt before not all was found."""
        if self.before is None:
            return False
        num_missing = self.before.said.num_prompt - self.said.num_cached
        return self.explanation.num_recomputed > 0 or num_missing > self.explanation.block_tokens


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


async def hold(
    company: Company,
    begin: Callable[[Script, Asking], Dialogue],
    asking: Asking,
    *,
    label: str,
    breaks: Break = leave,
) -> Held:
    """All conversations, their bodies broken so; `label` names the sessions. Only chats are broken, or judged."""
    told: dict[str, Told] = {}
    talks = [_Talk(company.wire, script, begin(script, asking), label, told) for script in company.scripts]
    held, gate = Held(), asyncio.Semaphore(company.num_agents)

    async def take(talk: _Talk, number: int) -> bool:
        async with gate:
            try:
                held.taken.append(await talk.take(lambda body: breaks(body, number)))
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
    """One conversation, and how far it has come. `told` is what all of the run said, by the id of the answer."""

    def __init__(self, wire: Wire, script: Script, dialogue: Dialogue, label: str, told: dict[str, Told]) -> None:
        self.script = script
        self._wire = wire
        self._dialogue = dialogue
        self._session_id = f"{label}/{script.id}"
        self._told = told
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
        taken = Taken(self.script.id, number, streamed.ttft_s, said, explanation, self._last)
        if isinstance(self._dialogue, ChatDialogue):
            taken = replace(taken, is_explained=self._judge(body, taken))
            self._told[said.id] = Told(body, self._dialogue.messages[-1])
        self._last = taken
        return taken

    def _judge(self, body: Json, taken: Taken) -> bool | None:
        """None where there is nothing to name: nothing was recomputed, and the request goes on where one before ended.

        Nor where the server says that it changed this request or the one before: then bodies are not what was read.
        """
        explanation, last = taken.explanation, taken.before
        if last is None or explanation.changes or last.explanation.changes:
            return None
        before = self._told.get(explanation.compared_with or "")
        fault = find_fault(before, body) if before else None
        has_parted = fault is not None and find_fault(self._told[last.said.id], body) is not None
        if not taken.has_recomputed and not has_parted:
            return None
        return before is not None and is_explained(explanation, fault, body["messages"])
