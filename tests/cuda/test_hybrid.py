"""Hybrids on the CUDA backend: linear attention beside its definition, and whole models beside transformers, however a
prompt is cut and wherever it is gone on from.
"""

from itertools import islice
from pathlib import Path

import pytest
from tests.cuda.test_backend import logits_of, make_backend
from tests.engine.tiny import TOKENIZER
from tests.parity.models import HYBRIDS, read_model, write_model
from tests.parity.states import differences


@pytest.mark.parametrize("name", HYBRIDS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, device: str) -> None:
    """Triton's interpreter takes long for experts: there those are read at once, and no more."""
    model = read_model(name, write_model(name, tmp_path / "m"), TOKENIZER)
    backend = make_backend(model, device, max_step_tokens=256)
    num_manners = 1 if device == "cpu" and model.spec.experts else None
    for manner, off, same in islice(differences(name, lambda step: logits_of(backend, step)), num_manners):
        assert off < 2e-3, manner
        assert same == 1, manner
    backend.close()
