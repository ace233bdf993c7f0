"""Blocks of random bytes, unpacked by us and by the `gguf` package: the same numbers to the last bit."""

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from hotloop.backends.cuda.quant.dequantise import can_dequantise, dequantise

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")


def random_rows(kind: GGMLQuantizationType, num_rows: int, num_blocks: int) -> np.ndarray:
    """Any bytes are valid blocks, but a scale that is not a number is no scale: those are left out."""
    num_bytes = GGML_QUANT_SIZES[kind][1]
    blocks = np.random.default_rng(int(kind)).integers(0, 256, (num_rows * num_blocks * 4, num_bytes), np.uint8)
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(gguf.quants.dequantize(blocks, kind)).all(1)
    return blocks[is_finite][: num_rows * num_blocks].reshape(num_rows, -1)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_unpacked_to_the_last_bit(name: str, device: str) -> None:
    kind = GGMLQuantizationType[name]
    rows = random_rows(kind, 7, 5)
    assert len(rows) == 7
    got = dequantise(torch.from_numpy(rows).to(device), name).float().cpu().numpy()
    np.testing.assert_array_equal(got, gguf.quants.dequantize(rows, kind))


def test_other_kinds_are_left_to_others() -> None:
    assert all(map(can_dequantise, KINDS))
    assert not can_dequantise("IQ4_XS")
