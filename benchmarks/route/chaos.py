"""Replicas killed, hung, slowed, broken, removed and added while agents ask a router all the time.

Knows nothing of the router but its address and how it is told of other replicas.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.route.load import Exchange, LeanClient, ask_steadily, now
from benchmarks.route.processes import StubProcess
from benchmarks.route.prompts import Mix, agent_requests
from benchmarks.route.stub import Fault
from benchmarks.route.troubles import Trouble
from benchmarks.route.verdict import ChaosReport, Seen, judge, see

MIX = Mix(streamed=0.8, anthropic=0.2)

_MAX_ANSWER_S = 45.0


class Router(Protocol):
    """Whoever stands in front of the stubs."""

    @property
    def url(self) -> str: ...

    def reload(self, urls: Sequence[str]) -> None: ...


async def run_chaos(
    router: Router,
    stubs: Sequence[StubProcess],
    troubles: Sequence[Trouble],
    *,
    rate: float,
    duration_s: float,
    seed: int = 0,
    on_trouble: Callable[[], None] = lambda: None,
) -> ChaosReport:
    """Ask for as long as it lasts, wait for the last answers, and judge."""
    client = LeanClient(router.url, timeout_s=_MAX_ANSWER_S)
    # Short conversations: a replica that is back is soon asked by somebody new.
    requests = agent_requests(seed=seed, num_agents=48, num_turns=4, system_chars=1500, mix=MIX)
    began_at = now()
    director = _Director(router, {stub.name: stub for stub in stubs}, began_at, on_trouble)
    seen: list[Seen] = []

    def watch(exchange: Exchange) -> None:
        seen.append(see(exchange, began_at))

    async with asyncio.TaskGroup() as group:
        group.create_task(ask_steadily(client, requests, rate=rate, duration_s=duration_s, on_end=watch))
        for trouble in troubles:
            group.create_task(director.make(trouble))
    await client.close()
    happened = sorted(director.happened, key=lambda trouble: trouble.begins_s)
    return judge(seen, happened, [stub.name for stub in stubs], seed=seed, duration_s=duration_s)


@dataclass(slots=True)
class _Director:
    """Makes trouble as planned, and notes when it really was."""

    router: Router
    stubs: dict[str, StubProcess]
    began_at: float
    on_trouble: Callable[[], None]
    happened: list[Trouble] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    turns: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """A replica has one trouble at a time, also where it takes long to come back."""

    async def make(self, trouble: Trouble) -> None:
        await asyncio.sleep(max(0.0, self.began_at + trouble.begins_s - now()))
        async with self.turns[trouble.replica]:
            begins_s = now() - self.began_at
            await self._carry_out(trouble, self.stubs[trouble.replica])
            self.happened.append(trouble._replace(begins_s=begins_s, ends_s=now() - self.began_at))
        self.on_trouble()

    async def _carry_out(self, trouble: Trouble, stub: StubProcess) -> None:
        """Returns when it is over."""
        lasts_s = trouble.ends_s - trouble.begins_s
        if trouble.kind == "kill":
            await asyncio.to_thread(stub.kill)
            await asyncio.sleep(lasts_s)
            await asyncio.to_thread(stub.start)
        elif trouble.kind == "remove":
            self._reload(without=stub.name)
            await asyncio.sleep(lasts_s)
            self._reload(again=stub.name)
        else:
            await stub.set_fault(Fault(trouble.kind, lasts_s))
            await asyncio.sleep(lasts_s)
            await stub.wait_until_well()

    def _reload(self, *, without: str = "", again: str = "") -> None:
        self.removed = (self.removed | {without}) - {again, ""}
        self.router.reload([stub.url for name, stub in self.stubs.items() if name not in self.removed])
