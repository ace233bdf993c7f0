"""How much memory a model takes, reckoned from its shape before any of it is read, and whether there is as much.

A model that does not fit is refused in one line with the whole sum in it, and the setting that would make it fit.
Knows no backend: how often one holds its weights, and what a GPU has, is handed in.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from hotloop.core.config import WeightFormat
from hotloop.core.errors import ConfigError, ModelError
from hotloop.models.layout import each_shape, outer_shapes, share_of
from hotloop.models.spec import ModelSpec

INT4_GROUP = 32  # weights that share a scale and a zero point
INT4_PIECE = 256  # columns of a checkpoint in four bits that a GPU holds together; a row is a whole number of pieces
RESUME_TOKENS = 2048  # layers with a window have room for a place to go on from for so many tokens of KV
_STATE_TOKENS = 1024  # a hybrid has room for a state for so many tokens of KV
MIN_STATES = 8
INT8_SCALE_BYTES = 4  # of the keys of a token and head in int8, and as much of its values
_LEAST_KV_BYTES = 64 << 20  # less is not worth advising

# Of a control group, version 2 and version 1: its limit, what it uses, and how much of that is files it could drop.
_CONTROL_GROUPS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def weight_bytes(spec: ModelSpec, weight_format: WeightFormat) -> int:
    if spec.num_weights:
        return spec.num_weights * (4 if weight_format == "f32" else 2)
    outer = sum(_tensor_bytes(name, shape, weight_format) for name, shape in _outer_shapes(spec, weight_format).items())
    return outer + sum(count * _tensor_bytes(name, shape, weight_format) for name, shape, count in each_shape(spec))


def gpu_weight_bytes(spec: ModelSpec, weight_format: WeightFormat, num_gpus: int) -> int:
    """What each of several GPUs holds of the weights: its share of the layers and of the head, and all of the rest.

    Matrices that the files hold in four bits are held so, unless that format is fp8; of experts those in MXFP4. Those
    in e4m3 are held so in any case, but for hybrids; such files are taken to leave routers, embedding and head alone.
    """
    if spec.num_weights:
        return weight_bytes(spec, weight_format)
    whole = _outer_shapes(spec, weight_format)
    head = _tensor_bytes("head", whole["head"], weight_format) if "head" in whole else 0
    share = share_of(spec, num_gpus)
    total = weight_bytes(share, weight_format) - head + -(-head // num_gpus)
    if share.experts and share.experts.is_mxfp4 and weight_format != "fp8":
        total -= sum(
            count * (_tensor_bytes(name, shape, weight_format) - prod(shape) * 17 // 32)
            for name, shape, count in each_shape(share)
            if name.startswith("experts.") and len(shape) == 2
        )
    if spec.fp8 and not spec.linear and weight_format != "fp8":
        for name, shape, count in each_shape(share):
            if len(shape) == 2 and name not in ("router", "kv_b"):
                total -= count * (_tensor_bytes(name, shape, weight_format) - _tensor_bytes(name, shape, "fp8"))
    if spec.int4 and weight_format != "fp8":
        for name, shape, count in each_shape(share):
            if len(shape) == 2 and not name.startswith(("router", "experts.")):
                total -= count * (_tensor_bytes(name, shape, weight_format) - _int4_bytes(shape, spec.int4.group_size))
    return total


def kv_token_bytes(spec: ModelSpec, item_bytes: int = 2, scale_bytes: int = 0) -> int:
    """Of keys and values, or of latents where they are made from these. Keys and values of a head have a scale each."""
    num_layers = spec.num_kv_layers
    if spec.latent:
        return num_layers * spec.latent.width * item_bytes
    return 2 * num_layers * spec.num_kv_heads * (spec.head_dim * item_bytes + scale_bytes)


def split_kv(
    spec: ModelSpec, kv_bytes: int, item_bytes: int, block_size: int, step_tokens: int, scale_bytes: int = 0
) -> tuple[int, int]:
    """How many blocks fit into so much memory, and how many there are of layers with a window: these need those that
    somebody sees, or goes on from, at a place for every RESUME_TOKENS tokens. 0: as many as of the others.
    """
    windows = [window for window in spec.windows if window]
    block_bytes = block_size * kv_token_bytes(spec, item_bytes, scale_bytes)
    own_bytes = block_bytes * len(windows) // max(1, len(spec.kv_layers))
    plain = kv_bytes // block_bytes
    if not windows or own_bytes == block_bytes or spec.linear or spec.latent:
        return plain, 0
    seen = -(-max(windows) // block_size)
    share = (seen + 2) * block_size / RESUME_TOKENS
    num_own = int(kv_bytes * share // (block_bytes - own_bytes + share * own_bytes))
    num_own = max(num_own, 2 * -(-step_tokens // block_size) + seen + 2)
    num_blocks = (kv_bytes - num_own * own_bytes) // (block_bytes - own_bytes)
    return (num_blocks, num_own) if num_blocks > plain else (plain, 0)


def state_bytes(spec: ModelSpec) -> int:
    """Of the recurrent state of a hybrid after one token, in float32."""
    if not spec.linear:
        return 0
    memory = spec.linear.value_size * spec.linear.key_dim
    return 4 * len(spec.linear.layers) * (memory + (spec.linear.conv_width - 1) * spec.linear.conv_size)


def num_states(spec: ModelSpec, kv_bytes: int, item_bytes: int = 2, scale_bytes: int = 0) -> int:
    """Slots for the recurrent states of a hybrid that a part of the memory for KV is given to."""
    if not spec.linear:
        return 0
    token_bytes = kv_token_bytes(spec, item_bytes, scale_bytes)
    return max(MIN_STATES, kv_bytes // (state_bytes(spec) + _STATE_TOKENS * token_bytes))


def check_fits(name: str, parts: Mapping[str, int], free_bytes: int, *, have: str, advice: str = "") -> None:
    """Refuse a model whose parts, in bytes, are more than there is: with ConfigError if a setting can change that."""
    total_bytes = sum(parts.values())
    if total_bytes <= free_bytes:
        return
    line = f"{name} does not fit: {_sum_of(parts)}, but {have}"
    if advice:
        raise ConfigError(f"{line}; {advice}")
    raise ModelError(f"{line}; no setting changes that, only a smaller model or more memory")


def _sum_of(parts: Mapping[str, int]) -> str:
    need = " + ".join(f"{part} {gib(size)}" for part, size in parts.items())
    return f"{need} = {gib(sum(parts.values()))}"


def check_fits_cpu(
    name: str,
    held_bytes: Callable[[WeightFormat], int],
    weight_format: WeightFormat,
    others: Sequence[WeightFormat],
    *,
    kv_bytes: int,
    working_bytes: int,
    free_bytes: int,
) -> str:
    """What a model takes, in words. Refuses one that the machine has no memory for. `held_bytes` is what its weights
    take in a format, which takes a while to say and is asked of others only where this one does not fit.
    """
    parts, advice = {"weights": held_bytes(weight_format), "KV": kv_bytes, "working memory": working_bytes}, ""
    if sum(parts.values()) > free_bytes:
        left_bytes = free_bytes - parts["weights"] - working_bytes
        smaller = [other for other in others if held_bytes(other) + kv_bytes + working_bytes <= free_bytes]
        ways = [f"--kv-memory {left_bytes >> 20}MiB"] if left_bytes >= _LEAST_KV_BYTES else []
        ways += [f"--weights {smaller[0]}"] if smaller else []
        advice = f"{' or '.join(ways)} would fit" if ways else ""
    check_fits(name, parts, free_bytes, have=f"this machine has only {gib(free_bytes)} free", advice=advice)
    return f"{_sum_of(parts)} of {gib(free_bytes)} free"


def fit_kv_gpu(
    name: str,
    spec: ModelSpec,
    *,
    total_bytes: int,
    free_bytes: int,
    share: float,
    working_bytes: int,
    min_tokens: int,
    weight_format: WeightFormat = "bf16",
    kv_item_bytes: int = 2,
    draft_spec: ModelSpec | None = None,
    num_gpus: int = 1,
) -> int:
    """The bytes a GPU has left for KV beside weights and working memory. Refuses a model if `min_tokens` do not fit.

    [ others' | weights | working | KV .............. | kept free ]
              ^ total - free                          ^ after `share` of the total, or at the end

    A draft model (`draft_spec`) gets room for its weights, and for KV of as many tokens. Of several GPUs this is one,
    with its share of weights and KV.
    """
    own_bytes = token_bytes = kv_token_bytes(share_of(spec, num_gpus), kv_item_bytes)
    weights_bytes = gpu_weight_bytes(spec, weight_format, num_gpus)
    if draft_spec:
        weights_bytes += gpu_weight_bytes(draft_spec, weight_format, 1)
        token_bytes += kv_token_bytes(draft_spec, kv_item_bytes)
    least_bytes = min_tokens * token_bytes + MIN_STATES * state_bytes(spec)
    parts = {"weights": weights_bytes, "KV": least_bytes, "working memory": working_bytes}
    need_bytes = sum(parts.values())
    allowed_bytes = min(int(total_bytes * share), free_bytes)
    left_bytes = allowed_bytes - weights_bytes - working_bytes
    advice = ""
    if need_bytes <= free_bytes:
        advice = f"--gpu-memory {-(-need_bytes * 100 // total_bytes) / 100:g} would fit"
    elif left_bytes >= _LEAST_KV_BYTES:
        advice = f"--max-context {left_bytes // token_bytes} would fit"
    have = f"--gpu-memory {share:g} of a GPU of {gib(total_bytes)}, {gib(free_bytes)} free, is {gib(allowed_bytes)}"
    check_fits(name, parts, allowed_bytes, have=have, advice=advice)
    return left_bytes * own_bytes // token_bytes


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can be had without taking it from anybody: the machine's, or less where a container has a limit."""
    kib = _numbers(root / "proc/meminfo").get("MemAvailable:")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if kib is None else kib * 1024
    return min(machine, *(_group_bytes(root / "sys/fs/cgroup", *names, default=machine) for names in _CONTROL_GROUPS))


def _group_bytes(folder: Path, limit: str, usage: str, stat: str, droppable: str, *, default: int) -> int:
    """What the container may still take."""
    most, used = _numbers(folder / limit).get(""), _numbers(folder / usage).get("")
    if most is None or used is None:
        return default
    return max(0, most - used + _numbers(folder / stat).get(droppable, 0))


def _outer_shapes(spec: ModelSpec, weight_format: WeightFormat) -> dict[str, tuple[int, ...]]:
    """With fp8 the head is held by itself, in int8, even if it is the embedding as well."""
    return outer_shapes(replace(spec, has_tied_head=False) if weight_format == "fp8" else spec)


def _tensor_bytes(name: str, shape: tuple[int, ...], weight_format: WeightFormat) -> int:
    """As the CPU backend holds it: vectors in float32, as what makes keys and values of latents, and the embedding,
    which is looked up, never below int8.

    fp8 is the GPU's, which leaves the embedding, routers and what latents are multiplied with in bf16.
    """
    count = prod(shape)
    if len(shape) == 1 or weight_format == "f32" or (name == "kv_b" and weight_format in ("int8", "int4")):
        return 4 * count
    if weight_format == "bf16" or (weight_format == "fp8" and name in ("embed", "router", "kv_b")):
        return 2 * count
    if weight_format == "fp8":
        return count + 4 * shape[0]
    if weight_format == "int4" and name != "embed" and shape[1] % INT4_GROUP == 0:
        return count // 2 + count // INT4_GROUP * 5 // 2  # a scale of two bytes and half a byte of zero point a group
    return count + 2 * shape[0]


def _int4_bytes(shape: tuple[int, ...], group_size: int | None) -> int:
    """As a GPU holds a matrix: words of eight, and of a group a scale and a zero point of two bytes each."""
    num_rows, num_columns = shape
    num_pieces, num_groups = -(-num_columns // INT4_PIECE), -(-num_columns // (group_size or num_columns))
    return num_rows * (num_pieces * INT4_PIECE // 2 + 4 * num_groups)


def _numbers(path: Path) -> dict[str, int]:
    """The number of each line by the word before it, or by no word; none if the file is not there."""
    try:
        text = path.read_text()
    except OSError:
        return {}
    return {name: int(number) for name, number in re.findall(r"^(?:(\S+)\s+)?(\d+)\b", text, re.MULTILINE)}


def gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"
