"""From the files of AWQ, GPTQ and compressed-tensors to the one layout of `int4`, on the device.

Files travel as they are. Where columns are in groups by activation, not by place, they are put in the order of their
groups, and whatever meets them is, too.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotloop.backends.cuda.quant.dequantise import FLOATS, dequantise
from hotloop.backends.cuda.quant.int4 import Int4Matrix
from hotloop.core.errors import ConfigError, ModelError
from hotloop.models.int4 import unpack_int4
from hotloop.models.layout import share_begin
from hotloop.models.spec import Fp8Stored, Int4Stored

Upload = Callable[[NDArray[np.uint8]], Tensor]
"""Rows of bytes, on the device."""


def room_for(stored: Sequence[Int4Stored], num_rows: int, num_columns: int, device: torch.device) -> Int4Matrix:
    """Room for matrices one below the other, or for a rank's share of them: whole groups of columns."""
    first = stored[0]
    group_size = first.spec.group_size
    if group_size and num_columns % group_size:
        num_gpus = first.shape[1] // num_columns
        raise ConfigError(f"{first.shape[1]} columns in groups of {group_size} cannot be split over {num_gpus} GPUs")
    order = None
    if first.group_ids is not None:
        if num_columns != first.shape[1]:
            raise ConfigError("weights in the order of activations (desc_act) cannot be split over several GPUs")
        order = torch.from_numpy(np.argsort(first.group_ids, kind="stable")).to(device)
    if any(not np.array_equal(each.group_ids, first.group_ids) for each in stored):  # type: ignore[arg-type]
        raise ModelError("matrices that have their input in common have columns in different groups (g_idx)")
    scale_dtype = FLOATS[first.scales.kind]
    return Int4Matrix.empty(num_rows, num_columns, group_size, device=device, scale_dtype=scale_dtype, order=order)


def repack(stored: Int4Stored, place: Int4Matrix, rank: int, upload: Upload) -> None:
    (num_rows, num_columns), size = place.shape, stored.spec.group_size
    row = share_begin(stored.shape[0], num_rows, rank)
    column = share_begin(stored.shape[1], num_columns, rank)
    rows, columns = slice(row, row + num_rows), slice(column, column + num_columns)
    groups = slice(column // size, (column + num_columns) // size) if size else slice(None)
    words, packed_zeros = (_words(part, upload) for part in (stored.words, stored.zeros))
    stored_scales = dequantise(upload(stored.scales.data), stored.scales.kind)
    numbers, zeros, scales = unpack_int4(stored.spec, words, packed_zeros, stored_scales, _stack)
    if place.order is not None:
        numbers = numbers[:, place.order]
    own_zeros = zeros if isinstance(zeros, int) else zeros[rows, groups]
    place.fill(numbers[rows, columns], own_zeros, scales[rows, groups])


def dequantise_stored(stored: Int4Stored, upload: Upload, device: torch.device) -> Tensor:
    """All of a matrix in float32."""
    whole = room_for([stored], *stored.shape, device)
    repack(stored, whole, 0, upload)
    return whole.dequantised()


def fp8_rows(
    stored: Fp8Stored, shape: Sequence[int], rank: int, buffer: Tensor
) -> Iterator[tuple[slice, NDArray[np.uint8], Tensor, Tensor]]:
    """A rank's share of a matrix in e4m3, as many rows at a time as fit into a buffer on the device: which of the
    share, their bytes, their scales [rows, groups], and the group of each column.
    """
    num_rows, width = shape
    row, column = (share_begin(*sizes, rank) for sizes in zip(stored.shape, shape, strict=True))
    step, device = len(buffer) // width, buffer.device
    assert step > 0, "a row fits into a buffer"
    groups = torch.arange(column, column + width, device=device) // stored.group_size
    for begin in range(0, num_rows, step):
        part = slice(begin, min(begin + step, num_rows))
        rows = slice(row + part.start, row + part.stop)
        scales = torch.tensor(stored.scales[rows], device=device)
        yield part, stored.data[rows, column : column + width], scales, groups


def _words(part: NDArray[np.int32] | None, upload: Upload) -> Tensor | None:
    return None if part is None else upload(part.view(np.uint8)).view(torch.int32)


def _stack(parts: list[Tensor], axis: int) -> Tensor:
    return torch.stack([part.to(torch.uint8) for part in parts], axis)
