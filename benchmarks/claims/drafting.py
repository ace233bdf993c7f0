"""A draft model beside a large one of the same vocabulary: prose and tool calls, with its guesses and without, by the
same engine. Nothing else saves steps: no forced tokens, no guesses from the past."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.claims.published import DRAFT
from benchmarks.claims.result import Figure, Result, size_of
from hotloop.chat.formats import choose_format
from hotloop.chat.prompt import ChatInput, Prompts
from hotloop.chat.tools import ToolChoice
from hotloop.core.config import EngineConfig
from hotloop.core.grammar import Grammar
from hotloop.core.message import Message, Tool
from hotloop.core.request import SamplingParams
from hotloop.engine.engine import Completion, Engine

_PROSE = (
    "Explain in a few sentences why the sky is blue.",
    "Tell a short story about a lighthouse keeper.",
    "What is photosynthesis? Answer in plain words.",
    "Describe a walk through a forest in autumn.",
)
_CALLS = (
    "Read the file src/main.py.",
    "Run the tests with pytest, verbosely.",
    "Search for the word timeout in the folder docs.",
    "Read the file README.md.",
)


def _tool(name: str, about: str, *fields: str) -> Tool:
    properties = {field: {"type": "string"} for field in fields}
    return Tool(name, about, {"type": "object", "properties": properties, "required": [*fields]})


_TOOLS = (
    _tool("read_file", "Read a file.", "path"),
    _tool("run", "Run a shell command.", "command"),
    _tool("search", "Search files for a text.", "text", "folder"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, without guesses and with them."""

    plain_s: float
    plain: Completion
    drafted_s: float
    drafted: Completion

    @property
    def is_same(self) -> bool:
        return self.plain.token_ids == self.drafted.token_ids


def measure_drafting(large: str, small: str, num_repeats: int, num_output: int) -> Result:
    config = EngineConfig(draft_model=small, drafts=False, forced_tokens=False)
    with Engine.load(large, config, device="cpu") as engine:
        prompts = _Prompts(engine)
        prose = [_pair(engine, prompts.prose(each), None, num_output) for each in _PROSE[:num_repeats]]
        calls = [_pair(engine, prompts.call(each), prompts.grammar, num_output) for each in _CALLS[:num_repeats]]
    return Result(
        claim=DRAFT,
        what=(
            f"{num_repeats} answers of up to {num_output} tokens and {num_repeats} tool calls of a model of "
            f"{size_of(large)}, for which one of {size_of(small)} guesses"
        ),
        figures=[
            Figure("prose", "tokens/s", *_rates(prose)),
            Figure("prose accepted", "share", [_accepted(prose)]),
            Figure("tool calls", "tokens/s", *_rates(calls)),
            Figure("tool calls accepted", "share", [_accepted(calls)]),
            Figure("same output", "share", [sum(pair.is_same for pair in (*prose, *calls)) / (2 * num_repeats)]),
        ],
    )


class _Prompts:
    def __init__(self, engine: Engine) -> None:
        assert engine.template, "a chat model has a template"
        self._format = choose_format(engine.template, engine.tokenizer)
        self._prompts = Prompts(engine.template, engine.tokenizer, self._format)
        self.grammar = self._format.grammar(_TOOLS, ToolChoice("required"))

    def prose(self, words: str) -> list[int]:
        return [*self._prompts.chat(ChatInput(messages=(Message("user", words),))).token_ids]

    def call(self, words: str) -> list[int]:
        conversation = ChatInput(messages=(Message("user", words),), tools=_TOOLS)
        return [*self._prompts.chat(conversation).token_ids]


def _pair(engine: Engine, prompt: Sequence[int], grammar: Grammar | None, num_output: int) -> Pair:
    """The prompt is read beforehand, by both models."""

    def ask(num_tokens: int, *, has_drafts: bool) -> tuple[float, Completion]:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, shortcuts=has_drafts)
        began_at = time.perf_counter()
        answer = engine.generate(prompt, params, grammar=grammar)
        return time.perf_counter() - began_at, answer

    ask(4, has_drafts=True)
    return Pair(*ask(num_output, has_drafts=False), *ask(num_output, has_drafts=True))


def _rates(pairs: Sequence[Pair]) -> Iterator[list[float]]:
    yield [len(pair.drafted.token_ids) / pair.drafted_s for pair in pairs]
    yield [len(pair.plain.token_ids) / pair.plain_s for pair in pairs]


def _accepted(pairs: Sequence[Pair]) -> float:
    num_drafted = sum(pair.drafted.usage.num_drafted for pair in pairs)
    return sum(pair.drafted.usage.num_accepted for pair in pairs) / max(1, num_drafted)
