"""gpt-oss's experts as they are published."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.models.tiny import write_json
from tests.parity.models import CONFIGS, published_shapes, tensor

from hotloop.core.errors import ModelError
from hotloop.models.huggingface import SafetensorsWeights, config_spec

QUANTISED = CONFIGS["gpt_oss"] | {"quantization_config": {"quant_method": "mxfp4"}}


def write_packed(folder: Path, **changes: object) -> dict[str, np.ndarray]:
    """A folder with experts in MXFP4, and what is in it."""
    folder.mkdir()
    write_json(folder / "config.json", QUANTISED | changes)
    spec = config_spec(folder)
    tensors: dict[str, np.ndarray] = {}
    random = np.random.default_rng(0)
    for name, shape in published_shapes(spec).items():
        if name.endswith("_proj") and len(shape) == 3:
            count, num_in, num_out = shape
            tensors[f"{name}_blocks"] = random.integers(0, 256, (count, num_out, num_in // 32, 16), np.uint8)
            tensors[f"{name}_scales"] = random.integers(120, 130, (count, num_out, num_in // 32), np.uint8)
        else:
            tensors[name] = tensor(name, shape)
    save_file(tensors, folder / "model.safetensors")
    return tensors


VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def dequantised(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[out, in]: one of sixteen numbers times a power of two; a byte has two neighbours, the first in its low half."""
    pairs = np.stack([VALUES[blocks & 15], VALUES[blocks >> 4]], axis=-1)
    return (pairs.reshape(*scales.shape, 32) * 2.0 ** (scales.astype(int) - 127)[..., None]).reshape(len(scales), -1)


def test_gate_and_up_are_every_second_row_of_packed_experts(tmp_path: Path) -> None:
    tensors = write_packed(tmp_path / "m")
    weights = SafetensorsWeights(tmp_path / "m", config_spec(tmp_path / "m"))
    name = "model.layers.1.mlp.experts.gate_up_proj"
    whole = dequantised(tensors[f"{name}_blocks"][2], tensors[f"{name}_scales"][2])
    np.testing.assert_array_equal(weights.read("layers.1.experts.2.gate"), whole[0::2])
    np.testing.assert_array_equal(weights.read("layers.1.experts.2.up"), whole[1::2])
    np.testing.assert_array_equal(weights.read("layers.1.experts.2.up_bias"), tensors[f"{name}_bias"][2, 1::2])
    down = weights.stored("layers.0.experts.5.down")
    assert (down.kind, down.shape) == ("MXFP4", (64, 96))


def test_a_folder_that_lacks_scales_is_refused(tmp_path: Path) -> None:
    tensors = write_packed(tmp_path / "m")
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    with pytest.raises(ModelError, match=r"layers.1.mlp.experts.down_proj_scales is missing"):
        SafetensorsWeights(tmp_path / "m", config_spec(tmp_path / "m"))
