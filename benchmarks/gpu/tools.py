"""Tool calls with forced tokens and drafts, and without, on a large model's shapes and random weights.

A random model writes noise wherever the schema of a tool leaves it a choice, so this measures the engine: how many
steps the shortcuts save, and what they cost. Greedy, one agent and many at a time; each of them makes several calls,
one after another. Then all of them make the same calls once more, so that there is a past to draft from.

Whether the outputs are the same is seen in float32 (`--exact`), where rounding decides nothing: a small model does for
that, and its times say nothing about a large one.

Fair by construction: prompts are read, and grammars compiled, by requests of one token that are not timed. With
shortcuts goes first: the other way round drafts could copy the answers just given.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu.engines import Answer, LentBackend, ask
from benchmarks.gpu.models import dummy_folder
from benchmarks.gpu.vocabularies import write_trained_tokenizer
from hotloop.backends.backend import Backend
from hotloop.backends.cuda.runner import BLOCK_SIZE, CudaBackend, open_cuda
from hotloop.backends.cuda.workers import Plan
from hotloop.chat.formats import LlamaFormat
from hotloop.chat.tools import ToolChoice
from hotloop.core.config import EngineConfig
from hotloop.core.grammar import Grammar
from hotloop.core.message import Tool
from hotloop.core.request import FinishReason, Request, SamplingParams
from hotloop.engine.engine import Engine
from hotloop.engine.snapshot import EngineStats
from hotloop.models.memory import kv_token_bytes
from hotloop.models.model import Model, load_model
from hotloop.models.tokenizer import Tokenizer

MAX_TOKENS = 1024  # as agents give; near its end an answer is watched closely, which costs time
PROMPT_TOKENS, SHARED_TOKENS = 512, 384
CALLS_OF = {1: 8, 64: 2}
NUM_REPEATS = 3
EXACT_KV_TOKENS = 1 << 17
EXACT: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32_000,
}
TINY: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 20_000,
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _enum(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": [*values]}


def _integer(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _text(most: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most}


_FLAG = {"type": "boolean"}
_CURRENCY = _enum("USD", "EUR", "GBP", "JPY", "CHF")
TOOLS = (
    Tool(
        "search_flights",
        "Find flights between two airports.",
        _object(
            origin=_text(3),
            destination=_text(3),
            departure_month=_enum("january", "february", "march", "april", "may", "june", "july", "august"),
            departure_day=_integer(1, 31),
            passengers=_integer(1, 9),
            cabin=_enum("economy", "premium_economy", "business", "first"),
            max_stops=_integer(0, 3),
            currency=_CURRENCY,
            flexible_dates=_FLAG,
        ),
    ),
    Tool(
        "create_ticket",
        "Open a ticket for the support team.",
        _object(
            title=_text(40),
            component=_enum("billing", "login", "search", "checkout", "notifications", "mobile_app"),
            severity=_enum("low", "medium", "high", "critical"),
            assignee_id=_integer(1000, 9999),
            labels={"type": "array", "items": _enum("bug", "regression", "customer"), "minItems": 1, "maxItems": 2},
            notify_customer=_FLAG,
        ),
    ),
    Tool(
        "query_orders",
        "Look up the orders of a customer.",
        _object(
            customer_name=_text(24),
            status=_enum("pending", "processing", "shipped", "delivered", "cancelled", "returned"),
            created_after_year=_integer(2015, 2030),
            minimum_total=_integer(0, 5000),
            currency=_CURRENCY,
            sort_by=_enum("created_at", "total_amount", "customer_name"),
            sort_direction=_enum("ascending", "descending"),
            page=_integer(1, 50),
            page_size=_integer(1, 100),
            include_line_items=_FLAG,
        ),
    ),
    Tool(
        "resize_cluster",
        "Change the number of nodes of a cluster.",
        _object(
            cluster_name=_text(16),
            region=_enum("us-east-1", "us-west-2", "eu-central-1", "eu-west-1", "ap-southeast-1"),
            instance_type=_enum("standard-small", "standard-large", "memory-large", "gpu-large"),
            minimum_nodes=_integer(1, 16),
            maximum_nodes=_integer(1, 64),
            drain_timeout_seconds=_integer(0, 900),
            dry_run=_FLAG,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Call:
    """What an agent asks for: a prompt and the tool that it must call."""

    prompt: list[int]
    grammar: Grammar


@dataclass(frozen=True, slots=True)
class Timed:
    """All calls of all agents, once, and what the engine did for them."""

    seconds: float
    steps: int
    output: int
    forced: int
    drafted: int
    accepted: int
    answers: list[Answer]


@dataclass(slots=True)
class Figures:
    """With shortcuts and without, one of each a repeat."""

    fast: list[Timed] = field(default_factory=list)
    slow: list[Timed] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        pairs = list(zip(self.fast, self.slow, strict=True))
        answers = [both for fast, slow in pairs for both in zip(fast.answers, slow.answers, strict=True)]
        ratios = [slow.seconds / fast.seconds for fast, slow in pairs]
        fast_output = sum(fast.output for fast in self.fast)
        drafted = sum(fast.drafted for fast in self.fast)
        return {
            "times_faster": round(statistics.median(ratios), 2),
            "runs": [round(ratio, 2) for ratio in ratios],
            "on": _figures(self.fast),
            "off": _figures(self.slow),
            "share_forced": round(sum(fast.forced for fast in self.fast) / fast_output, 3),
            "share_accepted": round(sum(fast.accepted for fast in self.fast) / fast_output, 3),
            "drafted": drafted,
            "accepted_of_drafted": round(sum(fast.accepted for fast in self.fast) / drafted, 3) if drafted else None,
            "calls": len(answers),
            "calls_cut": sum(fast.finish_reason is not FinishReason.STOP for fast, _ in answers),
            "calls_that_differ": sum(fast.token_ids != slow.token_ids for fast, slow in answers),
            "first_difference_at": sorted(_first_difference(*both) for both in answers if _differ(*both)),
        }


def _figures(runs: Sequence[Timed]) -> dict[str, float]:
    return {
        "seconds": round(statistics.median(run.seconds for run in runs), 3),
        "tokens_s": round(statistics.median(run.output / run.seconds for run in runs), 1),
        "tokens_a_step": round(sum(run.output for run in runs) / sum(run.steps for run in runs), 2),
        "tokens_a_call": round(sum(run.output for run in runs) / sum(len(run.answers) for run in runs), 1),
    }


def _differ(one: Answer, other: Answer) -> bool:
    return one.token_ids != other.token_ids


def _first_difference(one: Answer, other: Answer) -> int:
    pairs = enumerate(zip(one.token_ids, other.token_ids, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one.token_ids), len(other.token_ids)))


class Office:
    """An engine, and agents who ask it for calls."""

    def __init__(self, engine: Engine, seed: int = 0) -> None:
        self._engine = engine
        self._rng = random.Random(seed)
        self._num_asked = 0
        tokenizer = engine.tokenizer
        self._num_words = tokenizer.vocab_size - 1
        tool_format = LlamaFormat(tokenizer)
        choices = [ToolChoice("required", tool.name, is_parallel=False) for tool in TOOLS]
        grammars = [tool_format.grammar(TOOLS, choice, tokenizer) for choice in choices]
        self._grammars = [grammar for grammar in grammars if grammar]
        self._trunk = self._tokens(SHARED_TOKENS)

    def measure(self, num_agents: int, num_calls: int, num_repeats: int) -> dict[str, Any]:
        """Calls that nobody made before, and then the same again."""
        fresh, again = Figures(), Figures()
        for _ in range(num_repeats):
            calls = [[self._make_call() for _ in range(num_calls)] for _ in range(num_agents)]
            self._ask(calls, SamplingParams(temperature=0, max_tokens=1))
            for figures in (fresh, again):
                figures.fast.append(self._time(calls, has_shortcuts=True))
                figures.slow.append(self._time(calls, has_shortcuts=False))
        return {"fresh calls": fresh.to_json(), "the same calls again": again.to_json()}

    def _make_call(self) -> Call:
        own = self._tokens(PROMPT_TOKENS - SHARED_TOKENS)
        return Call([*self._trunk, *own], self._rng.choice(self._grammars))

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self._num_words) for _ in range(count)]

    def _time(self, calls: Sequence[Sequence[Call]], *, has_shortcuts: bool) -> Timed:
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, shortcuts=has_shortcuts)
        before = self._engine.stats()
        began_at = time.perf_counter()
        answers = self._ask(calls, params)
        seconds = time.perf_counter() - began_at
        return _timed(seconds, before, self._engine.stats(), answers)

    def _ask(self, calls: Sequence[Sequence[Call]], params: SamplingParams) -> list[Answer]:
        agents = [[self._request(i, call, params) for call in of_one] for i, of_one in enumerate(calls)]
        return list(ask(self._engine, agents).values())

    def _request(self, agent: int, call: Call, params: SamplingParams) -> Request:
        self._num_asked += 1
        return Request(
            f"call-{self._num_asked}", call.prompt, params, session_id=f"agent-{agent}", grammar=call.grammar
        )


def _timed(seconds: float, before: EngineStats, after: EngineStats, answers: list[Answer]) -> Timed:
    return Timed(
        seconds,
        after.num_steps - before.num_steps,
        after.usage.num_output - before.usage.num_output,
        after.usage.num_forced - before.usage.num_forced,
        after.usage.num_drafted - before.usage.num_drafted,
        after.usage.num_accepted - before.usage.num_accepted,
        answers,
    )


def tool_model(name: str = "llama-8b", **changes: Any) -> Model:
    """A model of those shapes whose tokenizer can spell JSON and end an answer."""
    folder = dummy_folder(name, **changes)
    write_trained_tokenizer(folder, int(json.loads((folder / "config.json").read_text())["vocab_size"]))
    return load_model(str(folder), load_format="dummy")


def run(
    tokenizer: Tokenizer,
    backend: Backend,
    config: EngineConfig | None = None,
    *,
    calls_of: Mapping[int, int] = CALLS_OF,
    num_repeats: int = NUM_REPEATS,
) -> dict[str, Any]:
    """Figures by number of agents; `calls_of` says how many calls each of them makes. The backend stays open, and the
    tokenizer must have a token that ends an answer: `tool_model` has.
    """
    began_at = time.perf_counter()
    report: dict[str, Any] = {}
    with Engine(tokenizer, LentBackend(backend), config or EngineConfig()) as engine:
        office = Office(engine)
        office.measure(1, 1, 1)
        for num_agents, num_calls in calls_of.items():
            found = report[f"{num_agents} at once"] = office.measure(num_agents, num_calls, num_repeats)
            seconds = time.perf_counter() - began_at
            print(f"{seconds:4.0f} s  {num_agents} at once: {json.dumps(found)}", flush=True)
    return report


def show(report: Mapping[str, Any], console: Console) -> None:
    columns = ("agents", "calls", "times faster", "s on/off", "tokens/s on/off", "a step on/off", "forced", "accepted")
    table = Table(*columns, "cut", "differ", title="Tool calls: forced tokens and drafts on against off")
    for agents, workloads in report.items():
        for workload, found in workloads.items():
            on, off = found["on"], found["off"]
            both = (f"{on[key]:,g} / {off[key]:,g}" for key in ("seconds", "tokens_s", "tokens_a_step"))
            shares = (f"{found['share_forced']:.0%}", f"{found['share_accepted']:.0%}")
            counts = (str(found["calls_cut"]), f"{found['calls_that_differ']} of {found['calls']}")
            table.add_row(agents, workload, f"{found['times_faster']:g}", *both, *shares, *counts)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--exact", action="store_true", help="a small model in float32, where no token may differ")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, in Triton's interpreter")
    parser.add_argument("--json", type=Path, help="write the report there")
    flags = parser.parse_args()
    model, backend, config = open_model(is_exact=flags.exact, is_tiny=flags.tiny)
    calls_of = {1: 1, 2: 1} if flags.tiny else CALLS_OF
    report = run(model.tokenizer, backend, config, calls_of=calls_of, num_repeats=flags.repeats)
    backend.close()
    if flags.json:
        flags.json.write_text(json.dumps(report))
    show(report, Console(width=160))
    num_differ = sum(found["calls_that_differ"] for workloads in report.values() for found in workloads.values())
    return 1 if flags.exact and num_differ else 0


def open_model(*, is_exact: bool, is_tiny: bool) -> tuple[Model, CudaBackend, EngineConfig]:
    config = EngineConfig(max_running=64, host_kv="off")
    if not is_exact and not is_tiny:
        model = tool_model()
        return model, open_cuda(model, config, weight_format="bf16", precision="fast"), config
    model = tool_model(**(TINY if is_tiny else EXACT))
    kv_bytes = (128 * BLOCK_SIZE if is_tiny else EXACT_KV_TOKENS) * kv_token_bytes(model.spec, 4)
    device = "cpu" if is_tiny else "cuda"
    backend = CudaBackend(model, kv_bytes, Plan(config, torch.float32, has_graphs=not is_tiny), device=device)
    return model, backend, config


if __name__ == "__main__":
    sys.exit(main())
