"""Good models for agents, of those hotloop runs, and which of them a machine has room and speed for.

The table says what a model is and what for; memory and speed are reckoned from its shape, as `hotloop size` does.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hotloop.size.hardware import Hardware
from hotloop.size.load import Load
from hotloop.size.roofline import Estimate, estimate
from hotloop.size.shapes import SHAPES

Weights = Literal["bf16", "fp8", "int8", "int4"]


class Pick(NamedTuple):
    model: str
    """As `hotloop serve` takes it."""
    shape: str
    good_for: str


PICKS = (
    # From the weakest to the strongest; docs/models.md has the same table.
    Pick("Qwen/Qwen3-0.6B", "qwen3-0.6b", "trying things out"),
    Pick("Qwen/Qwen2.5-Coder-1.5B-Instruct", "qwen2.5-1.5b", "completing code"),
    Pick("Qwen/Qwen3-1.7B", "qwen3-1.7b", "short tool loops"),
    Pick("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b", "long tool loops"),
    Pick("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b", "writing code"),
    Pick("Qwen/Qwen3-8B", "qwen3-8b", "agents that plan"),
    Pick("Qwen/Qwen3-14B", "qwen3-14b", "agents that plan"),
    Pick("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b", "writing code"),
    Pick("Qwen/Qwen3-32B", "qwen3-32b", "agents that plan"),
    Pick("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b", "knowledge (gated)"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    pick: Pick
    weights: Weights
    """The first of what the hardware takes that fits."""
    is_default: bool
    """Whether `--weights` need not be said."""
    estimate: Estimate

    @property
    def command(self) -> str:
        return f"hotloop serve {self.pick.model}" + ("" if self.is_default else f" --weights {self.weights}")

    @property
    def needed_bytes(self) -> int:
        """Weights, working memory, and KV of all sessions."""
        memory = self.estimate.memory
        kv_bytes = self.estimate.load.sessions * memory.session_bytes
        return memory.weights_bytes + self.estimate.hardware.working_bytes + kv_bytes


def choose(hardware: Hardware, load: Load, picks: Iterable[Pick] = PICKS) -> list[Choice]:
    """Those models that hold every session in the memory of the device, from the weakest to the strongest."""
    formats: tuple[Weights, ...] = ("bf16", "fp8") if hardware.link_bytes_s else ("int8", "int4")
    chosen = []
    for pick in picks:
        spec = SHAPES[pick.shape]
        if load.context + load.tokens_out > spec.max_context:
            continue
        tried = [estimate(spec, hardware, replace(load, weights=weights)) for weights in formats]
        fitting = next((each for each in tried if each.memory.num_device >= load.sessions), None)
        if fitting:
            weights = formats[tried.index(fitting)]
            chosen.append(Choice(pick, weights, weights == formats[0], fitting))
    return chosen


def best(choices: Iterable[Choice], min_tokens_s: float) -> Choice | None:
    """The strongest that is quick enough for each user with all of them at work."""
    quick = [each for each in choices if each.estimate.latency and each.estimate.latency.tokens_s_user >= min_tokens_s]
    return quick[-1] if quick else None
