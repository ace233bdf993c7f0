"""Recorded coding agents by the rules of AIPerf's agentic-coding scenario: what N users at a time get out of a server.

    python -m benchmarks.agentic --url http://127.0.0.1:8700 --data TRACES.jsonl.gz [--users 8,16,32,64] [--json]

- A user has one session after the other, each with its sub-agents: they are asked for beside each other, and the turn
  after them waits for all. A user's next session begins when all of that is over.
- The first sessions begin somewhere between `--start-min` and `--start-max` of what was recorded: the prompt of that
  turn is read before the clock starts. Later sessions begin at their first turn.
- A turn comes as long after the answer before it as it was recorded. Turns that were recorded to begin more than 10 s
  apart begin 10 s apart.
- Answers are streamed, and as long as they were recorded. Prompts are never cut: a session
  that does not fit is left out.
- Each session has tokens of its own, but for tools and system prompt; so nothing is found of an earlier play of it.
- A run takes 900 s or more, and at most 1% of its requests fail: it says of itself whether that was so.

Prompts are recorded as names of 64-token blocks. The axes of a curve are `output tokens/s a GPU` and what 9 of 10
requests took for each token of their answers, first one and waiting included.
"""

import asyncio
import gzip
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import count, pairwise
from pathlib import Path
from typing import Annotated, Any, Self

import httpx
from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveFloat, PositiveInt

from benchmarks.command import main
from hotloop.bench.report import figure, percentile, rounded, table_of_figures
from hotloop.cli.output import show
from hotloop.cli.settings import JsonOutput
from hotloop.core.errors import ConfigError, RemoteError
from hotloop.wire.sse import EventReader

TRACE_BLOCK = 64  # tokens that a name in a trace stands for
MAX_START_GAP_S = 10.0
MIN_RUN_S = 900.0
MAX_FAILED = 0.01


async def stream_ids(
    http: httpx.AsyncClient, body: dict[str, Any], session: str = ""
) -> tuple[list[float], dict[str, Any]]:
    """When a prompt of token ids was asked, when each piece of its answer came, and what the server counted."""
    body |= {"ignore_eos": True, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    usage: dict[str, Any] = {}
    times, reader = [time.perf_counter()], EventReader()
    headers = {"X-Session-ID": session} if session else {}
    async with http.stream("POST", "/v1/completions", json=body, headers=headers) as got:
        if got.status_code != 200:
            raise RuntimeError(f"{got.status_code}: {(await got.aread())[:300]!r}")
        async for data in got.aiter_bytes():
            for event in reader.push(data):
                chunk = {} if event.data == b"[DONE]" else json.loads(event.data)
                usage = chunk.get("usage") or usage
                if chunk.get("choices"):
                    times.append(time.perf_counter())
    if len(times) == 1:
        raise RuntimeError("an answer ended without a token")
    return times, usage


@lru_cache(maxsize=200_000)  # half a gigabyte: of the agents that are under way
def block_tokens(name: str, vocab_size: int) -> list[int]:
    return random.Random(name).choices(range(min(1000, vocab_size // 2), vocab_size), k=TRACE_BLOCK)


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    start_s: float
    """Since the first turn, gaps between starts shortened."""
    delay_s: float
    """After the answer before it."""
    names: tuple[tuple[int, int], ...]
    """Of the blocks of its prompt: first, and how many."""
    num_output: int
    helpers: tuple[tuple["RecordedTurn", ...], ...] = ()
    """Sub-agents that were begun before it, and that it waits for."""

    @property
    def peak(self) -> int:
        own = sum(num for _, num in self.names) * TRACE_BLOCK + self.num_output
        return max([own, *(turn.peak for helper in self.helpers for turn in helper)])


@dataclass(frozen=True, slots=True)
class RecordedSession:
    id: str
    num_head: int
    """Blocks of tools and system prompt, which all sessions have in common."""
    turns: tuple[RecordedTurn, ...]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        num_head = row.get("tool_tokens", 0) + row.get("system_tokens", 0)
        return cls(row["id"], num_head // TRACE_BLOCK, read_turns(row["requests"]))

    def turn_at(self, share: float) -> int:
        """The turn that was under way then; one more follows it."""
        at_s = share * self.turns[-1].start_s
        return max(0, min(len(self.turns) - 2, sum(turn.start_s <= at_s for turn in self.turns) - 1))


def read_turns(entries: Sequence[Mapping[str, Any]]) -> tuple[RecordedTurn, ...]:
    """Sub-agents with no turn after them keep nobody waiting: they are left out."""
    asked = [each for each in entries if each.get("hash_ids_rle")]
    gaps = [0.0, *(min(MAX_START_GAP_S, max(0.0, after["t"] - before["t"])) for before, after in pairwise(asked))]
    spent = [0.0, *(each.get("api_time") or 0.0 for each in asked)]
    turns: list[RecordedTurn] = []
    helpers: list[tuple[RecordedTurn, ...]] = []
    for entry in entries:
        if entry.get("type") == "subagent":
            helpers += filter(None, [read_turns(entry["requests"])])
        elif entry.get("hash_ids_rle"):
            gap_s, spent_s = gaps[len(turns)], spent[len(turns)]
            start_s = (turns[-1].start_s if turns else 0.0) + gap_s
            names = tuple((start, num) for start, num in entry["hash_ids_rle"])
            delay_s = max(0.0, gap_s - spent_s)
            turns.append(RecordedTurn(start_s, delay_s, names, max(1, entry["out"]), tuple(helpers)))
            helpers = []
    return tuple(turns)


def read_sessions(path: Path, max_context: int) -> list[RecordedSession]:
    """Those of two turns or more that fit."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        sessions = [RecordedSession.of(json.loads(line)) for line in lines]
    found = [each for each in sessions if len(each.turns) > 1 and max(turn.peak for turn in each.turns) <= max_context]
    if not found:
        raise ConfigError(f"{path} has no session of two turns or more within {max_context:,} tokens")
    return found


def shuffled(sessions: Sequence[RecordedSession], rng: random.Random) -> Iterator[RecordedSession]:
    """For ever; each comes once before one comes again."""
    while True:
        yield from rng.sample(sessions, len(sessions))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticFlags:
    """How sessions are played."""

    seconds: PositiveFloat = 1800.0
    """For which requests are sent; those under way then are waited for."""
    start_min: NonNegativeFloat = 0.25
    """Share of a session before which no first one begins."""
    start_max: NonNegativeFloat = 0.75
    """Share of a session after which no first one begins."""
    max_context: PositiveInt = 120_000
    """Leave out sessions that have more tokens at any time, answers included."""
    gpus: PositiveInt = 1
    """Of the server: tokens a second are counted for each."""
    seed: int = 0
    """Of which sessions come when, and where the first ones begin."""
    vocab: PositiveInt = 120_000
    """Tokens of the model that prompts are made of."""


@dataclass(frozen=True, slots=True)
class Answered:
    ttft_s: float
    e2e_s: float
    num_prompt: int
    num_cached: int
    num_output: int


@dataclass(slots=True)
class Level:
    """One number of users: all that was answered, and what was not."""

    num_users: int
    answers: list[Answered] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    num_over: int = 0
    wall_s: float = 0.0


class Users:
    """So many at a time, on one clock."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        model: str,
        sessions: Sequence[RecordedSession],
        flags: AgenticFlags,
        num_users: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.level = Level(num_users)
        self._http, self._model, self._flags, self._clock = http, model, flags, clock
        self._rng = random.Random(f"{flags.seed} {num_users}")
        self._sessions = shuffled(sessions, self._rng)
        self._run, self._plays = time.time_ns(), count()
        self._ends_at = 0.0

    async def run(self) -> Level:
        first = [(self._play_id(), next(self._sessions)) for _ in range(self.level.num_users)]
        between = self._flags.start_min, self._flags.start_max
        begun = [session.turn_at(self._rng.uniform(*between)) for _, session in first]
        warmed = (self._ask(play, each, each.turns[at]) for (play, each), at in zip(first, begun, strict=True))
        await asyncio.gather(*warmed)
        began_at = self._clock()
        self._ends_at = began_at + self._flags.seconds
        users = (self._user(play, each, at + 1) for (play, each), at in zip(first, begun, strict=True))
        await asyncio.gather(*users)
        self.level.wall_s = self._clock() - began_at
        return self.level

    def _play_id(self) -> str:
        return f"agentic-{self._run}-{next(self._plays)}"

    async def _user(self, play: str, session: RecordedSession, at: int) -> None:
        while await self._turns(play, session, session.turns[at:]):
            play, session, at = self._play_id(), next(self._sessions), 0

    async def _turns(self, play: str, session: RecordedSession, turns: Sequence[RecordedTurn]) -> bool:
        """Whether there is time for more."""
        for turn in turns:
            if self._clock() + turn.delay_s >= self._ends_at:
                return False
            helpers = (self._turns(f"{play}/{i}", session, helper) for i, helper in enumerate(turn.helpers))
            await asyncio.gather(asyncio.sleep(turn.delay_s), *helpers)
            if self._clock() >= self._ends_at:
                return False
            try:
                self.level.answers.append(await self._ask(play, session, turn))
            except (RuntimeError, httpx.HTTPError) as error:
                self.level.failures.append(str(error) or repr(error))
                await asyncio.sleep(1)  # a server that is down is not asked again at once
                return self._clock() < self._ends_at
        self.level.num_over += turns[-1:] == session.turns[-1:]
        return True

    async def _ask(self, play: str, session: RecordedSession, turn: RecordedTurn) -> Answered:
        owner = play.partition("/")[0]
        names = (name for start, num in turn.names for name in range(start, start + num))
        prompt = [
            token_id
            for name in names
            for token_id in block_tokens(f"{'head' if name <= session.num_head else owner}:{name}", self._flags.vocab)
        ]
        body = {"model": self._model, "prompt": prompt, "max_tokens": turn.num_output, "min_tokens": turn.num_output}
        times, usage = await stream_ids(self._http, body, play)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Answered(times[1] - times[0], times[-1] - times[0], len(prompt), cached, turn.num_output)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFigures:
    label: str
    num_requests: int = figure("requests")
    num_sessions: int = figure("sessions over")
    output_s_gpu: float = figure("output tokens/s a GPU", "{:,.1f}")
    total_s_gpu: float = figure("all tokens/s a GPU", "{:,.0f}")
    token_p90_ms: float = figure("request by answer's token, p90", "{:.1f} ms")
    token_p50_ms: float = figure("request by answer's token, p50", "{:.1f} ms")
    user_tokens_s: float = figure("tokens/s a user, p50", "{:.1f}")
    ttft_p50_s: float = figure("TTFT p50", "{:.3f} s")
    ttft_p90_s: float = figure("TTFT p90", "{:.3f} s")
    cached_share: float = figure("cached share", "{:.1%}")
    num_failed: int = figure("failed")
    breaks: str = figure("by the rules", "{}")
    """What is not, or `yes`."""


def figures_of(level: Level, gpus: int) -> LevelFigures:
    answers = level.answers
    if not answers:
        raise RemoteError(level.failures[0] if level.failures else f"{level.num_users} users: no turn came in time")
    per_token_ms = [1000 * each.e2e_s / each.num_output for each in answers]
    rates = [(each.num_output - 1) / (each.e2e_s - each.ttft_s) for each in answers if each.e2e_s > each.ttft_s]
    ttft_s = [each.ttft_s for each in answers]
    num_output, num_prompt = sum(each.num_output for each in answers), sum(each.num_prompt for each in answers)
    num_failed = len(level.failures)
    breaks = [f"only {level.wall_s:.0f} s"] if level.wall_s < MIN_RUN_S else []
    if num_failed > MAX_FAILED * (num_failed + len(answers)):
        breaks.append(f"failed: {level.failures[0]}")
    return LevelFigures(
        label=f"{level.num_users} users",
        num_requests=len(answers),
        num_sessions=level.num_over,
        output_s_gpu=num_output / level.wall_s / gpus,
        total_s_gpu=(num_output + num_prompt) / level.wall_s / gpus,
        token_p90_ms=percentile(per_token_ms, 0.9),
        token_p50_ms=percentile(per_token_ms, 0.5),
        user_tokens_s=statistics.median(rates) if rates else 0.0,
        ttft_p50_s=percentile(ttft_s, 0.5),
        ttft_p90_s=percentile(ttft_s, 0.9),
        cached_share=sum(each.num_cached for each in answers) / num_prompt,
        num_failed=num_failed,
        breaks="; ".join(breaks) or "yes",
    )


async def measure(
    url: str, users: Sequence[int], sessions: Sequence[RecordedSession], flags: AgenticFlags
) -> list[Level]:
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
    async with httpx.AsyncClient(base_url=url, timeout=1200, limits=limits) as http:
        try:
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            return [await Users(http, model, sessions, flags, each).run() for each in users]
        except (RuntimeError, httpx.HTTPError) as error:
            raise RemoteError(str(error) or repr(error)) from None


_DEFAULTS = AgenticFlags()


def agentic(
    *,
    url: str,
    data: Path,
    users: str = "8",
    flags: Annotated[AgenticFlags, Parameter(name="*")] = _DEFAULTS,
    as_json: JsonOutput = False,
) -> None:
    """Play recorded coding agents at a server by the rules of AIPerf's agentic-coding scenario.

    Parameters
    ----------
    url
        Of a server that takes token ids at /v1/completions.
    data
        Recorded sessions with names of 64-token blocks, .jsonl or .jsonl.gz.
    users
        How many at a time, a run of its own each, separated by commas.
    """
    counts = [int(each) for each in users.split(",") if each.strip().isdecimal()]
    if not all(counts) or len(counts) <= users.count(","):
        raise ConfigError(f"--users has numbers with commas between them, not {users!r}")
    if not flags.start_min <= flags.start_max <= 1:
        raise ConfigError("--start-min is at most --start-max, and that at most 1")
    levels = asyncio.run(measure(url, counts, read_sessions(data, flags.max_context), flags))
    columns = [figures_of(level, flags.gpus) for level in levels]
    show({each.label: rounded(asdict(each)) for each in columns}, table_of_figures(columns), as_json)


if __name__ == "__main__":
    main(agentic)
