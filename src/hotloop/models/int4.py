"""Matrices in four bits, as AWQ, GPTQ and compressed-tensors write them into safetensors.

Eight numbers are in a word of 32 bits, the first in its lowest four unless said otherwise; G is the number of groups:

    AWQ (AutoAWQ, "gemm")    qweight [in, out / 8]          qzeros [G, out / 8]              scales [G, out]
    GPTQ (AutoGPTQ)          qweight [in / 8, out]          qzeros [G, out / 8]              scales [G, out]
    compressed-tensors       weight_packed [out, in / 8]    weight_zero_point [out / 8, G]   weight_scale [out, G]

A word of AWQ has its numbers in the order 0 2 4 6 1 3 5 7. GPTQ's first format stores zero points less one. GPTQ in the
order of activations says of each column which group it is in (g_idx). What is written in yet other ways is refused.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.spec import Int4Method, Int4Spec, Int4Stored

PER_WORD = 8
_SIDE_BY_SIDE = (0, 1, 2, 3, 4, 5, 6, 7)
_INTERLEAVED = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word of AWQ the numbers 0 to 7 are
_GROUP_STEP = 16  # a group is a multiple of it
_MIDDLE = 8


@dataclass(frozen=True, slots=True)
class _Layout:
    words_axis: int
    """Along which numbers were put into words."""
    zeros_axis: int
    is_transposed: bool
    """Whether matrices are [in, out]."""
    names: tuple[str, str, str, str]
    """Of words, scales, zero points and groups of columns, after the name of the module."""
    order: tuple[int, ...] = _SIDE_BY_SIDE
    """Where in a word each of eight neighbours is."""


_GPTQ_NAMES = ("qweight", "scales", "qzeros", "g_idx")
_PACKED_NAMES = ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx")
_LAYOUTS: dict[Int4Method, _Layout] = {
    "awq": _Layout(1, 1, True, _GPTQ_NAMES, _INTERLEAVED),
    "gptq": _Layout(0, 1, True, _GPTQ_NAMES),
    "compressed-tensors": _Layout(1, 0, False, _PACKED_NAMES),
}


Part = Literal["words", "scales", "zeros", "group_ids"]
Shape = tuple[int, ...]


def int4_parts(
    int4: Int4Spec, hf_name: str, shape: Shape, found: Container[str], where: str
) -> dict[Part, tuple[str, Shape]]:
    """What the files call the parts of the matrix [out, in] of that name, and the shapes they must have.

    Whether it has groups of its own, the files show. Raises ModelError if there can be no such matrix.
    """
    num_out, num_in = shape
    layout, group_size = _LAYOUTS[int4.method], int4.group_size or num_in
    if num_out % PER_WORD or num_in % PER_WORD or num_in % group_size:
        raise ModelError(f"{where}: {num_out} x {num_in} weights have no whole words or groups of {group_size}")

    def shape_of(num_columns: int, packed_axis: int | None = None) -> Shape:
        whole = [num_columns, num_out] if layout.is_transposed else [num_out, num_columns]
        if packed_axis is not None:
            whole[packed_axis] //= PER_WORD
        return tuple(whole)

    words, scales, zeros, group_ids = (hf_name.removesuffix("weight") + name for name in layout.names)
    num_groups = num_in // group_size
    parts: dict[Part, tuple[str, Shape]] = {"words": (words, shape_of(num_in, layout.words_axis))}
    parts["scales"] = scales, shape_of(num_groups)
    if int4.has_zeros:
        parts["zeros"] = zeros, shape_of(num_groups, layout.zeros_axis)
    if group_ids in found:
        parts["group_ids"] = group_ids, (num_in,)
    return parts


def check_groups(group_ids: NDArray[np.int32], group_size: int, where: str) -> NDArray[np.int32] | None:
    """The group of each column, or None if its place says it. Raises ModelError if groups are not equally large."""
    size = len(group_ids)
    if np.array_equal(group_ids, np.arange(size) // group_size):
        return None
    if not np.array_equal(np.sort(group_ids), np.arange(size) // group_size):
        raise ModelError(f"{where}: its columns are not in groups of {group_size}")
    return np.array(group_ids)


Stack = Callable[[list[Any], int], Any]


def unpack_int4(spec: Int4Spec, words: Any, zeros: Any, scales: Any, stack: Stack) -> tuple[Any, Any, Any]:
    """Numbers [out, in], and zero points (or the one that all have) and scales [out, groups] of what the files hold.

    Works on numpy's arrays and on torch's alike: `stack` is what makes bytes of several and joins them on a new axis.
    """
    layout = _LAYOUTS[spec.method]
    numbers = _unpack(words, layout.words_axis, layout.order, stack)
    zeros = _MIDDLE if zeros is None else _unpack(zeros, layout.zeros_axis, layout.order, stack)
    if spec.zero_offset:
        zeros = (zeros + spec.zero_offset) & 15  # 0 less one was stored as 15
    if not layout.is_transposed:
        return numbers, zeros, scales
    return numbers.T, zeros if isinstance(zeros, int) else zeros.T, scales.T


def _unpack(words: Any, axis: int, order: Iterable[int], stack: Stack) -> Any:
    shape = list(words.shape)
    shape[axis] *= PER_WORD
    return stack([words >> 4 * place & 15 for place in order], axis + 1).reshape(shape)


def dequantise_int4(stored: Int4Stored) -> NDArray[np.float32]:
    numbers, zeros, scales = unpack_int4(stored.spec, stored.words, stored.zeros, stored.scales.floats(), _stack)
    groups, num_in = stored.group_ids, stored.shape[1]
    if groups is None:
        groups = np.arange(num_in, dtype=np.int32) // (stored.spec.group_size or num_in)
    offsets = zeros if isinstance(zeros, int) else zeros[:, groups]
    weights: NDArray[np.float32] = (numbers.astype(np.float32) - offsets) * scales[:, groups]
    return weights


def _stack(parts: list[NDArray[Any]], axis: int) -> NDArray[np.uint8]:
    return np.stack([part.astype(np.uint8) for part in parts], axis)


def parse_int4(config: Mapping[str, Any], path: Path) -> Int4Spec | None:
    """What config.json says of weights in four bits; None if they are not quantised at all."""
    said = config.get("quantization_config")
    if said is None:
        return None
    if not isinstance(said, dict):
        raise ModelError(f"{path}: quantization_config should be an object, not {said!r:.60}")
    method = said.get("quant_method")
    where = f"{path}: {method} weights"
    match method:
        case "awq":
            said = {"version": "gemm", "zero_point": True} | said
            demand(where, said | {"version": str(said["version"]).lower()}, version=("gemm",), zero_point=(True,))
            return Int4Spec("awq", _group_size(where, said))
        case "gptq":
            return _parse_gptq(where, said)
        case "compressed-tensors":
            return _parse_packed(where, said)
    raise ModelError(
        f"{path}: weights quantised by {method!r:.60} are not supported (only {', '.join(_LAYOUTS)} and fp8 are); "
        "use the original weights, or a GGUF"
    )


def _parse_gptq(where: str, said: Mapping[str, Any]) -> Int4Spec:
    said = {"checkpoint_format": "gptq", "pack_dtype": "int32"} | dict(said)
    demand(where, said, checkpoint_format=("gptq", "gptq_v2"), pack_dtype=("int32",))
    dynamic = said.get("dynamic") or {}  # rules that leave a module as it was show in the files
    if not isinstance(dynamic, dict) or any(not str(rule).startswith("-") for rule in dynamic):
        raise ModelError(f"{where} with rules of their own for some modules (dynamic) are not supported")
    zero_offset = 1 if said["checkpoint_format"] == "gptq" else 0
    return Int4Spec("gptq", _group_size(where, said), zero_offset=zero_offset)


def _parse_packed(where: str, said: Mapping[str, Any]) -> Int4Spec:
    demand(where, said, format=("pack-quantized", "float-quantized"))  # the latter is in `fp8`
    scheme = only_scheme(where, said)
    if scheme.get("input_activations") or said.get("kv_cache_scheme"):
        raise ModelError(f"{where} are supported if nothing but the weights is quantised")
    weights = {"type": "int", "symmetric": True} | scheme["weights"]
    demand(where, weights, type=("int",), strategy=("group", "channel"), symmetric=(True, False))
    group_size = None if weights["strategy"] == "channel" else weights.get("group_size")
    bits = {"bits": weights.get("num_bits"), "group_size": -1 if group_size is None else group_size}
    return Int4Spec("compressed-tensors", _group_size(where, bits), has_zeros=not weights["symmetric"])


def only_scheme(where: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """How compressed-tensors says that all matrices are quantised."""
    groups = said.get("config_groups")
    schemes = [*groups.values()] if isinstance(groups, dict) else []
    if len(schemes) != 1 or not isinstance(schemes[0], dict) or not isinstance(schemes[0].get("weights"), dict):
        raise ModelError(f"{where} are supported if config_groups has one scheme, with weights in it")
    return schemes[0]


def demand(where: str, said: Mapping[str, Any], **allowed: tuple[Any, ...]) -> None:
    for key, values in allowed.items():
        if said.get(key) not in values:
            names = " or ".join(map(str, values))
            raise ModelError(f"{where} are supported if {key} is {names}, not {said.get(key)!r:.60}")


def _group_size(where: str, said: Mapping[str, Any]) -> int | None:
    """None if a row is one group. Refuses weights that are not in four bits."""
    bits, group_size = said.get("bits"), said.get("group_size")
    if bits != 4:
        raise ModelError(f"{where} are supported if they have 4 bits, not {bits!r:.60}")
    if group_size == -1:
        return None
    if type(group_size) is not int or group_size <= 0 or group_size % _GROUP_STEP:
        raise ModelError(f"{where}: group_size should be -1 or a multiple of {_GROUP_STEP}, not {group_size!r:.60}")
    return group_size
