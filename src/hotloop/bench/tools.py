"""Tool calls with and without shortcuts: every question is asked twice of one server, and both answers are timed.

Fair by construction: prompts are read, and grammars compiled, by a request of one token that is not timed. With
shortcuts goes first, a few questions at a time: the other way round the drafts could copy the answer just given.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hotloop.bench.client import ChatAnswer, ChatClient
from hotloop.bench.questions import ToolQuestion
from hotloop.core.errors import RemoteError

Delivery = Literal["streamed", "whole", "both"]
Choice = Literal["required", "auto"]

_QUESTIONS_A_ROUND = 4  # for each agent: enough that the slowest of a round does not decide its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How all questions are asked."""

    num_agents: int = 1
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int = 512
    tool_choice: Choice = "required"
    delivery: Delivery = "streamed"
    """How answers come; both: streamed, and then whole, which is checked but not timed."""
    is_strict: bool | None = None
    """What tools say about strictness; None: nothing."""

    def options(self, question: ToolQuestion) -> dict[str, Any]:
        tools: Sequence[Any] = question.tools
        if self.is_strict is not None:
            tools = [{**tool, "function": {**tool["function"], "strict": self.is_strict}} for tool in tools]
        return {
            "tools": tools,
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": question.is_parallel,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
        }


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer and how long it took, from sending the request to its end."""

    answer: ChatAnswer
    latency_s: float

    @property
    def token_s(self) -> float:
        return self.latency_s / max(1, self.answer.usage.num_output)


@dataclass(frozen=True, slots=True)
class Pair:
    """One question, answered with and without shortcuts; `unstreamed` are the same once more, if that was wanted."""

    question: ToolQuestion
    fast: Timed
    slow: Timed
    unstreamed: tuple[ChatAnswer, ...] = ()

    @property
    def ratio(self) -> float:
        return self.slow.token_s / self.fast.token_s if self.fast.token_s else 0.0

    @property
    def answers(self) -> tuple[ChatAnswer, ...]:
        return (self.fast.answer, self.slow.answer, *self.unstreamed)

    @property
    def is_identical(self) -> bool:
        return len({_essence(answer) for answer in self.answers}) == 1


def _essence(answer: ChatAnswer) -> tuple[object, ...]:
    """What makes two answers the same: every word and the number of tokens; not the ids of calls."""
    calls = tuple((call.name, call.arguments) for call in answer.calls)
    return answer.text, calls, answer.end, answer.usage.num_output


@dataclass(slots=True)
class Measured:
    """What asking gave. The seconds are those of all rounds, in which several agents may have asked at a time."""

    pairs: list[Pair] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    fast_s: float = 0.0
    slow_s: float = 0.0

    def merge(self, other: "Measured") -> None:
        self.pairs += other.pairs
        self.errors += other.errors
        self.fast_s += other.fast_s
        self.slow_s += other.slow_s


async def measure(
    client: ChatClient, questions: Sequence[ToolQuestion], manner: Manner, watch: Callable[[int], None] = lambda _: None
) -> Measured:
    """Ask all questions, `num_agents` at a time; `watch` hears how many are done after every round."""
    await client.find_model()
    measured = Measured()
    for part in _batched(questions, manner.num_agents * _QUESTIONS_A_ROUND):
        measured.merge(await _Asker(client, manner).measure(part))
        watch(len(part))
    if questions and not measured.pairs:
        raise RemoteError(measured.errors[0])
    return measured


async def learn(client: ChatClient, questions: Sequence[ToolQuestion], manner: Manner) -> None:
    """Ask all questions once, for what the server can learn from them."""
    await client.find_model()
    asker = _Asker(client, manner)
    await asker.ask_all(questions, shortcuts=True)
    for failure in asker.failures.values():
        raise RemoteError(failure)


def _batched(questions: Sequence[ToolQuestion], size: int) -> Iterator[tuple[ToolQuestion, ...]]:
    left = iter(questions)
    while part := tuple(itertools.islice(left, size)):
        yield part


class _Asker:
    """`failures` has what first went wrong with a question, by its id."""

    def __init__(self, client: ChatClient, manner: Manner) -> None:
        self.failures: dict[str, str] = {}
        self._client = client
        self._manner = manner

    async def measure(self, questions: Sequence[ToolQuestion]) -> Measured:
        """One round. A question that failed at any time gives no pair."""
        await self.ask_all(questions, shortcuts=False, max_tokens=1)
        is_streamed = self._manner.delivery != "whole"
        fast, fast_s = await self.ask_all(questions, shortcuts=True, is_streamed=is_streamed)
        slow, slow_s = await self.ask_all(questions, shortcuts=False, is_streamed=is_streamed)
        again: list[dict[str, Timed]] = []
        if self._manner.delivery == "both":
            again += [
                (await self.ask_all(questions, shortcuts=is_fast, is_streamed=False))[0] for is_fast in (True, False)
            ]
        pairs = [
            Pair(
                question, fast[question.id], slow[question.id], tuple(answers[question.id].answer for answers in again)
            )
            for question in questions
            if question.id not in self.failures
        ]
        return Measured(pairs, list(self.failures.values()), fast_s, slow_s)

    async def ask_all(
        self,
        questions: Sequence[ToolQuestion],
        *,
        shortcuts: bool,
        is_streamed: bool = True,
        max_tokens: int | None = None,
    ) -> tuple[dict[str, Timed], float]:
        """The answers by question, and the seconds all of it took."""
        queue = deque(questions)
        answers: dict[str, Timed] = {}
        began_at = time.perf_counter()

        async def agent() -> None:
            while queue:
                question = queue.popleft()
                options = self._manner.options(question) | {"shortcuts": shortcuts}
                if max_tokens is not None:
                    options["max_tokens"] = max_tokens
                try:
                    answers[question.id] = await self._ask(question, is_streamed, options)
                except RemoteError as error:
                    self.failures.setdefault(question.id, f"{question.id}: {error}")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._manner.num_agents, len(questions))):
                group.create_task(agent())
        return answers, time.perf_counter() - began_at

    async def _ask(self, question: ToolQuestion, is_streamed: bool, options: dict[str, Any]) -> Timed:
        began_at = time.perf_counter()
        answer = await self._client.ask(question.messages, is_streamed=is_streamed, session_id=question.id, **options)
        return Timed(answer, time.perf_counter() - began_at)
