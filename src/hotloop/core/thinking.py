"""What the engine is told about an answer's thoughts: which tokens mark them, and how many there may be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thinking:
    """How one answer thinks. A grammar holds for what follows the first thought, if there is one.

    prompt <think> | thought ... | closing_ids | gap_ids | answer
    """

    opening_ids: tuple[int, ...]
    closing_ids: tuple[int, ...]
    ending_ids: tuple[int, ...]
    """What ends a thought that has used up its tokens: the closing, and the space that belongs around it."""
    gap_ids: tuple[int, ...] = ()
    """What stands between the closing and an answer that follows a grammar."""
    is_open: bool = False
    """Whether the prompt has opened a thought already."""
    max_tokens: int | None = None
    """Most tokens of thoughts; none if the answer should not think."""

    @property
    def is_limited(self) -> bool:
        """Whether it may have to be ended; a thought that should not be, and that nobody opened, needs no end."""
        return self.max_tokens is not None and (self.max_tokens > 0 or self.is_open)
