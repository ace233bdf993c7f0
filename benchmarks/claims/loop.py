"""A loop of n steps, each with a few hundred tokens more than the last: what is prefilled, how long a step takes, and
how much of the time goes to reading again what was read before.

    step        1     2     3     4     5   ...    26
    prompt    200   500   800  1100  1400       7,700    prefilled naively: their sum; with reuse: no more than the last

Some steps are run; those between are taken to lie on a line. Where prefixes are reused, the step before each of them is
run as well, and not counted. Prompts are fitted to the token with the server's own tokenizer, and what was prefilled is
what it says it did.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import httpx
import numpy as np

from benchmarks.claims.published import FLAT, RECOMPUTED, TOKENS
from benchmarks.claims.result import Figure, Result
from hotloop.bench.replay import Progress, ReplayedTurn
from hotloop.bench.serving import ChildServer, replay_server
from hotloop.bench.workload import AgentJob, ChatMessage, WorkloadTurn
from hotloop.core.errors import RemoteError

_FIRST, _STEP, _NUM_OUTPUT = 200, 300, 8
_NUM_SHORT = 5  # the steps of the published loop
_WORD = " and"
_FLAGS = ("--disable", "drafts")
_NAIVE = ("--disable", "prefix_cache")


class Loop:
    """The steps that were run, by number; all of them by interpolation."""

    def __init__(self, numbers: Sequence[int], turns: Sequence[ReplayedTurn]) -> None:
        self.numbers = numbers
        self.turns = turns

    def all(self, of: Callable[[ReplayedTurn], float]) -> list[float]:
        every = np.arange(1, self.numbers[-1] + 1)
        return [float(value) for value in np.interp(every, self.numbers, [of(turn) for turn in self.turns])]

    @property
    def rise(self) -> float:
        """The last step over the second, the first that has something to find."""
        return self.turns[-1].latency_s / self.turns[1].latency_s


def measure_loop(numbers: Sequence[int], num_repeats: int) -> list[Result]:
    pairs = [(_run((*_FLAGS, *_NAIVE), numbers, i), _run(_FLAGS, numbers, i)) for i in range(num_repeats)]
    return results_of(pairs)


def results_of(pairs: Sequence[tuple[Loop, Loop]]) -> list[Result]:
    """Of each repeat the loop without reuse, and with it."""
    numbers = pairs[0][0].numbers
    ran = ", ".join(map(str, numbers))
    loop = f"a loop of {numbers[-1]} steps of {_FIRST} tokens and {_STEP} more each, {_NUM_OUTPUT} output; run: {ran}"
    short = [[sum(each[i].all(_prefilled)[:_NUM_SHORT]) for each in pairs] for i in (1, 0)]
    names = ("without reuse", "with it")
    return [
        Result(
            claim=TOKENS,
            what=f"the first {_NUM_SHORT} steps; blocks of 32 tokens are found whole or not at all",
            figures=[Figure("prefilled", "tokens", *short)],
            growth={name: [*accumulate(each.all(_prefilled))] for name, each in zip(names, pairs[0], strict=True)},
        ),
        Result(
            claim=FLAT,
            what=loop,
            figures=[
                Figure("last step over second", "times", *([each[i].rise for each in pairs] for i in (1, 0))),
                Figure("last step", "s", *([each[i].turns[-1].latency_s for each in pairs] for i in (1, 0))),
            ],
            growth={
                name: [1000 * value for value in each.all(_latency_s)]
                for name, each in zip(names, pairs[0], strict=True)
            },
        ),
        Result(
            claim=RECOMPUTED,
            what=f"{loop}; the time to the first token that reuse saves, of all the time of the naive loop",
            figures=[Figure("recomputed", "share", [_recomputed(*pair) for pair in pairs])],
        ),
    ]


def _prefilled(turn: ReplayedTurn) -> float:
    return turn.usage.num_prompt - turn.usage.num_cached


def _latency_s(turn: ReplayedTurn) -> float:
    return turn.latency_s


def _ttft_s(turn: ReplayedTurn) -> float:
    return turn.ttft_s


def _recomputed(naive: Loop, reused: Loop) -> float:
    return (sum(naive.all(_ttft_s)) - sum(reused.all(_ttft_s))) / sum(naive.all(_latency_s))


def _run(flags: Sequence[str], numbers: Sequence[int], repeat: int) -> Loop:
    is_naive = "prefix_cache" in flags
    wanted = sorted({*numbers} if is_naive else {each for number in numbers for each in (max(1, number - 1), number)})
    turns: list[ReplayedTurn] = []

    def watch(progress: Progress) -> None:
        if progress.step:
            turns.append(progress.step)

    with ChildServer(flags) as server:
        job = fit_job(server.url, numbers[-1], repeat)
        chosen = AgentJob(job.id, tuple(job.turns[number - 1] for number in wanted))
        replay_server("", server.url, [chosen], num_agents=1, watch=watch)
    if len(turns) < len(wanted):
        raise RemoteError(f"{len(wanted) - len(turns)} of {len(wanted)} steps failed")
    return Loop(numbers, [turn for number, turn in zip(wanted, turns, strict=True) if number in numbers])


def prompt_tokens(number: int) -> int:
    """Of the step with this number, from 1."""
    return _FIRST + (number - 1) * _STEP


def fit_job(url: str, num_steps: int, number: int = 0) -> AgentJob:
    """A job whose prompts have exactly as many tokens as they should, or as near as whole words allow."""
    messages: list[ChatMessage] = []
    turns = []
    with httpx.Client(timeout=60) as http:
        for step in range(num_steps):
            if messages:
                messages = [*messages, {"role": "assistant", "content": "Go on."}]
            messages = _fit(http, url, messages, prompt_tokens(step + 1), f"Part {number}.{len(messages)}:")
            turns.append(WorkloadTurn(tuple(messages), _NUM_OUTPUT))
    return AgentJob("loop", tuple(turns))


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
