"""A loop of n steps, each with a few hundred tokens more than the last: how many tokens are read in all?

    step        1     2     3     4     5
    prompt    200   500   800  1100  1400       read naively: their sum; with reuse: no more than the last

Prompts are fitted to the token with the server's own tokenizer, and what was read is what it says it did.
"""

from collections.abc import Sequence
from itertools import accumulate

import httpx

from benchmarks.claims.published import LOOP
from benchmarks.claims.row import Row
from hotloop.bench.replay import Progress
from hotloop.bench.serving import ChildServer, replay_server
from hotloop.bench.workload import AgentJob, ChatMessage, WorkloadTurn
from hotloop.core.errors import RemoteError

_FIRST, _STEP = 200, 300
_WORD = " and"


def measure_loop(num_steps: int = 5) -> Row:
    naive, reused = (_read_tokens(flags, num_steps) for flags in (("--no-prefix-cache",), ()))
    return Row(
        name=LOOP,
        what=f"{num_steps} steps, {_FIRST} tokens and {_STEP} more each; prompt tokens computed",
        unit="tokens",
        before=naive[-1],
        after=reused[-1],
        growth=(naive, reused),
    )


def _read_tokens(flags: Sequence[str], num_steps: int) -> tuple[int, ...]:
    """All that were computed up to each step."""
    steps: list[int] = []

    def watch(progress: Progress) -> None:
        if progress.step:
            steps.append(progress.step.usage.num_prompt - progress.step.usage.num_cached)

    with ChildServer(flags) as server:
        replay_server("", server.url, [fit_job(server.url, num_steps)], num_agents=1, watch=watch)
    return tuple(accumulate(steps))


def fit_job(url: str, num_steps: int) -> AgentJob:
    """A job whose prompts have exactly as many tokens as they should, or as near as whole words allow."""
    messages: list[ChatMessage] = []
    turns = []
    with httpx.Client(timeout=60) as http:
        for step in range(num_steps):
            if messages:
                messages = [*messages, {"role": "assistant", "content": "Go on."}]
            messages = _fit(http, url, messages, _FIRST + step * _STEP)
            turns.append(WorkloadTurn(tuple(messages), 1))
    return AgentJob("loop", tuple(turns))


def _fit(http: httpx.Client, url: str, before: Sequence[ChatMessage], num_tokens: int) -> list[ChatMessage]:
    """One more message of the user's. The longest that fits is searched for by halves."""

    def extended(num_words: int) -> list[ChatMessage]:
        return [*before, {"role": "user", "content": f"Part {len(before)}:" + _WORD * num_words}]

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
