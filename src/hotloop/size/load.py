"""What is load of the hardware. Light to import: the command line makes its flags from it."""

from dataclasses import asdict, dataclass
from typing import Literal

from hotloop.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Sessions that each take a turn, wait, and take the next."""

    sessions: int = 64
    """Agents at once."""
    context: int = 8192
    """Tokens of a turn's prompt, history and new ones together."""
    tokens_in: int = 512
    """New tokens of a turn: what the tool or the user said."""
    tokens_out: int = 128
    """Tokens of an answer."""
    gap_s: float = 2.0
    """Seconds from the end of an answer to the next turn: a tool, or a user."""
    weights: Literal["bf16", "fp8", "int8", "int4"] = "bf16"
    """What the weights are stored in."""
    kv: Literal["bf16", "fp8", "int8"] = "bf16"
    """What keys and values are stored in: fp8 is for a GPU, int8 for a CPU."""

    def check(self, max_context: int) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, int | float) and value < (name != "gap_s"):
                raise ConfigError(f"{name} cannot be {value}")
        if self.tokens_in > self.context:
            raise ConfigError(f"a turn of {self.tokens_in} new tokens does not fit a context of {self.context}")
        if self.context + self.tokens_out > max_context:
            load = f"{self.context} tokens of context and {self.tokens_out} of answer"
            raise ConfigError(f"{load} are more than the model's {max_context}")
