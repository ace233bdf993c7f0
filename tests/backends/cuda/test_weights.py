"""Weights on the device: fused, in place, the same as the file's; on the CPU, and on a GPU where there is one."""

from dataclasses import fields
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from tests.models.tiny import Tensors, spec_config, tiny_spec, tiny_weights, write_folder, write_gguf, write_json

from hotloop.backends.cuda.layers.layer_weights import DeviceWeights
from hotloop.backends.cuda.quant.fp8 import ScaledMatrix, quantise
from hotloop.backends.cuda.weights import load_weights
from hotloop.core.errors import ConfigError
from hotloop.models.layout import tensor_places
from hotloop.models.model import Model, load_model
from hotloop.models.spec import Family, ModelSpec

FAMILIES = ("llama", "qwen2", "qwen3")


def expected_layer(spec: ModelSpec, tensors: Tensors, layer: int) -> Tensors:
    """The layer's tensors, fused by hand."""
    parts = {"qkv": "q k v", "gate_up": "gate up", "o": "o", "down": "down"}
    parts |= {"attn_norm": "attn_norm", "mlp_norm": "mlp_norm"}
    parts |= {"qkv_bias": "q_bias k_bias v_bias"} if spec.has_qkv_bias else {}
    parts |= {"q_norm": "q_norm", "k_norm": "k_norm"} if spec.has_qk_norm else {}
    return {
        field: np.concatenate([tensors[f"layers.{layer}.{name}"] for name in names.split()])
        for field, names in parts.items()
    }


def assert_loaded(loaded: DeviceWeights, spec: ModelSpec, tensors: Tensors) -> None:
    def same(tensor: torch.Tensor, want: np.ndarray) -> bool:
        assert tensor.is_contiguous()
        return torch.equal(tensor.cpu(), torch.tensor(want).to(tensor.dtype))

    assert same(loaded.embed, tensors["embed"])
    assert same(loaded.final_norm, tensors["final_norm"])
    assert same(loaded.head, tensors["embed" if spec.has_tied_head else "head"])
    assert (loaded.head is loaded.embed) == spec.has_tied_head
    assert len(loaded.layers) == spec.num_layers
    for i, layer in enumerate(loaded.layers):
        want = expected_layer(spec, tensors, i)
        for field in fields(layer):
            tensor = getattr(layer, field.name)
            assert (tensor is None) == (field.name not in want)
            assert tensor is None or same(tensor, want[field.name]), field.name


@pytest.mark.parametrize("family", FAMILIES)
def test_both_formats_are_fused_on_the_device(tmp_path: Path, family: Family, device: str) -> None:
    spec = tiny_spec(family)
    tensors = tiny_weights(spec)
    for path in (write_gguf(tmp_path / "m.gguf", spec, tensors), write_folder(tmp_path / "m", spec, tensors)):
        assert_loaded(load_weights(load_model(str(path)), device, torch.bfloat16), spec, tensors)
        assert_loaded(load_weights(load_model(str(path)), device, torch.float32), spec, tensors)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "IQ4_NL"])
def test_quantised_rows_are_put_in_order_before_they_are_numbers(tmp_path: Path, kind: str, device: str) -> None:
    """IQ4_NL is a kind that the device does not know; a buffer of a few rows makes every tensor travel in pieces."""
    spec = tiny_spec("llama", has_tied_head=False)
    path = write_quantised(tmp_path / "m.gguf", spec, GGMLQuantizationType[kind])
    model = load_model(str(path))
    wanted = {place.name: model.weights.read(place.name) for place in tensor_places(spec)}
    assert_loaded(load_weights(model, device, torch.float32, chunk_bytes=5 * 4 * 96), spec, wanted)


def test_matrices_of_layers_become_e4m3_a_row_at_a_time(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("qwen2", has_tied_head=False)
    tensors = tiny_weights(spec)
    model = load_model(str(write_folder(tmp_path / "m", spec, tensors)))
    loaded = load_weights(model, device, torch.float32, is_fp8=True, chunk_bytes=5 * 4 * 96)
    check_int8(loaded.head, torch.tensor(tensors["head"]))
    want = expected_layer(spec, tensors, 1)
    for name in ("qkv", "o", "gate_up", "down"):
        matrix, exact = getattr(loaded.layers[1], name), torch.tensor(want[name]).double()
        assert isinstance(matrix, ScaledMatrix)
        error = (matrix.dequantised().cpu().double() - exact).abs()
        assert bool((error <= exact.abs() / 16 + matrix.scales.cpu().double()[:, None] / 512).all()), name
    assert isinstance(loaded.layers[1].qkv_bias, torch.Tensor)


def check_int8(head: object, exact: torch.Tensor) -> None:
    assert isinstance(head, ScaledMatrix)
    assert head.values.dtype == torch.int8
    error = (head.dequantised().cpu() - exact).abs()
    assert bool((error <= 0.5001 * head.scales.cpu()[:, None]).all())
    assert bool((head.scales.cpu() <= 1.0001 * exact.abs().amax(1) / 127).all())


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_tied_head_is_held_in_int8_beside_the_embedding(tmp_path: Path, num_ranks: int, device: str) -> None:
    spec = tiny_spec("llama")
    tensors = tiny_weights(spec)
    model = load_model(str(write_folder(tmp_path / "m", spec, tensors)))
    embed, rank = torch.tensor(tensors["embed"]), num_ranks - 1
    loaded = load_weights(model, device, torch.float32, is_fp8=True, rank=rank, num_ranks=num_ranks)
    assert torch.equal(loaded.embed.cpu(), embed)
    check_int8(loaded.head, embed[-len(loaded.head) :])
    assert len(loaded.head) == -(-spec.vocab_size // num_ranks)


@pytest.mark.parametrize(
    ("changes", "num_ranks", "reason"),
    [
        ({"intermediate_size": 100}, 1, "gate of every layer is 100 x 64 on each GPU"),
        ({"num_kv_heads": 4, "num_heads": 8, "head_dim": 8}, 4, "k of every layer is 8 x 64 on each GPU"),
        ({"hidden_size": 72}, 1, "q of every layer is 64 x 72 on each GPU"),
    ],
)
def test_sizes_that_cannot_be_multiplied_in_e4m3_are_refused(
    tmp_path: Path, changes: dict[str, int], num_ranks: int, reason: str, device: str
) -> None:
    spec = tiny_spec("llama", **changes)
    model = dummy_model(tmp_path / "m", spec)
    with pytest.raises(ConfigError, match=f"weights fp8 need matrices whose sizes are multiples of 16: {reason}"):
        load_weights(model, device, torch.float32, is_fp8=True, num_ranks=num_ranks)
    load_weights(model, device, torch.float32, has_fp8_kv=True, num_ranks=num_ranks)


@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_prompt_exceeds_the_scales_of_its_keys_and_values(
    tmp_path: Path, family: Family, is_fp8: bool, device: str
) -> None:
    """The worst one: what the norm leaves points exactly where a row of the weights does, and a rotation adds up."""
    spec = tiny_spec(family)
    model = load_model(str(write_folder(tmp_path / "m", spec, tiny_weights(spec))))
    whole = load_weights(model, device, torch.float32, is_fp8=is_fp8, has_fp8_kv=True)
    shares = [
        load_weights(model, device, torch.float32, is_fp8=is_fp8, has_fp8_kv=True, rank=i, num_ranks=2) for i in (0, 1)
    ]
    layer, size = whole.layers[1], spec.num_kv_heads * spec.head_dim
    matrix = layer.qkv[-2 * size :]
    rows = (matrix.dequantised() if isinstance(matrix, ScaledMatrix) else matrix).double() * layer.attn_norm
    normed = spec.hidden_size**0.5 * rows / rows.norm(dim=1, keepdim=True)
    made = rows @ torch.cat((normed, -normed)).t()  # [2 * size, inputs]
    if layer.qkv_bias is not None:
        made += layer.qkv_bias[-2 * size :, None]
    keys, values = made.view(2, spec.num_kv_heads, spec.head_dim, -1)
    if layer.k_norm is not None:
        keys = keys / keys.pow(2).mean(1, keepdim=True).sqrt() * layer.k_norm[:, None]
    first, second = keys.chunk(2, 1)
    largest = torch.cat((torch.hypot(first, second).amax((1, 2)), values.abs().amax((1, 2))))
    scales = layer.kv_scales
    assert scales is not None
    assert bool((largest <= 448.001 * scales).all())
    assert bool((largest[-spec.num_kv_heads :] >= 447 * scales[-spec.num_kv_heads :]).all()), "no larger than need be"
    halves = [share.layers[1].kv_scales.chunk(2) for share in shares]
    torch.testing.assert_close(torch.cat([half[i] for i in (0, 1) for half in halves]), scales)


def write_quantised(path: Path, spec: ModelSpec, kind: GGMLQuantizationType) -> Path:
    """A GGUF of random blocks; its vectors are float32, as llama.cpp leaves them."""
    random = np.random.default_rng(0)
    block_items, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (4096, block_bytes), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)  # the scale, in these kinds
    tensors: dict[str, np.ndarray] = {}
    for place in tensor_places(spec):
        if len(place.shape) == 1:
            tensors[place.name] = random.standard_normal(place.shape, np.float32)
            continue
        rows = random.choice(blocks, place.shape[0] * place.shape[1] // block_items)
        tensors[place.name] = rows.reshape(place.shape[0], -1)
    return write_gguf(path, spec, tensors, kind=kind)


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "IQ4_NL"])
def test_ranks_load_their_shares(tmp_path: Path, kind: str, device: str) -> None:
    """Rows of what is fused and of the head, columns of o and down; half a row of 96 is a block and a half."""
    spec = tiny_spec("qwen2", head_dim=24)
    if kind == "BF16":
        path = write_folder(tmp_path / "m", spec, tiny_weights(spec))
    else:
        path = write_quantised(tmp_path / "m.gguf", spec, GGMLQuantizationType[kind])
    model = load_model(str(path))
    whole = load_weights(model, device, torch.float32)
    first, second = (load_weights(model, device, torch.float32, rank=rank, num_ranks=2) for rank in range(2))
    num_tokens = -(-spec.vocab_size // 2)
    assert torch.equal(first.embed, whole.embed)
    assert torch.equal(first.head, whole.head[:num_tokens])
    assert torch.equal(second.head, whole.head[-num_tokens:])
    for layer, one, two in zip(whole.layers, first.layers, second.layers, strict=True):
        assert torch.equal(torch.cat((one.o, two.o), 1), layer.o)
        assert torch.equal(torch.cat((one.down, two.down), 1), layer.down)
        assert torch.equal(two.mlp_norm, layer.mlp_norm)
        for field, sizes in (("qkv", [96, 48, 48]), ("qkv_bias", [96, 48, 48]), ("gate_up", [96, 96])):
            parts = getattr(layer, field).split(sizes)
            for rank, share in enumerate((one, two)):
                want = torch.cat([part.chunk(2)[rank] for part in parts])
                assert torch.equal(getattr(share, field), want), field


def test_ranks_round_their_own_shares_to_e4m3(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("llama")
    model = load_model(str(write_quantised(tmp_path / "m.gguf", spec, GGMLQuantizationType.Q8_0)))
    exact = load_weights(model, device, torch.float32).layers[1]
    for rank in range(2):
        share = load_weights(model, device, torch.float32, is_fp8=True, rank=rank, num_ranks=2).layers[1]
        for name, want in (
            ("o", exact.o.chunk(2, 1)[rank]),
            ("down", exact.down.chunk(2, 1)[rank]),
            ("gate_up", torch.cat([part.chunk(2)[rank] for part in exact.gate_up.chunk(2)])),
        ):
            rounded = quantise(want.contiguous())
            got = getattr(share, name)
            assert torch.equal(got.scales, rounded.scales), name
            assert torch.equal(got.dequantised(), rounded.dequantised()), name


def test_the_head_of_a_rank_is_rows_of_a_tied_embedding(tmp_path: Path, device: str) -> None:
    spec = tiny_spec("llama")
    model = load_model(str(write_folder(tmp_path / "m", spec, tiny_weights(spec))))
    second = load_weights(model, device, torch.float32, rank=1, num_ranks=2)
    num_tokens = -(-spec.vocab_size // 2)
    assert second.head.data_ptr() == second.embed[-num_tokens:].data_ptr()


def dummy_model(folder: Path, spec: ModelSpec) -> Model:
    folder.mkdir()
    write_json(folder / "config.json", spec_config(spec))
    return load_model(str(folder), "dummy")


def test_dummy_weights_are_made_on_the_device(tmp_path: Path, device: str) -> None:
    model = dummy_model(tmp_path / "m", tiny_spec("qwen2"))
    first, second = (load_weights(model, device, torch.bfloat16) for _ in range(2))
    layer = first.layers[1]
    assert torch.equal(layer.qkv, second.layers[1].qkv)
    assert not torch.equal(layer.qkv, first.layers[0].qkv)
    assert layer.gate_up.float().std().item() == pytest.approx(0.02, rel=0.1)
    assert (layer.attn_norm == 1).all()
    assert layer.qkv_bias is not None
    assert (layer.qkv_bias == 0).all()
    loaded = load_weights(model, device, torch.bfloat16, is_fp8=True)
    for narrow in (loaded.layers[1].gate_up, loaded.head):
        assert isinstance(narrow, ScaledMatrix)
        assert narrow.dequantised().std().item() == pytest.approx(0.02, rel=0.1)
