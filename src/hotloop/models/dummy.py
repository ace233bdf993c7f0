"""A model of which only the shape is real: random weights for a config.json, to measure speed without the files.

Every tensor is made from its name, so it is the same whenever and in whatever order it is asked for.
"""

from zlib import crc32

import numpy as np
import tokenizers
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.layout import tensor_places
from hotloop.models.spec import ModelSpec, Stored
from hotloop.models.tokenizer import Tokenizer

SEED = 0
STD = 0.02  # of matrices; norms are ones and biases zeros


class DummyWeights:
    """Random weights, made when they are asked for; a backend may make its own where it computes, by the same rules."""

    def __init__(self, spec: ModelSpec) -> None:
        self._shapes = {place.name: place.shape for place in tensor_places(spec)}

    def read(self, name: str) -> NDArray[np.float32]:
        shape = self._shapes[name]
        if len(shape) == 1:
            return np.full(shape, dummy_value(name), np.float32)
        random = np.random.default_rng([SEED, crc32(name.encode())])
        return random.standard_normal(shape, np.float32) * np.float32(STD)

    def stored(self, name: str) -> Stored:
        tensor = self.read(name)
        return Stored(tensor.view(np.uint8), "F32", tensor.shape)


def dummy_value(name: str) -> float:
    return 0.0 if name.endswith("_bias") else 1.0


def dummy_tokenizer(vocab_size: int) -> Tokenizer:
    """A token for each byte, so that any text can be read, and made-up words for the rest; none of them ends a turn."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(alphabet):
        raise ModelError(f"a vocabulary of {vocab_size} has no token for every byte: give the folder a tokenizer.json")
    words = [*alphabet, *(f"Ġw{i}" for i in range(len(alphabet), vocab_size))]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(words)}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(inner)
