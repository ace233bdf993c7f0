"""Models of which only the shape is real."""

from pathlib import Path

import numpy as np
import pytest
from tests.models.tiny import spec_config, tiny_spec, tiny_tokenizer, tiny_weights, write_gguf, write_json

from hotloop.core.errors import ModelError
from hotloop.models.dummy import DummyWeights, dummy_tokenizer
from hotloop.models.layout import tensor_places
from hotloop.models.model import load_model

SPEC = tiny_spec("qwen2")


def write_config(folder: Path, **changes: object) -> Path:
    folder.mkdir()
    write_json(folder / "config.json", spec_config(SPEC) | changes)
    return folder


def test_a_config_alone_is_a_model(tmp_path: Path) -> None:
    model = load_model(str(write_config(tmp_path / "m")), "dummy")
    assert model.spec == SPEC
    assert model.notes == ("its weights are random",)
    assert model.template is None
    assert model.tokenizer.vocab_size == SPEC.vocab_size
    for place in tensor_places(SPEC):
        tensor = model.weights.read(place.name)
        assert (tensor.shape, tensor.dtype) == (place.shape, np.float32)
        stored = model.weights.stored(place.name)
        np.testing.assert_array_equal(stored.data.view("<f4"), tensor)


def test_its_weights_are_small_and_always_the_same() -> None:
    weights = DummyWeights(SPEC)
    down = weights.read("layers.1.down")
    assert down.std() == pytest.approx(0.02, rel=0.1)
    np.testing.assert_array_equal(DummyWeights(SPEC).read("layers.1.down"), down)
    assert (weights.read("layers.0.down") != down).any()
    assert (weights.read("layers.0.attn_norm") == 1).all()
    assert (weights.read("layers.0.q_bias") == 0).all()


def test_a_tokenizer_that_is_there_is_used(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "m")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer = load_model(str(folder), "dummy").tokenizer
    assert tokenizer.encode("<|im_end|>") == [tiny_tokenizer().token_to_id("<|im_end|>")]


def test_a_made_up_tokenizer_reads_any_text_and_ends_no_turn() -> None:
    tokenizer = dummy_tokenizer(300)
    text = "Grüße,\n w299!"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == 300
    assert tokenizer.token_bytes(299) == b" w299"
    assert not tokenizer.eos_ids
    with pytest.raises(ModelError, match="a vocabulary of 255 has no token for every byte"):
        dummy_tokenizer(255)


def test_its_graphs_and_blocks_are_not_taken_for_the_real_ones(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "m")
    before = load_model(str(folder), "dummy").fingerprint
    assert before.startswith("dummy-")
    write_json(folder / "config.json", spec_config(SPEC) | {"rope_theta": 5.0})
    assert load_model(str(folder), "dummy").fingerprint != before


def test_what_has_no_config_cannot_be_made_up(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", SPEC, tiny_weights(SPEC))
    with pytest.raises(ModelError, match=r"m\.gguf is not a Hugging Face folder: config\.json is missing"):
        load_model(str(path), "dummy")
    with pytest.raises(ModelError, match="4 heads cannot share 3"):
        load_model(str(write_config(tmp_path / "odd", num_key_value_heads=3)), "dummy")
