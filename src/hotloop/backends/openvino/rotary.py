"""Rotary positions: how fast each pair of a head's dimensions turns."""

import numpy as np
from numpy.typing import NDArray

from hotloop.models.spec import ModelSpec, RopeScaling


def rotary_frequencies(spec: ModelSpec) -> NDArray[np.float32]:
    """Radians a token, for each pair of dimensions."""
    exponents = np.arange(0, spec.head_dim, 2, dtype=np.float64) / spec.head_dim
    frequencies = spec.rope_theta**-exponents
    if spec.rope_scaling:
        frequencies = _stretch(frequencies, spec.rope_scaling)
    return frequencies.astype(np.float32)


def rotary_table(spec: ModelSpec) -> NDArray[np.float32]:
    """For each position of the context the cosines, then the sines, of every pair."""
    angles = np.outer(np.arange(spec.max_context), rotary_frequencies(spec).astype(np.float64))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def _stretch(frequencies: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Llama 3: slow turns are slowed by `factor`, fast ones kept, those between blended by wavelength."""
    turns = scaling.original_context * frequencies / (2 * np.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
