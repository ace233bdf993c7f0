"""What the engine is told about an answer's reasoning: which tokens mark it, and how many there may be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How one answer reasons. A grammar holds for what follows the first reasoning, if there is any.

    prompt <think> | reasoning ... | closing_ids | gap_ids | answer
    """

    opening_ids: tuple[int, ...]
    closing_ids: tuple[int, ...]
    ending_ids: tuple[int, ...]
    """What ends reasoning that has used up its tokens: the closing, and the space that belongs around it."""
    gap_ids: tuple[int, ...] = ()
    """What stands between the closing and an answer that follows a grammar."""
    is_open: bool = False
    """Whether the prompt has opened it already."""
    max_tokens: int | None = None
    """Most tokens of reasoning; 0 if the answer should have none."""

    @property
    def is_limited(self) -> bool:
        """Whether it may have to be ended; what should not be, and nobody opened, needs no end."""
        return self.max_tokens is not None and (self.max_tokens > 0 or self.is_open)
