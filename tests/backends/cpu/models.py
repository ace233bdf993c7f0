"""Tiny models for tests of a CPU backend by itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.backends.reference import reference_logits
from tests.engine.tiny import TOKENIZER
from tests.models.tiny import DictWeights, QuantisedWeights, tiny_spec, tiny_weights

from hotloop.models.model import Model
from hotloop.models.spec import Family


def tiny_model(family: Family, **changes: Any) -> Model:
    """Random weights, scaled so that the logits stay of a usual size."""
    spec = tiny_spec(family, **changes)
    tensors = {name: tensor / 8 if tensor.ndim == 2 else tensor for name, tensor in tiny_weights(spec).items()}
    name = f"tiny-{family}"
    return Model(name, Path(name), name, spec, TOKENIZER, None, DictWeights(tensors), 0)


def quantised_model(model: Model) -> Model:
    """With matrices as they are after quantisation, so that only that of rows is left to tell the two apart."""
    return replace(model, weights=QuantisedWeights(model.spec, model.weights))


def make_prompt(model: Model, length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.spec.vocab_size, length).tolist()


def expected(model: Model, token_ids: list[int]) -> NDArray[np.float32]:
    return reference_logits(model.spec, model.weights, token_ids)
