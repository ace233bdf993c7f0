"""The CUDA backend beside transformers, on tiny models of every family."""

from pathlib import Path

import pytest
import torch
from tests.backends.cuda.test_backend import logits_of, make_backend
from tests.engine.tiny import TOKENIZER
from tests.parity.manners import differences
from tests.parity.models import CONFIGS, read_model, write_model

# Triton's interpreter takes half a minute for one: there what other tests know, and rotary scalings, are left out.
NAMES = (
    [*CONFIGS]
    if torch.cuda.is_available()
    else ["mistral", "qwen2", "qwen3_moe", "gpt_oss", "glm4_moe", "deepseek_v2", "deepseek_v3"]
)
OVER_BLOCKS = ("gpt_oss", "deepseek_v3")  # of which the interpreter computes every manner: windows, sinks and latents


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, device: str) -> None:
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    backend = make_backend(model, device, max_step_tokens=256)
    is_quick = device == "cpu" and name not in OVER_BLOCKS
    run = lambda step: logits_of(backend, step)  # noqa: E731
    for manner, off, same in differences(name, run, backend.block_size, is_quick=is_quick):
        assert off < 2e-3, manner
        assert same == 1, manner
    backend.close()
