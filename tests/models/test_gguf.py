from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.tiny import tiny_spec, tiny_weights, write_gguf
from tests.properties import examples

from hotloop.core.errors import ModelError
from hotloop.models.gguf import KINDS, UNREADABLE, dequantise, read_gguf_file

reuse = settings(max_examples=examples(200))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    spec = tiny_spec("llama", num_layers=1)
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    return write_gguf(path, spec, tiny_weights(spec), {"numbers": [1, 2, 3], "nested.text": "ünï"}).read_bytes()


def test_reads_every_kind_of_value(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_int8("i8", -1)
    writer.add_uint16("u16", 65535)
    writer.add_int64("i64", -(1 << 40))
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "żółw")
    writer.add_array("words", ["a", "", "ß"])
    writer.add_array("flags", [True, False])
    writer.add_array("lists", [[1, 2], [3, 4]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = read_gguf_file(path).metadata
    assert metadata["i8"] == -1
    assert metadata["u16"] == 65535
    assert metadata["i64"] == -(1 << 40)
    assert metadata["f64"] == 0.1
    assert metadata["yes"] is True
    assert metadata["text"] == "żółw"
    assert metadata["words"] == ["a", "", "ß"]
    assert metadata["flags"] == [True, False]
    assert metadata["lists"] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16"])
def test_dequantises_as_the_gguf_package_does(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "quantised.gguf"
    quantised = gguf.GGMLQuantizationType[kind]
    matrix = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    data = gguf.quants.quantize(matrix, quantised)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("m", data, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = dequantise(read_gguf_file(path).tensors["m"].stored())
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, gguf.quants.dequantize(data, quantised))
    np.testing.assert_allclose(read, matrix, atol=0.5)


def test_a_type_that_cannot_be_dequantised_is_refused_with_the_header(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("m", np.zeros((2, 4), np.int16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"m\.gguf: tensor m has type I16, which cannot be read"):
        read_gguf_file(tmp_path / "m.gguf")


def test_every_type_is_as_large_as_the_package_says() -> None:
    assert {name: (items, size) for name, items, size in KINDS.values()} == {
        kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()
    }
    assert {number: name for number, (name, _, _) in KINDS.items()} == {
        kind.value: kind.name for kind in gguf.GGMLQuantizationType
    }
    for kind, (_, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        block = np.zeros((1, block_bytes), np.uint8)
        if kind.name in UNREADABLE:
            with pytest.raises(NotImplementedError):
                gguf.quants.dequantize(block, kind)
        else:
            gguf.quants.dequantize(block, kind)


def test_typed_access_says_what_is_wrong(tmp_path: Path) -> None:
    spec = tiny_spec("llama", num_layers=1)
    file = read_gguf_file(write_gguf(tmp_path / "m.gguf", spec, tiny_weights(spec), {"numbers": [1, 2]}))
    with pytest.raises(ModelError, match=r"m\.gguf: the metadata has no llama\.nothing"):
        file.get("llama.nothing", int)
    with pytest.raises(ModelError, match=r"general\.architecture should be of type int, not 'llama'"):
        file.get("general.architecture", int)
    with pytest.raises(ModelError, match="numbers should hold only str values"):
        file.items("numbers", str)
    with pytest.raises(ModelError, match=r"has no list general\.architecture"):
        file.items("general.architecture", str)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip", b"\0" * 100])
def test_refuses_what_is_not_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="is not a GGUF file"):
        read_gguf_file(tmp_path / "m.gguf")


def test_refuses_other_versions(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "big") + whole[8:])
    with pytest.raises(ModelError, match="big-endian"):
        read_gguf_file(tmp_path / "m.gguf")


def test_says_which_tensor_is_cut_short(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(whole[:-4096])
    with pytest.raises(ModelError, match=r"m\.gguf is cut short: tensor blk\.0\.\S+ ends at byte \d+, it at byte"):
        read_gguf_file(tmp_path / "m.gguf")


@reuse
@given(share=st.floats(0, 1, exclude_max=True))
def test_any_part_of_a_file_is_refused_in_one_line(tmp_path: Path, whole: bytes, share: float) -> None:
    (tmp_path / "m.gguf").write_bytes(whole[: int(share * (len(whole) - 32))])
    with pytest.raises(ModelError) as caught:
        read_gguf_file(tmp_path / "m.gguf")
    assert "\n" not in str(caught.value)


@reuse
@given(at=st.integers(0, 12_000), byte=st.integers(0, 255))
def test_a_damaged_header_never_gives_a_traceback(tmp_path: Path, whole: bytes, at: int, byte: int) -> None:
    (tmp_path / "m.gguf").write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
    with suppress(ModelError):
        read_gguf_file(tmp_path / "m.gguf")
