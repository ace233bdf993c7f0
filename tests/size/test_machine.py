"""This machine is measured as hardware."""

from pathlib import Path

import pytest
from tests.models.tiny import spec_config, tiny_spec, write_json

from hotloop.core.errors import ModelError
from hotloop.size.machine import measure_machine
from hotloop.size.shapes import SHAPES, find_shape


def test_this_machine():
    found = measure_machine(try_s=0.01)
    assert found.is_measured
    assert found.memory_bytes > 1 << 28
    assert 1e8 < found.bytes_s < 1e14
    assert 1e8 < found.flop_s < 1e16


def test_a_shape_is_found_by_name_and_in_a_folder_without_weights(tmp_path: Path):
    assert find_shape("qwen3-32b") == ("qwen3-32b", SHAPES["qwen3-32b"])
    write_json(tmp_path / "config.json", spec_config(tiny_spec("qwen2")))
    assert find_shape(str(tmp_path)) == (tmp_path.name, tiny_spec("qwen2"))


def test_an_unknown_name_lists_the_known_shapes():
    with pytest.raises(ModelError, match="there is no model 'llama-4'") as raised:
        find_shape("llama-4")
    assert all(name in str(raised.value) for name in SHAPES)


def test_every_shape_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text()
    assert [name for name in SHAPES if f"`{name}`" not in page] == []
