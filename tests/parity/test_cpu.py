"""The CPU backend beside transformers, on tiny models of every family."""

from pathlib import Path

import numpy as np
import pytest
from tests.engine.tiny import TOKENIZER
from tests.parity.manners import differences
from tests.parity.models import CONFIGS, read_model, write_model

from hotloop.backends.openvino.attention import numpy_kernel
from hotloop.backends.openvino.gap import PortableBackend
from hotloop.backends.openvino.runner import open_cpu
from hotloop.core.config import EngineConfig


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, empty_home: Path) -> None:
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    backend = open_cpu(model, EngineConfig(kv_memory="8MiB"), weight_format="f32", precision="exact")
    for manner, off, same in differences(name, lambda step: backend.run(step).copy(), backend.block_size):
        assert off < 1e-3, manner
        assert same == 1, manner
    backend.close()


@pytest.mark.parametrize("name", ["mistral", "gpt_oss"])
def test_attention_in_numpy_knows_windows_and_sinks(name: str, tmp_path: Path, empty_home: Path) -> None:
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    kernel = numpy_kernel(np.float32)
    backend = PortableBackend(model, 8 << 20, kernel, weight_format="f32", precision="exact")
    for manner, off, same in differences(name, lambda step: backend.run(step).copy(), backend.block_size):
        assert (off < 1e-3, same) == (True, 1), manner
    backend.close()
