"""The CUDA backend beside transformers, on tiny models of every family."""

from pathlib import Path

import pytest
import torch
from tests.cuda.test_backend import logits_of, make_backend
from tests.engine.tiny import TOKENIZER
from tests.parity.manners import differences
from tests.parity.models import CONFIGS, read_model, write_model

# Triton's interpreter takes half a minute for one: there what other tests know, and rotary scalings, are left out.
NAMES = (
    [*CONFIGS]
    if torch.cuda.is_available()
    else ["mistral", "qwen2", "qwen3_moe", "gpt_oss", "glm4_moe", "deepseek_v2", "deepseek_v3"]
)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, device: str) -> None:
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    backend = make_backend(model, device, max_step_tokens=256)
    for manner, off, same in differences(name, lambda step: logits_of(backend, step), backend.block_size):
        assert off < 2e-3, manner
        assert same == 1, manner
    backend.close()
