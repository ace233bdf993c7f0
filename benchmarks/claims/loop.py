"""A loop of n steps, each with a few hundred tokens more than the last: what is prefilled, how long a step takes, and
how much of the time goes to prefill, and to reading again what was read before.

    step        1     2     3     4     5   ...    26
    prompt    200   500   800  1100  1400       7,700    prefilled naively: their sum; with reuse: no more than the last

Some steps are run; those between are taken to lie on a line. Where prefixes are reused, the step before each of them is
run as well, and not counted. Prompts are fitted to the token with the server's own tokenizer, and what was prefilled is
what it says it did.
"""

import statistics
from collections.abc import Callable, Sequence

import httpx
import numpy as np

from benchmarks.claims.bench import Bench
from benchmarks.claims.published import FLAT, RECOMPUTED, SAVED, SHARE, TEN, TOKENS
from benchmarks.claims.result import Figure, Result, Unit
from hotloop.bench.replay import Progress, ReplayedTurn
from hotloop.bench.serving import replay_server
from hotloop.bench.workload import AgentJob, ChatMessage, WorkloadTurn
from hotloop.core.errors import RemoteError

_FIRST, _STEP, _NUM_OUTPUT = 200, 300, 8
_SHORT, _NUM_TAKES = 5, 5  # the steps of the published loop, and how often each repeat takes them
_TEN = tuple(range(1, 11))
_NUM_SHARED, _NUM_OWN = 2000, 100
_WORD = " and"
_PROTECTIONS = ("exact_turns", "canonical_tools", "move_volatile_lines", "late_system_as_user", "retention")
WAYS = {"without reuse": ("prefix_cache",), "a prefix cache alone": _PROTECTIONS, "all of hotloop": ()}
"""What each way leaves out."""

Counts = Sequence[Sequence[float]]
"""Of each way the tokens of each turn."""


class Loop:
    """The steps that were run, by number, each once or several times; all of them by interpolation of medians."""

    def __init__(self, numbers: Sequence[int], turns: Sequence[Sequence[ReplayedTurn]]) -> None:
        self.numbers = numbers
        self.turns = turns

    def all(self, of: Callable[[ReplayedTurn], float]) -> list[float]:
        every = np.arange(1, self.numbers[-1] + 1)
        measured = [statistics.median(map(of, takes)) for takes in self.turns]
        return [float(value) for value in np.interp(every, self.numbers, measured)]

    def rise(self, step: int) -> float:
        """That step over the second, the first that has something to find."""
        latencies_s = self.all(latency_s)
        return latencies_s[step - 1] / latencies_s[1]


def measure_loop(bench: Bench) -> list[Result]:
    """All ways in turn, then the next repeat. A turn before them warms each server up. The first steps are short: each
    repeat takes them several times."""
    numbers = bench.scale.steps
    urls = bench.servers.urls([bench.flags(*disabled) for disabled in WAYS.values()])

    def fit(last: int, number: int) -> AgentJob:
        return fit_job(urls[0], [_FIRST + step * _STEP for step in range(last)], number)

    warm_up = fit(1, -1)
    for url in urls:
        replay_turns(url, [warm_up])
    repeats = [
        [fit(last, _NUM_TAKES * i + j) for j, last in enumerate([numbers[-1], *[_SHORT] * (_NUM_TAKES - 1)])]
        for i in range(bench.scale.repeats)
    ]
    return results_of([[_run(url, jobs, numbers, is_naive=url == urls[0]) for url in urls] for jobs in repeats])


def results_of(repeats: Sequence[Sequence[Loop]]) -> list[Result]:
    """Of each repeat the loop without reuse, with a prefix cache alone, and with all there is."""
    numbers = repeats[0][0].numbers
    last = numbers[-1]
    loop = (
        f"a loop of {last} steps of {_FIRST} tokens and {_STEP} more each, {_NUM_OUTPUT} output; "
        f"run: {', '.join(map(str, numbers))}, the first {_SHORT} of them {_NUM_TAKES} times a repeat"
    )

    def figure(name: str, unit: Unit, of: Callable[[Loop], float]) -> Figure:
        return Figure(name, unit, *([of(each[i]) for each in repeats] for i in (-1, 0)))

    def growth(of: Callable[[Loop], Sequence[float]]) -> dict[str, list[float]]:
        return {name: [*of(loop)] for name, loop in zip(WAYS, repeats[0], strict=True)}

    def rise(step: int) -> Figure:
        return figure(f"step {step} over step 2", "times", lambda loop: loop.rise(step))

    def share(claim: str, name: str, what: str, spent_s: Callable[[Loop, Loop], float]) -> Result:
        values = [spent_s(naive, ours) / sum(naive.all(latency_s)) for naive, *_, ours in repeats]
        what = f"{loop}; {what}, of all the time of the naive loop"
        return Result(claim=claim, what=what, figures=[Figure(name, "share", values)])

    def first_s(loop: Loop) -> float:
        return sum(loop.all(ttft_s))

    return [
        Result(
            claim=FLAT,
            what=loop,
            figures=[
                *map(rise, dict.fromkeys((_SHORT, last))),
                figure(f"step {last}", "s", lambda loop: loop.all(latency_s)[-1]),
            ],
            growth=growth(lambda loop: [1000 * value for value in loop.all(latency_s)]),
        ),
        share(SHARE, "prefill", "the time to the first token", lambda naive, _: first_s(naive)),
        share(
            RECOMPUTED,
            "recomputed",
            "the time to the first token that reuse saves",
            lambda naive, ours: first_s(naive) - first_s(ours),
        ),
    ]


def measure_tokens(bench: Bench) -> list[Result]:
    """What no model changes: how many tokens are prefilled and found."""
    repeats, last = range(bench.scale.repeats), bench.scale.steps[-1]
    urls = bench.servers.urls([bench.tiny_flags(*disabled) for disabled in WAYS.values()])
    loops = [_counted(urls, [_FIRST + step * _STEP for step in range(last)], i) for i in repeats]
    tens = [_counted(urls, [1000 * number for number in _TEN], 100 + i) for i in repeats]
    return tokens_of(loops, tens, [_saved(urls[-1], i) for i in repeats])


def tokens_of(loops: Sequence[Counts], tens: Sequence[Counts], saved: Sequence[float]) -> list[Result]:
    model = "a tiny model, whose tokens are counted as any other's; blocks of 32 tokens are found whole or not at all"
    naive, ours = ([sum(each[i]) for each in tens] for i in (0, -1))
    short = ([sum(each[i][:_SHORT]) for each in loops] for i in (-1, 0))
    return [
        Result(
            claim=TOKENS,
            what=f"the first {_SHORT} steps of {len(loops[0][0])} of a loop; {model}",
            figures=[Figure("prefilled", "tokens", *short)],
            growth=dict(zip(WAYS, loops[0], strict=True)),
        ),
        Result(
            claim=TEN,
            what=f"10 steps of 1,000 tokens and 1,000 more each; {model}",
            figures=[Figure("prefilled naively", "tokens", naive), Figure("with reuse", "tokens", ours)],
        ),
        Result(
            claim=SAVED,
            what=f"ten calls of {_NUM_SHARED:,} tokens in common and {_NUM_OWN} of their own, one by one; {model}",
            figures=[Figure("saved", "tokens", saved)],
        ),
    ]


def _counted(urls: Sequence[str], sizes: Sequence[int], number: int) -> Counts:
    job = fit_job(urls[0], sizes, number)
    return [[prefilled(turn) for turn in replay_turns(url, [job])] for url in urls]


def _saved(url: str, repeat: int) -> float:
    with httpx.Client(timeout=60) as http:
        head = _fit(http, url, [], _NUM_SHARED, f"Shared {repeat}:")
        jobs = []
        for i in _TEN:
            messages = _fit(http, url, head, _NUM_SHARED + _NUM_OWN, f"Call {i}:")
            jobs.append(AgentJob(f"call-{repeat}-{i}", (WorkloadTurn(tuple(messages), _NUM_OUTPUT),)))
    return float(sum(turn.usage.num_cached for turn in replay_turns(url, jobs)))


def prefilled(turn: ReplayedTurn) -> float:
    return turn.usage.num_prompt - turn.usage.num_cached


def latency_s(turn: ReplayedTurn) -> float:
    return turn.latency_s


def ttft_s(turn: ReplayedTurn) -> float:
    return turn.ttft_s


def _run(url: str, jobs: Sequence[AgentJob], numbers: Sequence[int], *, is_naive: bool) -> Loop:
    """Of each job as many steps as it has."""
    takes: dict[int, list[ReplayedTurn]] = {number: [] for number in numbers}
    for job in jobs:
        own = {number for number in numbers if number <= len(job.turns)}
        wanted = sorted(own if is_naive else {each for number in own for each in (max(1, number - 1), number)})
        turns = replay_turns(url, [AgentJob(job.id, tuple(job.turns[number - 1] for number in wanted))])
        for number, turn in zip(wanted, turns, strict=True):
            takes.get(number, []).append(turn)
    return Loop(numbers, [*takes.values()])


def replay_turns(url: str, jobs: Sequence[AgentJob]) -> list[ReplayedTurn]:
    """Of one job after the other, all turns. Raises RemoteError where one failed."""
    turns: list[ReplayedTurn] = []

    def watch(progress: Progress) -> None:
        if progress.error:
            raise RemoteError(progress.error)
        turns.extend([progress.step] if progress.step else [])

    replay_server("", url, jobs, num_agents=1, watch=watch)
    return turns


def fit_job(url: str, sizes: Sequence[int], number: int = 0) -> AgentJob:
    """A job whose prompts have exactly as many tokens as they should, or as near as whole words allow."""
    messages: list[ChatMessage] = []
    turns = []
    with httpx.Client(timeout=60) as http:
        for size in sizes:
            if messages:
                messages = [*messages, {"role": "assistant", "content": "Go on."}]
            messages = _fit(http, url, messages, size, f"Part {number}.{len(messages)}:")
            turns.append(WorkloadTurn(tuple(messages), _NUM_OUTPUT))
    return AgentJob(f"loop-{number}", tuple(turns))


def _fit(http: httpx.Client, url: str, before: Sequence[ChatMessage], num_tokens: int, begin: str) -> list[ChatMessage]:
    """One more message of the user's. The longest that fits is searched for by halves."""

    def extended(num_words: int) -> list[ChatMessage]:
        return [*before, {"role": "user", "content": begin + _WORD * num_words}]

    low, high = 0, num_tokens
    while low < high:
        middle = (low + high + 1) // 2
        fits = _count(http, url, extended(middle)) <= num_tokens
        low, high = (middle, high) if fits else (low, middle - 1)
    return extended(low)


def _count(http: httpx.Client, url: str, messages: Sequence[ChatMessage]) -> int:
    try:
        return int(http.post(f"{url}/tokenize", json={"messages": messages}).json()["count"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise RemoteError(f"{url} does not count tokens: {str(error) or type(error).__name__}") from None
