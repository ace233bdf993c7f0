"""How many examples a property is tried with, and how many seeds a random test."""

from typing import Any

import pytest
from hypothesis import settings

USUAL, FEW = 40, 10
LEAST = 5


def examples(count: int) -> int:
    """So many, or in `make test` a quarter of them: as the profile has more or fewer than is usual."""
    share = settings().max_examples / USUAL
    return max(min(count, LEAST), round(count * share))


def seeds(count: int) -> list[Any]:
    """So many, of which `make test` takes a third."""
    few = -(-count // 3)
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(few, count))]
