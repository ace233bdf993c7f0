"""A draft model beside another of the same vocabulary: prose and tool calls, with its drafts and without, by the same
engine. Nothing else saves steps: no forced tokens, no drafts from the past.

A model beside itself in lighter weights, which agrees with it nearly always, so that what is measured is what drafting
costs; and a large one beside the smallest that is given and has its vocabulary.
"""

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.claims.bench import Bench, empty_card
from benchmarks.claims.published import ACCEPTED, DRAFT
from benchmarks.claims.result import Figure, Result, size_of
from hotloop.backends.open import open_backend
from hotloop.chat.formats import choose_format
from hotloop.chat.prompt import ChatInput, Prompts
from hotloop.chat.tools import ToolChoice
from hotloop.core.config import Device, EngineConfig, WeightFormat
from hotloop.core.errors import ModelError
from hotloop.core.grammar import Grammar
from hotloop.core.message import Message, Tool
from hotloop.core.request import SamplingParams
from hotloop.engine.drafting.model import ModelDrafter, check_same_vocabulary
from hotloop.engine.engine import Completion, Engine
from hotloop.models.model import load_model

_PROSE = (
    "Explain in a few sentences why the sky is blue.",
    "Tell a short story about a lighthouse keeper.",
    "What is photosynthesis? Answer in plain words.",
    "Describe a walk through a forest in autumn.",
    "Say in your own words what a library is for.",
)
_CALLS = (
    "Read the file src/main.py.",
    "Run the tests with pytest, verbosely.",
    "Search for the word timeout in the folder docs.",
    "Read the file README.md.",
    "Run the linter on the folder src.",
)
_HEAVY: Mapping[Device, WeightFormat] = {"cpu": "f32", "cuda": "bf16"}
_LIGHT: Mapping[Device, WeightFormat] = {"cpu": "int4", "cuda": "fp8"}


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
    """One prompt, without drafts and with them."""

    plain_s: float
    plain: Completion
    drafted_s: float
    drafted: Completion

    @property
    def is_same(self) -> bool:
        return self.plain.token_ids == self.drafted.token_ids


@dataclass(frozen=True, slots=True)
class Drafted:
    """What came of prose and of calls, a pair a repeat."""

    prose: Sequence[Pair]
    calls: Sequence[Pair]

    def figures(self, prefix: str = "") -> Iterator[Figure]:
        for name, pairs in (("prose", self.prose), ("tool calls", self.calls)):
            yield Figure(f"{prefix}{name}", "tokens/s", *_rates(pairs))
            num_drafted = sum(pair.drafted.usage.num_drafted for pair in pairs)
            yield Figure(f"{prefix}drafted in {name}", "tokens", [num_drafted])
            if num_drafted:
                yield Figure(
                    f"{prefix}accepted of these",
                    "share",
                    [sum(p.drafted.usage.num_accepted for p in pairs) / num_drafted],
                )
        same = [
            statistics.fmean(map(bool, (a.is_same, b.is_same))) for a, b in zip(self.prose, self.calls, strict=True)
        ]
        yield Figure(f"{prefix}same output", "share", same)


def measure_drafting(bench: Bench) -> list[Result]:
    device, words = bench.device, bench.supplies.words
    large = bench.supplies.large
    small = draft_for(large, (bench.supplies.small, bench.supplies.medium)) if large else None
    bench.servers.close()
    itself = _measure(bench, words, words, _HEAVY[device], _LIGHT[device])
    what = f"{bench.scale.repeats} answers of up to {bench.scale.num_drafted} tokens and as many tool calls"
    own = f"a model of {size_of(words)} in {_HEAVY[device]}, for which it drafts itself in {_LIGHT[device]}"
    figures = [*itself.figures()]
    if small and large:
        figures += _measure(bench, large, small, "auto", "auto").figures("beside another: ")
        own += f"; and a model of {size_of(large)}, for which one of {size_of(small)} drafts"
    what = f"{what}: {own}"
    each = "of each token of an answer, whether the lighter weights, without a grammar, have it as their likeliest"
    return [
        Result(claim=DRAFT, what=f"{what}; the engine drafts only where that has been quicker", figures=figures),
        Result(claim=ACCEPTED, what=f"{what}; {each}", figures=[_accepted(bench, itself)]),
    ]


def draft_for(large: str, models: Iterable[str | None]) -> str | None:
    """The first that means the same by each token."""
    tokenizer = load_model(large).tokenizer
    for model in filter(None, models):
        try:
            check_same_vocabulary(tokenizer, load_model(model).tokenizer)
        except ModelError:
            continue
        return model
    return None


def _accepted(bench: Bench, drafted: Drafted) -> Figure:
    """By the draft model alone, so that it does not matter whether drafting pays on this machine."""
    num = bench.scale.repeats
    try:
        with open_pair(bench.device, bench.supplies.words, None, _LIGHT[bench.device]) as engine:
            prompts = _Prompts(engine)
            asked = [*map(prompts.call, _CALLS[:num]), *map(prompts.prose, _PROSE[:num])]
            answers = [pair.plain.token_ids for pair in (*drafted.calls, *drafted.prose)]
            shares = [accepted_share(engine, *each) for each in zip(asked, answers, strict=True)]
    finally:
        empty_card()
    return Figure("accepted", "share", shares[:num], shares[num:])


def accepted_share(engine: Engine, prompt: Sequence[int], answer: Sequence[int]) -> float:
    one = SamplingParams(temperature=0, max_tokens=1)
    drafts = [engine.generate([*prompt, *answer[:i]], one).token_ids for i in range(len(answer))]
    return statistics.fmean((*draft[:1],) == (token,) for draft, token in zip(drafts, answer, strict=True))


def _measure(bench: Bench, large: str, small: str, weights: WeightFormat, draft_weights: WeightFormat) -> Drafted:
    scale = bench.scale
    try:
        with open_pair(bench.device, large, small, weights, draft_weights) as engine:
            prompts, num, most = _Prompts(engine), scale.repeats, scale.num_drafted
            return Drafted(
                [_pair(engine, prompts.prose(each), None, most) for each in _PROSE[:num]],
                [_pair(engine, prompts.call(each), prompts.grammar, most) for each in _CALLS[:num]],
            )
    finally:
        empty_card()


def open_pair(
    device: Device, large: str, small: str | None, weights: WeightFormat = "auto", draft_weights: WeightFormat = "auto"
) -> Engine:
    """An engine whose draft model, if it has one, has weights of another format, which no setting asks for."""
    model, draft = load_model(large), load_model(small) if small else None
    config = EngineConfig(drafts=False, forced_tokens=False, kv_memory="256MiB", host_kv="off")
    spec = draft.spec if draft else None
    backend = open_backend(model, config, device=device, weight_format=weights, precision="fast", draft_spec=spec)
    drafter = None
    if draft:
        tokens = backend.num_blocks * backend.block_size
        drafting = open_backend(
            draft, config, device=device, weight_format=draft_weights, precision="fast", kv_tokens=tokens
        )
        drafter = ModelDrafter(drafting, model.tokenizer)
    return Engine(model.tokenizer, backend, config, name=model.name, template=model.template, drafter=drafter)


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
