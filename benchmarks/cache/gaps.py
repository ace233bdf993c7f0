"""More agents than the cache has room for, each in a tool gap between its turns: how long do their jobs take?

Every run is the same work: prompts and tool results come from recorded transcripts, tool times from a seed, and each
answer is one call whose arguments leave no choice, decoded token by token. The agents' prompts have nothing in common
but their words: each begins with its own name, so that what one has read is of no use to another.
"""

import asyncio
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.serving import size_memory
from hotloop.bench.client import ChatClient
from hotloop.bench.report import percentile, rounded
from hotloop.bench.serving import ChildServer
from hotloop.bench.workload import Transcript, read_transcripts
from hotloop.core.errors import ConfigError, RemoteError
from hotloop.core.request import Usage

Json = dict[str, Any]

_QUERY = "the reservations, flights, seats, bags, payments and certificates of this customer, newest first"
_DONE = "All of it has been done."
_LOOK_UP: Json = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up what is known.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "enum": [_QUERY]}},
            "required": ["query"],
            "additionalProperties": False,
        },
    },
}
_CALLS: Json = {"tool_choice": {"type": "function", "function": {"name": "look_up"}}, "parallel_tool_calls": False}
_ENDS: Json = {"tool_choice": "none", "structured_outputs": {"choice": [_DONE]}}


class Errand(NamedTuple):
    """One agent's job: after each result but the last it calls a tool, which takes its time and gives the next."""

    name: str
    system: str
    tools: tuple[Json, ...]
    results: tuple[str, ...]
    """The user's words, then what each call gave."""
    tool_times_s: tuple[float, ...]

    @property
    def opening(self) -> list[Json]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.results[0]}]


@dataclass(frozen=True, slots=True)
class ToolTimes:
    """How long tools take: drawn from a log-normal distribution."""

    median_s: float = 2.0
    sigma: float = 1.0
    seed: int = 0

    def draw(self, name: str, count: int) -> tuple[float, ...]:
        rng = random.Random(f"{self.seed}/{name}")
        return tuple(self.median_s * math.exp(rng.gauss(0, self.sigma)) for _ in range(count))


def read_errands(
    path: Path, *, num_agents: int = 12, max_turns: int = 10, max_chars: int = 22_000, times: ToolTimes | None = None
) -> list[Errand]:
    """The first transcripts that are long enough, and shorter than `max_chars` characters in all."""
    found: list[Errand] = []
    for row in read_transcripts(path):
        results = [message.content or "ok" for message in row.messages if message.role != "assistant"][:max_turns]
        num_chars = len(row.system) + len(str(row.tools)) + sum(len(result) + len(_QUERY) for result in results)
        if 2 * len(results) > max_turns and num_chars < max_chars:
            found.append(_errand(f"agent {len(found) + 1}", row, results, times or ToolTimes()))
        if len(found) == num_agents:
            return found
    raise ConfigError(f"{path} has only {len(found)} transcripts of at most {max_chars} characters")


def _errand(name: str, row: Transcript, results: Sequence[str], times: ToolTimes) -> Errand:
    system = f"You are {name}.\n{row.system}"
    return Errand(name, system, (*row.tools, _LOOK_UP), tuple(results), times.draw(name, len(results) - 1))


@dataclass(slots=True)
class GapReport:
    """What a run gave. Tokens recomputed were in the prompt or the answer of the agent's turn before, and were not
    cached; the incomplete block at its end is among them.
    """

    label: str
    job_times_s: list[float] = field(default_factory=list)
    num_turns: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_recomputed_tokens: int = 0
    wall_s: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def job_mean_s(self) -> float:
        return statistics.fmean(self.job_times_s) if self.job_times_s else 0.0

    @property
    def job_p95_s(self) -> float:
        return percentile(self.job_times_s, 0.95) if self.job_times_s else 0.0

    def to_json(self) -> Json:
        figures = asdict(self) | {"job_mean_s": self.job_mean_s, "job_p95_s": self.job_p95_s}
        return rounded(figures, 3)


async def run_gaps(
    client: ChatClient, errands: Sequence[Errand], label: str = "", watch: Callable[[str], None] = lambda _: None
) -> GapReport:
    """All errands at once, each by an agent of its own; `watch` hears the name of whoever has had a turn."""
    await client.find_model()
    run = _Run(client, GapReport(label), watch)
    began_at = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for errand in errands:
            group.create_task(run.work(errand))
    run.report.wall_s = time.perf_counter() - began_at
    return run.report


@dataclass(slots=True)
class _Run:
    client: ChatClient
    report: GapReport
    watch: Callable[[str], None]

    async def work(self, errand: Errand) -> None:
        began_at = time.perf_counter()
        try:
            await self._work(errand)
        except RemoteError as error:
            self.report.errors.append(f"{errand.name}: {error}")
        else:
            self.report.job_times_s.append(time.perf_counter() - began_at)

    async def _work(self, errand: Errand) -> None:
        messages = errand.opening
        num_known = 0
        for result, tool_time_s in zip(errand.results[1:], errand.tool_times_s, strict=True):
            answer = await self._ask(errand, messages, _CALLS)
            num_known = self._count(answer.usage, num_known)
            if len(answer.calls) != 1:
                raise RemoteError(f"one call was asked for, not {len(answer.calls)}")
            call = answer.calls[0]
            messages += _exchange(call.id, call.arguments, result)
            await asyncio.sleep(tool_time_s)
        answer = await self._ask(errand, messages, _ENDS)
        self._count(answer.usage, num_known)

    async def _ask(self, errand: Errand, messages: Sequence[Json], manner: Json) -> Any:
        options = {"tools": errand.tools, "temperature": 0, "max_tokens": 128, "shortcuts": False, **manner}
        answer = await self.client.ask(messages, session_id=errand.name.replace(" ", "-"), **options)
        self.watch(errand.name)
        return answer

    def _count(self, usage: Usage, num_known: int) -> int:
        """Add a turn; returns how many tokens were read or written by its end."""
        self.report.num_turns += 1
        self.report.num_prompt_tokens += usage.num_prompt
        self.report.num_cached_tokens += usage.num_cached
        self.report.num_recomputed_tokens += max(0, num_known - usage.num_cached)
        return usage.num_prompt + usage.num_output


def _exchange(call_id: str, arguments: str, result: str) -> list[Json]:
    call = {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
    ]


def size_cache(errands: Sequence[Errand], num_sessions: int, flags: Sequence[str] = ()) -> str:
    """The `kv_memory` that holds so many of these agents at their longest, asked of a server with these flags."""

    def count(http: httpx.Client) -> float:
        lengths = [http.post("/tokenize", json=_longest(errand)).json()["count"] for errand in errands]
        return num_sessions * statistics.fmean(lengths)

    return size_memory(count, flags)


def _longest(errand: Errand) -> Json:
    numbered = zip(itertools.count(), errand.results[1:], strict=False)
    exchanges = (_exchange(f"call_{i}", f'{{"query": "{_QUERY}"}}', result) for i, result in numbered)
    return {"messages": [*errand.opening, *itertools.chain.from_iterable(exchanges)], "tools": errand.tools}


def compare_gaps(
    errands: Sequence[Errand], *, num_sessions: int = 4, flags: Sequence[str] = (), watch: Callable[[str], None] = print
) -> list[GapReport]:
    """The same errands on a server that holds prefixes through tool gaps, and on one that does not."""
    sized = [*flags, "--kv-memory", size_cache(errands, num_sessions, flags)]
    settings = {"retention": sized, "plain LRU": [*sized, "--disable", "retention"]}
    return [_run_child(label, server_flags, errands, watch) for label, server_flags in settings.items()]


def _run_child(label: str, flags: Sequence[str], errands: Sequence[Errand], watch: Callable[[str], None]) -> GapReport:
    async def run(url: str) -> GapReport:
        async with ChatClient(url) as client:
            return await run_gaps(client, errands, label, watch)

    with ChildServer(flags) as server:
        return asyncio.run(run(server.url))
