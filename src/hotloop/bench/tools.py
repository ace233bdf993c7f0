"""Tool calls with and without shortcuts: every question is asked twice of one server, and both answers are timed.

Fair by construction: prompts are read, and grammars compiled, by a request of one token that is not timed. With
shortcuts goes first, a few questions at a time: the other way round the drafts could copy the answer just given.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hotloop.bench.client import ChatAnswer, ChatClient
from hotloop.bench.questions import AskOptions, ToolQuestion
from hotloop.bench.replay import Rounds, work_off
from hotloop.core.errors import RemoteError

_QUESTIONS_A_ROUND = 4  # for each agent: enough that the slowest of a round does not decide its time


class Timed(NamedTuple):
    answer: ChatAnswer
    latency_s: float

    @property
    def token_s(self) -> float:
        return self.latency_s / max(1, self.answer.usage.num_output)


class Pair(NamedTuple):
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
        """Whether every word and the number of tokens are the same; the ids of calls may differ."""
        calls = [tuple((call.name, call.arguments) for call in answer.calls) for answer in self.answers]
        rest = [(answer.text, answer.end, answer.usage.num_output) for answer in self.answers]
        return len({*zip(calls, rest, strict=True)}) == 1


@dataclass(slots=True)
class Measured(Rounds):
    """What asking gave. The seconds are those of all rounds, in which several agents may have asked at a time."""

    pairs: list[Pair] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    fast_s: float = 0.0
    slow_s: float = 0.0


async def measure(
    client: ChatClient,
    questions: Sequence[ToolQuestion],
    options: AskOptions,
    watch: Callable[[int], None] = lambda _: None,
) -> Measured:
    """Ask all questions, `agents` at a time; `watch` hears how many are done after every round."""
    await client.find_model()
    measured = Measured()
    size = options.agents * _QUESTIONS_A_ROUND
    for part in (questions[i : i + size] for i in range(0, len(questions), size)):
        measured.merge(await _Asker(client, options).measure(part))
        watch(len(part))
    if questions and not measured.pairs:
        raise RemoteError(measured.errors[0])
    return measured


async def learn(client: ChatClient, questions: Sequence[ToolQuestion], options: AskOptions) -> None:
    """Ask all questions once, for what the server can learn from them."""
    await client.find_model()
    asker = _Asker(client, options)
    await asker.ask_all(questions, shortcuts=True)
    for failure in asker.failures.values():
        raise RemoteError(failure)


class _Asker:
    """`failures` has what first went wrong with a question, by its id."""

    def __init__(self, client: ChatClient, options: AskOptions) -> None:
        self.failures: dict[str, str] = {}
        self._client = client
        self._options = options

    async def measure(self, questions: Sequence[ToolQuestion]) -> Measured:
        """One round. A question that failed at any time gives no pair."""
        await self.ask_all(questions, shortcuts=False, max_tokens=1)
        is_streamed = self._options.delivery != "whole"
        fast, fast_s = await self.ask_all(questions, shortcuts=True, is_streamed=is_streamed)
        slow, slow_s = await self.ask_all(questions, shortcuts=False, is_streamed=is_streamed)
        again: list[dict[str, Timed]] = []
        if self._options.delivery == "both":
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
        self, questions: Sequence[ToolQuestion], *, shortcuts: bool, is_streamed: bool = True, **more: Any
    ) -> tuple[dict[str, Timed], float]:
        """The answers by question, and the seconds all of it took."""
        answers: dict[str, Timed] = {}

        async def ask(question: ToolQuestion) -> None:
            body = self._options.body(question) | {"shortcuts": shortcuts, **more}
            began_at, id_ = time.perf_counter(), question.id
            try:
                answer = await self._client.ask(question.messages, is_streamed=is_streamed, session_id=id_, **body)
                answers[id_] = Timed(answer, time.perf_counter() - began_at)
            except RemoteError as error:
                self.failures.setdefault(id_, f"{id_}: {error}")

        began_at = time.perf_counter()
        await work_off(questions, ask, num_workers=self._options.agents)
        return answers, time.perf_counter() - began_at
