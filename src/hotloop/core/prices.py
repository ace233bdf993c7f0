"""What tokens cost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Money a million tokens cost."""

    prompt: float = 0.0
    cached: float = 0.0
    output: float = 0.0

    def cost(self, num_prompt: int, num_cached: int, num_output: int) -> float:
        """The prompt includes what was cached."""
        num_new = num_prompt - num_cached
        return (num_new * self.prompt + num_cached * self.cached + num_output * self.output) / 1e6
