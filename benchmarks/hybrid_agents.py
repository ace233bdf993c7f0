"""Recorded agents on a small random hybrid: how much of their prompts is cached, and what their sessions' states take.

    python -m benchmarks.hybrid_agents --data TRANSCRIPTS.jsonl.gz [--agents 20] [--turns 6] [--json]

Each agent says what was recorded, which a grammar makes the model do, so a dense model of the same size reads the very
same prompts. All agents ask at once, and again when the last has its answer. States saved every so many tokens instead
of where turns end are reckoned from the same prompts.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.agent.recorded import message_of
from benchmarks.command import main, show_report
from hotloop.backends.cpu import open_cpu
from hotloop.bench.workload import Transcript, read_transcripts
from hotloop.chat.formats import choose_format
from hotloop.chat.prompt import ChatInput, Prompts
from hotloop.core.config import DEFAULT_MODEL, EngineConfig
from hotloop.core.grammar import Grammar
from hotloop.core.message import Message, Tool
from hotloop.core.request import SamplingParams, Usage
from hotloop.engine.engine import Engine
from hotloop.models.dummy import DummyWeights
from hotloop.models.memory import kv_token_bytes, state_bytes
from hotloop.models.model import Model, load_model
from hotloop.models.spec import LinearSpec, ModelSpec

EVERY = (64, 256, 512, 1024, 2048)
SLOTS_A_SESSION = 3
_KV_MEMORY = "768MiB"

_LINEAR = LinearSpec((0, 1, 2, 4, 5, 6), num_key_heads=2, num_value_heads=4, key_dim=32, value_dim=32, conv_width=4)
# Of Qwen3.5 with nine billion weights: what a session's states and KV would take there.
_LARGE_LINEAR = LinearSpec(tuple(i for i in range(32) if i % 4 != 3), 16, 32, 128, 128, 4)
_LARGE = ModelSpec("qwen35", 32, 4096, 12288, 16, 4, 256, 248320, 1 << 18, 1e-6, 1e7, linear=_LARGE_LINEAR)


class Job(NamedTuple):
    tools: tuple[Tool, ...]
    messages: list[Message]

    def turns(self) -> Iterator[tuple[list[Message], Message]]:
        """What is said before each answer, and the answer."""
        for i, message in enumerate(self.messages):
            if message.role == "assistant":
                yield self.messages[:i], message


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    cached: float
    """Share of the prompts' tokens."""
    num_states: float | None = None
    """Kept for a session in the end."""

    @property
    def state_mib(self) -> float | None:
        return None if self.num_states is None else self.num_states * state_bytes(_LARGE) / (1 << 20)


@dataclass(frozen=True, slots=True)
class Figures:
    rows: list[Row]
    kv_mib: float
    """Of a session at its end, on the large model."""
    num_prompt: int

    def to_json(self) -> dict[str, Any]:
        rows = [{"what": row.what, "cached": row.cached, "states": row.num_states} for row in self.rows]
        return {"rows": rows, "kv_mib": self.kv_mib, "num_prompt": self.num_prompt}

    def to_table(self) -> Table:
        title = f"{self.num_prompt:,} prompt tokens; KV of a session on Qwen3.5-9B: {self.kv_mib:.0f} MiB"
        table = Table("states", "cached share", "kept a session", "MiB there", title=title)
        for row in self.rows:
            is_dense = row.num_states is None
            table.add_row(
                row.what,
                f"{row.cached:.4f}",
                "" if is_dense else f"{row.num_states:.1f}",
                "" if is_dense else f"{row.state_mib:.0f}",
            )
        return table


def read_jobs(path: Path, num_agents: int, num_turns: int) -> list[Job]:
    """The first recorded runs with so many answers, each as far as that."""
    jobs = (_parse_job(row, num_turns) for row in read_transcripts(path))
    return [*islice((job for job in jobs if job), num_agents)]


def _parse_job(row: Transcript, num_turns: int) -> Job | None:
    messages = [Message("system", row.system)] if row.system else []
    num_answers = 0
    for recorded in row.messages:
        messages.append(message_of(recorded))
        num_answers += messages[-1].role == "assistant"
        if num_answers == num_turns:
            functions = [each["function"] for each in row.tools]
            tools = (Tool(each["name"], each.get("description", ""), each.get("parameters", {})) for each in functions)
            return Job(tuple(tools), messages)
    return None


class Fleet:
    """Agents that say what was recorded."""

    def __init__(self, base: Model, engine: Engine) -> None:
        self._engine = engine
        self._prompts = Prompts(base.template, base.tokenizer, choose_format(base.template, base.tokenizer))
        self.usages: list[Usage] = []
        self.said: dict[int, list[tuple[list[int], list[int]]]] = {}
        """Of each agent the prompts, and what was answered."""

    def run(self, jobs: Sequence[Job]) -> None:
        rounds = zip(*(job.turns() for job in jobs), strict=False)
        with ThreadPoolExecutor(len(jobs)) as pool:
            for turns in rounds:
                work = [pool.submit(self._ask, i, job, *turns[i]) for i, job in enumerate(jobs)]
                self.usages += [each.result() for each in work]

    def _ask(self, agent: int, job: Job, before: list[Message], answer: Message) -> Usage:
        prompt = self._prompts.chat(ChatInput(messages=tuple(before), tools=job.tools))
        whole = self._prompts.chat(
            ChatInput(messages=(*before, answer), tools=job.tools, is_answer_next=False), scope="unknown"
        )
        text = whole.text.removeprefix(prompt.text).split("<|im_end|>")[0]
        grammar = Grammar("lark", f"start: {json.dumps(text, ensure_ascii=False)}")
        sampling = SamplingParams(temperature=0)
        done = self._engine.generate(list(prompt.token_ids), sampling, session_id=f"agent {agent}", grammar=grammar)
        self._prompts.remember(prompt.token_ids, done.token_ids)
        self.said.setdefault(agent, []).append(([*prompt.token_ids], [*done.token_ids]))
        return done.usage


def make_model(base: Model, linear: LinearSpec | None) -> Model:
    spec = ModelSpec(
        family="qwen35" if linear else "qwen3",
        num_layers=8,
        hidden_size=128,
        intermediate_size=256,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        vocab_size=base.spec.vocab_size,
        max_context=1 << 17,
        rms_eps=1e-6,
        rope_theta=1e6,
        has_tied_head=True,
        has_qk_norm=True,
        linear=linear,
    )
    name = "hybrid" if linear else "dense"
    return replace(base, name=name, spec=spec, weights=DummyWeights(spec), fingerprint=f"random-{name}", template=None)


def measure(
    base: Model, jobs: Sequence[Job], linear: LinearSpec | None, num_slots: int | None = None
) -> tuple[Row, Fleet]:
    config = EngineConfig(kv_memory=_KV_MEMORY)
    backend = open_cpu(make_model(base, linear), config, weight_format="f32")
    if num_slots:
        backend.num_states = num_slots
    with Engine(base.tokenizer, backend, config) as engine:
        fleet = Fleet(base, engine)
        fleet.run(jobs)
        num_kept = engine.stats().states.num_cached
    total = Usage.total(*fleet.usages)
    what = f"at turn ends, {num_slots} slots" if num_slots else "at turn ends"
    row = Row(
        what if linear else "dense", total.num_cached / total.num_prompt, num_kept / len(jobs) if linear else None
    )
    return row, fleet


def reckon(fleet: Fleet, every: int) -> Row:
    """What states saved every so many tokens would have given, and how many of them there would be."""
    num_prompt = num_cached = 0
    known: list[array[int]] = []
    places: set[bytes] = set()
    for turns in zip(*fleet.said.values(), strict=True):
        asked = [array("i", prompt) for prompt, _ in turns]
        for i, prompt in enumerate(asked):
            others = known + asked[:i]  # of those that ask at once one computes what is common
            num_common = max((_num_common(prompt[:-1], other) for other in others), default=0)
            num_prompt, num_cached = num_prompt + len(prompt), num_cached + num_common // every * every
        known = [array("i", [*prompt, *output]) for prompt, output in turns]
        for tokens in known:
            places |= {tokens[:end].tobytes() for end in range(every, len(tokens), every)}
    return Row(f"every {every} tokens", num_cached / num_prompt, len(places) / len(fleet.said))


def _num_common(one: "array[int]", other: "array[int]") -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def hybrid_agents(data: Path, *, agents: int = 20, turns: int = 6, as_json: bool = False) -> int:
    """Cached share and memory of recorded agents on a small random hybrid.

    Parameters
    ----------
    data: a file of transcripts, JSON lines, perhaps compressed
    agents: how many agents
    turns: how many answers each
    as_json: print JSON
    """
    base, jobs = load_model(DEFAULT_MODEL), read_jobs(data, agents, turns)
    dense, fleet = measure(base, jobs, None)
    few = SLOTS_A_SESSION * len(jobs)
    rows = [dense, measure(base, jobs, _LINEAR)[0], measure(base, jobs, _LINEAR, few)[0]]
    rows += [reckon(fleet, every) for every in EVERY]
    lengths = [len(said[-1][0]) + len(said[-1][1]) for said in fleet.said.values()]
    kv_mib = kv_token_bytes(_LARGE) * sum(lengths) / len(lengths) / (1 << 20)
    show_report(Figures(rows, kv_mib, sum(usage.num_prompt for usage in fleet.usages)), as_json)
    return 0


if __name__ == "__main__":
    main(hybrid_agents)
