"""A local embedding without a model: hashed character n-grams, and the nearest of a few centres learnt from examples.

It sees spelling, not meaning: requests that are worded like the examples are recognised, others are not. That is what
it costs nothing for. Deterministic on every machine.
"""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from hotloop.router.tiers.config import Task

NUM_BUCKETS = 1 << 16
MAX_CHARS = 2_000
"""What is behind this says little about the task, and costs time."""

_GRAMS = (3, 4, 5)

Vector = Mapping[int, float]


def embed(text: str) -> Vector:
    """A unit vector over the buckets; frequent n-grams count less than their number. Empty for an empty text."""
    padded = f" {' '.join(text[:MAX_CHARS].lower().split())} "
    if len(padded) < min(_GRAMS):
        return {}
    grams = (padded[i : i + size] for size in _GRAMS for i in range(len(padded) - size + 1))
    counts = Counter(zlib.crc32(gram.encode()) % NUM_BUCKETS for gram in grams)
    return _unit({bucket: math.sqrt(count) for bucket, count in counts.items()})


class Centres:
    """One centre a label: the mean of its examples."""

    def __init__(self, examples: Mapping[Task, tuple[str, ...]]) -> None:
        self._centres = {label: _mean(map(embed, texts)) for label, texts in examples.items()}

    def nearest(self, text: str) -> tuple[Task, float] | None:
        """The label, and the cosine of the angle to its centre; None where nothing is alike."""
        vector = embed(text)
        cosines = {label: _dot(vector, centre) for label, centre in self._centres.items()}
        label = max(cosines, key=lambda label: cosines[label], default=None)
        return (label, cosines[label]) if label is not None and cosines[label] > 0 else None


def _dot(vector: Vector, centre: Vector) -> float:
    return sum(weight * centre.get(bucket, 0.0) for bucket, weight in vector.items())


def _mean(vectors: Iterable[Vector]) -> Vector:
    total: defaultdict[int, float] = defaultdict(float)
    for vector in vectors:
        for bucket, weight in vector.items():
            total[bucket] += weight
    return _unit(total)


def _unit(vector: Mapping[int, float]) -> Vector:
    length = math.sqrt(sum(weight * weight for weight in vector.values()))
    return {bucket: weight / length for bucket, weight in vector.items()} if length else {}
