"""Rotary positions: how fast each pair of a head's dimensions turns, and how that is stretched for long contexts,
however a file spells it. A kind that is not known is refused.

A scaling is kept as what it comes to: a divisor for each frequency, and the length that the turned vectors are given.
"""

from collections.abc import Mapping
from math import ceil, floor, isfinite, log, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.spec import ModelSpec, RopeScaling

_PIECE_POSITIONS = 256
_YARN_FAST, _YARN_SLOW = 32.0, 1.0  # turns within the original context


def rotary_frequencies(spec: ModelSpec) -> NDArray[np.float32]:
    """Radians a token, for each pair of dimensions; 0 for those that do not turn."""
    head_dim = spec.latent.rope_dim if spec.latent else spec.head_dim
    rotary_dim = spec.rotary_dim or head_dim
    frequencies = spec.rope_theta ** -(np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    if spec.rope_scaling:
        frequencies /= spec.rope_scaling.divisors
    still = np.zeros((head_dim - rotary_dim) // 2)
    return np.concatenate([frequencies, still], dtype=np.float32)


def rotary_table(spec: ModelSpec, num_positions: int) -> NDArray[np.float32]:
    """For each position the cosines, then the sines, of every pair.

    A position's angle is that of its piece and that within the piece: products are quicker than a cosine.
    """
    frequencies = rotary_frequencies(spec).astype(np.float64)
    magnitude = spec.rope_scaling.magnitude if spec.rope_scaling else 1
    table = np.empty((num_positions, 2, len(frequencies)), np.float32)
    within = np.exp(1j * np.outer(np.arange(min(_PIECE_POSITIONS, num_positions)), frequencies)) * magnitude
    for begin in range(0, num_positions, _PIECE_POSITIONS):  # each of which the caches have room for
        turned = within[: num_positions - begin] * np.exp(1j * begin * frequencies)
        table[begin : begin + _PIECE_POSITIONS] = np.stack((turned.real, turned.imag), axis=1)
    return table.reshape(num_positions, -1)


def scaling_from_divisors(divisors: NDArray[np.float32], head_dim: int, where: str) -> RopeScaling:
    """As a GGUF has them (`rope_freqs`)."""
    if divisors.shape != (head_dim // 2,) or not (divisors > 0).all():
        raise ModelError(f"{where}: its rotary scaling (rope_freqs) should be {head_dim // 2} numbers above zero")
    return RopeScaling(tuple(divisors.tolist()))


def scaling_from_config(
    config: Mapping[str, Any], *, theta: float, head_dim: int, max_context: int, where: str
) -> RopeScaling | None:
    kind = config.get("rope_type", config.get("type", "default"))
    if kind in ("default", "dynamic"):  # which changes nothing up to the context that the model was made for
        return None
    kinds = {"linear": _linear, "llama3": _llama3, "longrope": _longrope, "su": _longrope, "yarn": _yarn}
    if kind not in kinds:
        only = ", ".join(("default", "dynamic", *kinds))
        raise ModelError(f"{where}: rotary scaling of type {kind!r} is not supported (only {only} are)")
    wavelengths = 2 * pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    try:
        scaling = kinds[kind]({"original_max_position_embeddings": max_context, **config}, wavelengths, max_context)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{where}: its {kind} rotary scaling is incomplete: {error}") from None
    numbers = (*scaling.divisors, scaling.magnitude)
    if len(scaling.divisors) != len(wavelengths) or not all(isfinite(each) and each > 0 for each in numbers):
        raise ModelError(f"{where}: its {kind} rotary scaling is invalid: {dict(config)!r:.200}")
    return scaling


def stretched_context(config: Mapping[str, Any], max_context: int) -> int:
    """YaRN is given as a factor of the context that the model was made for, which a config may still call the most."""
    original, factor = config.get("original_max_position_embeddings"), config.get("factor")
    is_yarn = config.get("rope_type", config.get("type")) == "yarn"
    if not is_yarn or not isinstance(original, int) or not isinstance(factor, int | float):
        return max_context
    return max(max_context, int(original * factor))


def _linear(config: Mapping[str, Any], wavelengths: NDArray[np.float64], max_context: int) -> RopeScaling:
    return RopeScaling((float(config["factor"]),) * len(wavelengths))


def _llama3(config: Mapping[str, Any], wavelengths: NDArray[np.float64], max_context: int) -> RopeScaling:
    """1 for the fast ones, `factor` for the slow, a ramp between."""
    low, high = float(config["low_freq_factor"]), float(config["high_freq_factor"])
    if not 0 < low < high:
        return RopeScaling(())
    turns = int(config["original_max_position_embeddings"]) / wavelengths
    return _blend(np.clip((turns - low) / (high - low), 0, 1), float(config["factor"]))


def _yarn(config: Mapping[str, Any], wavelengths: NDArray[np.float64], max_context: int) -> RopeScaling:
    """The same, by a ramp over dimensions instead of turns, and longer vectors to make up for flatter scores."""
    original, head_dim = int(config["original_max_position_embeddings"]), 2 * len(wavelengths)
    factor = float(config.get("factor") or max_context / original)
    log_theta = log(wavelengths[1] / wavelengths[0]) * head_dim / 2

    def dimension(num_turns: float) -> float:
        return head_dim * log(original / (num_turns * 2 * pi)) / (2 * log_theta)

    low = dimension(float(config.get("beta_fast") or _YARN_FAST))
    high = dimension(float(config.get("beta_slow") or _YARN_SLOW))
    if config.get("truncate", True):
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (np.arange(len(wavelengths)) - low) / (high - low or 0.001)
    magnitude = config.get("attention_factor")
    if magnitude is None:
        upper, lower = config.get("mscale"), config.get("mscale_all_dim")
        is_given = upper and lower
        magnitude = yarn_length(factor, upper) / yarn_length(factor, lower) if is_given else yarn_length(factor, 1.0)
    return _blend(1 - np.clip(ramp, 0, 1), factor, float(magnitude))


def yarn_length(factor: float, weight: Any) -> float:
    return 0.1 * float(weight) * log(factor) + 1 if factor > 1 else 1.0


def _longrope(config: Mapping[str, Any], wavelengths: NDArray[np.float64], max_context: int) -> RopeScaling:
    """Divisors as given. Keys are kept, so those for long texts are used for all, if the context is long at all."""
    original = int(config["original_max_position_embeddings"])
    divisors = config["long_factor" if max_context > original else "short_factor"]
    factor = float(config.get("factor") or max_context / original)
    magnitude = config.get("attention_factor")
    if magnitude is None:
        magnitude = sqrt(1 + log(factor) / log(original)) if factor > 1 else 1.0
    return RopeScaling(tuple(map(float, divisors)), float(magnitude))


def _blend(kept: NDArray[np.float64], factor: float, magnitude: float = 1.0) -> RopeScaling:
    """Frequencies of which that share is left as it is, the rest divided."""
    return RopeScaling(tuple((1 / ((1 - kept) / factor + kept)).tolist()), magnitude)
