"""How much of a test is in `make test`: of a property a quarter of the examples, of random tests a third of the seeds,
of a test with many costly cases each n-th of them.
"""

from collections import Counter
from collections.abc import Sequence
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


def mark_sampled(items: Sequence[pytest.Item]) -> None:
    """Marked `sampled(n)`, all but each n-th case is long."""
    places = Counter[str]()
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            function = item.nodeid.partition("[")[0]
            if places[function] % mark.args[0]:
                item.add_marker(pytest.mark.long)
            places[function] += 1
