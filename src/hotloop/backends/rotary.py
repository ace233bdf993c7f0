"""Rotary positions: how fast each pair of a head's dimensions turns."""

import numpy as np
from numpy.typing import NDArray

from hotloop.models.rope import frequency_divisors
from hotloop.models.spec import ModelSpec


def rotary_frequencies(spec: ModelSpec) -> NDArray[np.float32]:
    """Radians a token, for each pair of dimensions."""
    frequencies = spec.rope_theta ** -(np.arange(0, spec.head_dim, 2, dtype=np.float64) / spec.head_dim)
    if spec.rope_scaling:
        frequencies /= frequency_divisors(spec.rope_scaling, spec.rope_theta, spec.head_dim)
    return frequencies.astype(np.float32)


def rotary_table(spec: ModelSpec, num_positions: int) -> NDArray[np.float32]:
    """For each position the cosines, then the sines, of every pair."""
    angles = np.outer(np.arange(num_positions), rotary_frequencies(spec).astype(np.float64))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1, dtype=np.float32)
