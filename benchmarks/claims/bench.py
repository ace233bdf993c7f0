"""Where rows are taken and with how much of everything: the same code on a CPU and on a card.

What depends on shapes alone is asked of a server's standing model: on a CPU the default one, on a card one of
Llama-3.1-8B shapes with random weights. Rows with words that matter are asked of real models.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.claims.workflows import write_workflows
from benchmarks.gpu.models import SHAPES
from hotloop.bench.serving import ChildServer
from hotloop.core.config import DEFAULT_MODEL, Device

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
TINY: Mapping[str, Any] = SHAPES["llama-8b"] | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    repeats: int = 3
    steps: tuple[int, ...] = (1, 2, 3, 4, 5, 10, 18, 26)
    num_prompts: int = 3
    max_chars: int = 26_000
    num_output: int = 192
    tool_s: float = 2.0
    short_tool_s: float = 0.25
    num_splits: int = 5
    num_requests: int = 16
    rate: float = 20.0
    outputs: tuple[int, ...] = (8, 12, 16, 24, 96)
    num_user_turns: int = 4
    num_workers: int = 6
    num_sub_agents: int = 4
    num_drafted: int = 64
    num_questions: int = 10
    """Of each of six kinds."""
    num_jobs: int = 4
    batch: tuple[int, int, int] = (8, 256, 32)
    """Requests at once, tokens in and out."""
    prompt: int = 1024
    """Tokens of the one that is served alone."""


FULL = Scale()
CARD = Scale(
    num_output=800,
    num_requests=24,
    rate=200.0,
    outputs=(16, 24, 32, 48, 192),
    num_questions=34,
    num_jobs=16,
    batch=(64, 1024, 128),
    prompt=2048,
)
QUICK = Scale(
    repeats=1,
    steps=(1, 2, 3, 4, 5),
    num_prompts=1,
    num_output=8,
    tool_s=0.1,
    short_tool_s=0.01,
    num_splits=1,
    num_requests=4,
    num_user_turns=1,
    num_workers=1,
    num_sub_agents=1,
    num_drafted=4,
    num_questions=1,
    num_jobs=1,
    batch=(2, 40, 4),
    prompt=40,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplies:
    """What is not generated: without them something else is taken, or a claim is left out."""

    data: Path | None = None
    """Recorded transcripts with tool calls, .jsonl or .jsonl.gz; generated workflows if not given."""
    questions: Path | None = None
    """A folder of questions for tiers, such as simple_python.jsonl.gz; downloaded if not given."""
    words: str = DEFAULT_MODEL
    """A model whose words matter: it calls tools and plans, and drafts for itself with lighter weights."""
    small: str | None = None
    """A small model, by name or path."""
    medium: str | None = None
    """One between them, for three tiers."""
    large: str | None = None
    """A large one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run's machine, sizes and data; `folder` is a temporary one."""

    device: Device
    scale: Scale
    supplies: Supplies
    folder: Path
    standing: tuple[str, ...] = ()
    """Flags of the model that depends on shapes alone."""
    workflows: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workflows", self.folder / "workflows.jsonl")
        write_workflows(self.workflows, num_rounds=10)

    @property
    def data(self) -> Path:
        return self.supplies.data or self.workflows

    @property
    def runs(self) -> str:
        data = self.supplies.data
        return f"runs of {data.name.partition('.')[0]}" if data else "generated office workflows"

    def serve(self, *disabled: str, model: str | None = None) -> ChildServer:
        """A server of that model, or of the standing one, without drafts: they learn from rows taken before."""
        return self.child(*without(*disabled), *(("--model", model) if model else self.standing))

    def serve_tiny(self, *disabled: str) -> ChildServer:
        """One that prefills in no time, for rows that count tokens: no model and no machine changes those."""
        return ChildServer(("--device", "cpu", *without(*disabled), *write_shape(self.folder / "tiny", TINY)))

    def child(self, *flags: str) -> ChildServer:
        return ChildServer(("--device", self.device, *flags))


def without(*disabled: str) -> tuple[str, ...]:
    return ("--disable", ",".join(("drafts", *disabled)))


def write_shape(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The flags of a model of these shapes, with random weights and a template that adds nothing."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return ("--model", str(folder), "--load-format", "dummy")


@contextmanager
def open_bench(device: Device, scale: Scale, supplies: Supplies) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        standing = write_shape(folder / "llama-8b", SHAPES["llama-8b"]) if device == "cuda" else ()
        yield Bench(device=device, scale=scale, supplies=supplies, folder=folder, standing=standing)
