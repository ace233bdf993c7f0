"""Where rows are taken and with how much of everything: the same code on a CPU and on a card.

What depends on shapes alone is asked of a server's standing model: on a CPU the default one, on a card one of
Llama-3.1-8B shapes with random weights. Rows with words that matter are asked of real models.
"""

import gc
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.claims.result import size_of
from benchmarks.claims.workflows import write_workflows
from benchmarks.gpu.models import SHAPES, llama
from hotloop.bench.serving import ChildServer
from hotloop.core.config import DEFAULT_MODEL, Device, LoadFormat

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
TINY: Mapping[str, Any] = llama(64, 64, 1, 2, 1, 32, vocab=512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    repeats: int = 3
    steps: tuple[int, ...] = (1, 2, 3, 4, 5, 10, 18, 26)
    num_prompts: int = 6
    max_chars: int = 26_000
    num_output: int = 512
    tool_s: float = 2.0
    short_tool_s: float = 0.25
    num_splits: int = 5
    num_requests: int = 48
    rate: float = 200.0
    outputs: tuple[int, ...] = (8, 12, 16, 24, 96)
    num_user_turns: int = 4
    num_workers: int = 6
    num_sub_agents: int = 4
    num_drafted: int = 64
    num_questions: int = 20
    """Of each of six kinds."""
    num_jobs: int = 4
    batch: tuple[int, int, int] = (8, 256, 32)
    """Requests at once, tokens in and out."""
    prompt: int = 1024
    """Tokens of the one that is served alone."""


FULL = Scale()
CARD = Scale(
    num_prompts=3,
    num_output=800,
    num_requests=24,
    outputs=(16, 24, 32, 48, 192),
    num_questions=34,
    num_jobs=8,
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


class Servers:
    """Servers by their flags: each starts once, for all rows that ask for its like. A few are kept, so that ways can be
    measured in turn; only one of them is asked at a time."""

    def __init__(self, most: int = 3) -> None:
        self._most = most
        self._open: dict[tuple[str, ...], ChildServer] = {}  # least recently wanted first

    def urls(self, wanted: Sequence[tuple[str, ...]]) -> list[str]:
        """Of one server for each, those that are missing started at once."""
        assert len(wanted) <= self._most
        for flags in [flags for flags, server in self._open.items() if not server.is_running]:
            self._open.pop(flags).close()
        kept = {flags: self._open.pop(flags) for flags in dict.fromkeys(wanted) if flags in self._open}
        missing = [flags for flags in dict.fromkeys(wanted) if flags not in kept]
        while len(self._open) + len(kept) + len(missing) > self._most:
            self._open.pop(next(iter(self._open))).close()
        self._open |= kept | {flags: ChildServer(flags) for flags in missing}
        try:
            with ThreadPoolExecutor(self._most) as pool:
                list(pool.map(lambda flags: self._open[flags].start(), missing))
        except BaseException:
            self.close()
            raise
        return [self._open[flags].url for flags in wanted]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run's machine, sizes and data; `folder` is a temporary one."""

    device: Device
    scale: Scale
    supplies: Supplies
    folder: Path
    servers: Servers = field(default_factory=Servers)
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

    @property
    def standing(self) -> str:
        """The model of rows that depend on shapes alone."""
        return self.shaped("llama-8b") if self.device == "cuda" else DEFAULT_MODEL

    def shaped(self, name: str, config: Mapping[str, Any] | None = None) -> str:
        """The path of a model of these shapes, with random weights and a template that adds nothing."""
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config or SHAPES[name]))
            (folder / "chat_template.jinja").write_text(TEMPLATE)
        return str(folder)

    def serve(self, *disabled: str, model: str | None = None) -> str:
        """The address of a server of that model, or of the standing one."""
        return self.servers.urls([self.flags(*disabled, model=model)])[0]

    def flags(self, *disabled: str, model: str | None = None) -> tuple[str, ...]:
        """Without drafts: they learn from rows taken before."""
        return ("--disable", ",".join(("drafts", *disabled)), *self.own_flags(model or self.standing))

    def own_flags(self, model: str) -> tuple[str, ...]:
        """Of the model and this machine. Several servers share a card."""
        shared = ("--gpu-memory", "0.28", "--host-kv", "off") if self.device == "cuda" else ()
        return ("--device", self.device, *shared, *self.model_flags(model))

    def model_flags(self, model: str) -> tuple[str, ...]:
        return ("--model", model, "--load-format", self.load_format(model))

    def load_format(self, model: str) -> LoadFormat:
        return "dummy" if Path(model).parent == self.folder else "auto"

    def size_of(self, model: str) -> str:
        return size_of(model, self.load_format(model))

    def tiny_flags(self, *disabled: str) -> tuple[str, ...]:
        """Of a server that prefills in no time, for rows that count tokens: no model and no machine changes those."""
        return (
            "--device",
            "cpu",
            "--disable",
            ",".join(("drafts", *disabled)),
            *self.model_flags(self.shaped("tiny", TINY)),
        )


def empty_card() -> None:
    """What this process still holds of a card's memory is given back, for the servers that come next."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


@contextmanager
def open_bench(device: Device, scale: Scale, supplies: Supplies) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(device=device, scale=scale, supplies=supplies, folder=Path(name))
        try:
            yield bench
        finally:
            bench.servers.close()
