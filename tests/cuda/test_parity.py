"""The CUDA backend beside transformers, on tiny models of every family."""

from pathlib import Path

import pytest
import torch
from tests.cuda.test_backend import logits_of, make_backend
from tests.engine.tiny import TOKENIZER
from tests.parity.manners import differences
from tests.parity.models import CONFIGS, read_model, write_model

# Triton's interpreter takes a minute for one: there the kinds of rotary scaling, which are a table, are left out.
NAMES = [name for name in CONFIGS if torch.cuda.is_available() or not name.startswith("llama,")]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, device: str) -> None:
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    backend = make_backend(model, device, max_step_tokens=256)
    for manner, off, same in differences(name, lambda step: logits_of(backend, step), backend.block_size):
        assert off < 2e-3, manner
        assert same == 1, manner
    backend.close()
