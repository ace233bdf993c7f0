"""gpt-oss from a GGUF file as llama.cpp's converter writes it: the logits of transformers, and experts in MXFP4."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.tiny import TOKENIZER
from tests.models.tiny import write_gguf
from tests.parity.manners import differences
from tests.parity.models import read_model, write_model

from hotloop.backends.cpu import open_cpu
from hotloop.core.config import EngineConfig
from hotloop.models.gguf import GgufWeights, gguf_spec, read_gguf_file
from hotloop.models.layout import tensor_places
from hotloop.models.model import Model

MXFP4 = gguf.GGMLQuantizationType.MXFP4
METADATA = {
    "gpt-oss.attention.sliding_window": 20,
    "gpt-oss.context_length": 512,
    "gpt-oss.rope.dimension_count": 16,
    "gpt-oss.rope.scaling.type": "yarn",
    "gpt-oss.rope.scaling.factor": 32.0,
    "gpt-oss.rope.scaling.original_context_length": 32,
    "tokenizer.ggml.pre": "gpt-4o",
}


@pytest.fixture
def published(tmp_path: Path) -> Model:
    return read_model("gpt_oss", write_model("gpt_oss", tmp_path / "m"), TOKENIZER)


def open_file(path: Path, published: Model) -> Model:
    file = read_gguf_file(path)
    spec = gguf_spec(file)
    return Model("gguf", path, "gguf", spec, published.tokenizer, None, GgufWeights(file, spec), 0)


def tensors_of(model: Model) -> dict[str, NDArray[Any]]:
    return {place.name: model.weights.read(place.name) for place in tensor_places(model.spec)}


def test_a_file_has_what_the_folder_has(published: Model, tmp_path: Path, empty_home: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", published.spec, tensors_of(published), METADATA)
    names = {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    own = {
        "post_attention_norm.weight",
        "attn_sinks.weight",
        "ffn_gate_inp.bias",
        "ffn_up_exps.bias",
        "attn_output.bias",
    }
    assert {f"blk.1.{name}" for name in own} < names
    model = open_file(path, published)
    assert model.spec.windows == published.spec.windows
    assert model.spec.experts == published.spec.experts
    backend = open_cpu(model, EngineConfig(kv_memory="8MiB"), weight_format="f32", precision="exact")
    run = lambda step: backend.run(step).copy()  # type: ignore[attr-defined]  # noqa: E731
    for manner, off, same in differences("gpt_oss", run, backend.block_size):
        assert (off < 1e-3, same) == (True, 1), manner
    backend.close()


def test_experts_stay_in_mxfp4(published: Model, tmp_path: Path) -> None:
    """The same bytes as in the file, an expert at a time, and what they stand for."""
    tensors = tensors_of(published)
    packed = {
        name: gguf.quants.quantize(each, MXFP4)
        for name, each in tensors.items()
        if ".experts." in name and not name.endswith("_bias")
    }
    path = write_gguf(tmp_path / "m.gguf", published.spec, tensors | packed, METADATA, kind=MXFP4)
    model = open_file(path, published)
    assert model.spec.experts
    assert model.spec.experts.is_mxfp4
    for name, rows in packed.items():
        stored = model.weights.stored(name)
        assert (stored.kind, stored.shape) == ("MXFP4", tensors[name].shape)
        np.testing.assert_array_equal(stored.data, rows)
        np.testing.assert_array_equal(model.weights.read(name), gguf.quants.dequantize(rows, MXFP4))
    bias = "layers.1.experts.3.gate_bias"
    np.testing.assert_array_equal(model.weights.read(bias), tensors[bias])
