"""What was seen of each client."""

from dataclasses import dataclass


@dataclass
class Row:
    client: str
    way: str
    num_requests: int
    cached: float | None
    """Of the prompts after the first that are its continuations."""


ROWS: list[Row] = []
