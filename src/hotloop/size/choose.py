"""Which hardware: every GPU of the table with as many of its kind as the load needs, and the cheapest that will do."""

from collections.abc import Iterable, Sequence

from hotloop.core.errors import ConfigError
from hotloop.models.spec import ModelSpec
from hotloop.size.hardware import Hardware
from hotloop.size.load import Load
from hotloop.size.roofline import Estimate, estimate

_COUNTS = (1, 2, 4, 8)


def estimate_all(
    spec: ModelSpec, load: Load, hardware: Iterable[Hardware], *, num_gpus: int | None, min_tokens_s: float
) -> list[Estimate]:
    """With `num_gpus` of each, or with as few as keep up; with the most, if not even they do."""
    counts = [num_gpus] if num_gpus else [count for count in _COUNTS if not spec.num_kv_heads % count]
    if spec.num_kv_heads % counts[-1]:
        raise ConfigError(f"{spec.num_kv_heads} heads of keys and values cannot be split over {num_gpus} GPUs")
    tried = [[estimate(spec, each.several(count), load) for count in counts] for each in hardware]
    return [next((one for one in each if one.keeps_up(min_tokens_s)), each[-1]) for each in tried]


def cheapest(estimates: Sequence[Estimate], min_tokens_s: float) -> Estimate | None:
    """For 1,000 turns, of those that keep up and that hotloop runs on."""
    able = [each for each in estimates if each.hardware.is_supported and each.keeps_up(min_tokens_s)]
    return min(able, key=lambda each: each.cost_1000_turns or 0.0, default=None)
