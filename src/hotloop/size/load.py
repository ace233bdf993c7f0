"""What is load of the hardware. Light to import: the command line makes its flags from it."""

from dataclasses import asdict, dataclass
from typing import Literal

from hotloop.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Sessions that each take a turn, wait, and take the next."""

    sessions: int = 64
    """Concurrent agents."""
    context: int = 8192
    """Prompt tokens per turn, history included."""
    tokens_in: int = 512
    """New prompt tokens per turn: tool result or user message."""
    tokens_out: int = 128
    """Output tokens per turn."""
    gap_s: float = 2.0
    """Seconds from the end of an answer to the next turn."""
    weights: Literal["bf16", "fp8", "int8", "int4"] = "bf16"
    """Weight format."""
    kv: Literal["bf16", "fp8", "int8"] = "bf16"
    """KV-cache format: fp8 is for a GPU, int8 for a CPU."""

    def check(self, max_context: int) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, int | float) and value < (name != "gap_s"):
                raise ConfigError(f"{name} cannot be {value}")
        if self.tokens_in > self.context:
            raise ConfigError(f"a turn of {self.tokens_in} new tokens does not fit a context of {self.context}")
        if self.context + self.tokens_out > max_context:
            load = f"{self.context} tokens of context and {self.tokens_out} of answer"
            raise ConfigError(f"{load} are more than the model's {max_context}")
