"""Rotary positions: how fast each pair of a head's dimensions turns, and which stretched frequencies are understood,
however a file spells them. Every other kind is refused.
"""

from collections.abc import Mapping
from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.spec import ModelSpec, RopeScaling

# A GGUF carries Llama 3's scaling only as its result; every such model was made with these.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192


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


def frequency_divisors(scaling: RopeScaling, theta: float, head_dim: int) -> NDArray[np.float64]:
    """What each rotary frequency is divided by: 1 for the fast ones, `factor` for the slow, a ramp between."""
    wavelengths = 2 * pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling.original_context / wavelengths
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    ramp = np.clip(ramp, 0, 1)
    return np.asarray(1 / ((1 - ramp) / scaling.factor + ramp))


def scaling_from_divisors(divisors: NDArray[np.float32], theta: float, head_dim: int, where: str) -> RopeScaling:
    """Find the scaling that gives these divisors (a GGUF's `rope_freqs`)."""
    if divisors.size and divisors.shape == (head_dim // 2,) and theta > 0:
        scaling = RopeScaling(float(divisors.max()), _LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT)
        if np.allclose(divisors, frequency_divisors(scaling, theta, head_dim), rtol=1e-3):
            return scaling
    raise ModelError(f"{where}: its rotary scaling (rope_freqs) is not Llama 3's, the only one supported")


def scaling_from_config(config: Mapping[str, Any], where: str) -> RopeScaling | None:
    kind = config.get("rope_type", config.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"{where}: rotary scaling of type {kind!r} is not supported (only llama3 is)")
    try:
        return RopeScaling(
            float(config["factor"]),
            float(config["low_freq_factor"]),
            float(config["high_freq_factor"]),
            int(config["original_max_position_embeddings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{where}: its llama3 rotary scaling is incomplete: {error}") from None
