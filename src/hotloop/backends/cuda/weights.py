"""A model's weights on the device: allocated once, fused where one matmul reads them, and filled from the mapped file.

Bytes travel as they are stored, through two pinned buffers in turn, and become numbers on the device; the host never
holds more than those buffers and one tensor. Works on the CPU too, where there is nothing to copy to.

Of several ranks each loads its share alone: rows of q, k, v, gate, up and the head, columns of o and down. What the
share of a tensor is shows in the place that was made for it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotloop.backends.cuda.layers.delta.weights import LinearWeights
from hotloop.backends.cuda.layers.expert_weights import ExpertWeights
from hotloop.backends.cuda.layers.layer_weights import DeviceWeights, LayerWeights
from hotloop.backends.cuda.layers.linear import Matrix
from hotloop.backends.cuda.quant.dequantise import FLOATS, can_dequantise, dequantise
from hotloop.backends.cuda.quant.fp8 import ALIGNMENT, E4M3, ScaledMatrix, keep_fp8, kv_scales, quantise
from hotloop.backends.cuda.quant.int4 import Int4Matrix
from hotloop.backends.cuda.quant.mxfp4 import GROUP, Mxfp4Matrix
from hotloop.backends.cuda.quant.repack import dequantise_stored, fp8_rows, repack, room_for
from hotloop.core.errors import ConfigError
from hotloop.models import gguf
from hotloop.models.dummy import SEED, STD, DummyWeights, dummy_value
from hotloop.models.hybrid import HybridWeights, split_shapes
from hotloop.models.layout import share_begin, share_of
from hotloop.models.model import Model
from hotloop.models.spec import ExpertsSpec, Fp8Stored, Int4Stored, LinearSpec, ModelSpec, Stored, Weights

CHUNK_BYTES = 16 << 20  # of a tensor at a time: enough for the bus, and little enough to unpack in passing
_NUM_READERS = 4

Place: TypeAlias = Matrix | Mxfp4Matrix
"""Where a tensor of the model goes."""


def load_weights(
    model: Model,
    device: torch.device | str,
    dtype: torch.dtype,
    *,
    is_fp8: bool = False,
    keeps_fp8: bool = True,
    has_fp8_kv: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
    rank: int = 0,
    num_ranks: int = 1,
) -> DeviceWeights:
    """The weights of a model on a device.

    If fp8, the layers' matrices are in e4m3, and the head is in int8: its errors go straight into the logits, and int8
    has a fifth of them. The embedding, of which a step reads a few rows, stays as it is. If not, matrices that the
    files hold in four bits are held so here, and those in e4m3, but for a head and hybrids, unless not to be kept.
    """
    device = torch.device(device)
    share = share_of(model.spec, num_ranks)
    if is_fp8:
        _check_sizes(share)
    has_fp8_files = keeps_fp8 and share.fp8 is not None and share.linear is None
    weights = _Allocation(share, model.weights, device, dtype, is_fp8, has_fp8_files).all(num_ranks, rank)
    is_split = share.linear is None or isinstance(model.weights, DummyWeights)
    source = model.weights if is_split else HybridWeights(model.weights, share)
    _fill(dict(_places(share, weights)), source, device, chunk_bytes, rank)
    if share.has_tied_head and isinstance(weights.head, ScaledMatrix):
        quantise(_head_rows(weights.embed, len(weights.head), rank), weights.head)
    if rank:
        _drop_biases(weights)
    if has_fp8_kv:
        scales = (None if layer.qkv is None else _kv_scales(share, layer, layer.qkv) for layer in weights.layers)
        layers = (replace(layer, kv_scales=each) for layer, each in zip(weights.layers, scales, strict=True))
        weights = replace(weights, layers=tuple(layers))
    return weights


def _drop_biases(weights: DeviceWeights) -> None:
    """Of what the ranks sum up: the first rank has them."""
    for layer in weights.layers:
        for bias in (layer.o_bias, layer.experts.down_bias if layer.experts else None):
            if bias is not None:
                bias.zero_()


def _check_sizes(spec: ModelSpec) -> None:
    """Refuse a matrix that cannot be multiplied in e4m3."""
    kinds = {spec.is_linear(layer): layer for layer in range(spec.num_layers)}
    for name, shape in (each for layer in kinds.values() for each in split_shapes(spec, layer).items()):
        if len(shape) > 1 and not name.startswith(_UNSCALED) and any(size % ALIGNMENT for size in shape):
            sizes = " x ".join(map(str, shape))
            raise ConfigError(
                f"weights fp8 need matrices whose sizes are multiples of {ALIGNMENT}: {name} of every layer is {sizes}"
                " on each GPU"
            )


def _kv_scales(spec: ModelSpec, layer: LayerWeights, qkv: Matrix) -> Tensor:
    """Of what the norm in front of a layer and its weights make, whatever the prompt."""
    size = spec.num_kv_heads * spec.head_dim
    made = qkv[-2 * size :]
    rows = made.dequantised() if isinstance(made, ScaledMatrix | Int4Matrix) else made.float()
    shape = (2, spec.num_kv_heads, spec.head_dim)
    bias = None if layer.qkv_bias is None else layer.qkv_bias[-2 * size :].float().view(shape)
    scales = kv_scales((rows * layer.attn_norm.float()).view(*shape, -1), bias, layer.k_norm)
    if spec.rope_scaling:
        scales[: spec.num_kv_heads] *= spec.rope_scaling.magnitude
    return scales


@dataclass(frozen=True, slots=True)
class _Allocation:
    """Room for a rank's share of a model, not filled yet."""

    spec: ModelSpec
    weights: Weights
    device: torch.device
    dtype: torch.dtype
    is_fp8: bool
    has_fp8_files: bool

    def all(self, num_ranks: int, rank: int) -> DeviceWeights:
        spec = self.spec
        layers = tuple(
            LayerWeights(
                **{field: self._stacked(layer, names) for field, names in _parts(spec).items()},
                experts=self._experts(spec.experts, layer) if spec.experts and spec.has_experts(layer) else None,
                linear=self._linear(spec.linear) if spec.linear and spec.is_linear(layer) else None,
            )
            for layer in range(spec.num_layers)
        )
        embed = self._empty(spec.vocab_size, spec.hidden_size)
        num_tokens = -(-spec.vocab_size // num_ranks)
        head: Matrix
        if self.is_fp8:
            head = ScaledMatrix.empty(num_tokens, spec.hidden_size, self.device, torch.int8)
        elif spec.has_tied_head:
            head = embed if num_ranks == 1 else _head_rows(embed, num_tokens, rank)
        else:
            head = self._empty(num_tokens, spec.hidden_size)
        return DeviceWeights(embed, layers, self._empty(spec.hidden_size), head)

    def _stacked(self, layer: int, names: tuple[str, ...]) -> Matrix | None:
        """Room for these, one below the other; None if the model has none of them."""
        shapes, int4 = split_shapes(self.spec, layer), self.spec.int4
        names = tuple(name for name in names if name in shapes)
        if not names:
            return None
        num_rows, row_shape = sum(shapes[name][0] for name in names), shapes[names[0]][1:]
        is_scaled = row_shape and names != ("kv_b",)
        if is_scaled and (self.is_fp8 or self._is_kept(layer, names, num_rows, *row_shape)):
            return ScaledMatrix.empty(num_rows, row_shape[0], self.device)
        if int4 and row_shape:
            if isinstance(self.weights, DummyWeights):
                return Int4Matrix.empty(num_rows, row_shape[0], int4.group_size, device=self.device)
            stored = [self.weights.stored(f"layers.{layer}.{name}") for name in names]
            packed = [each for each in stored if isinstance(each, Int4Stored)]
            if len(packed) == len(stored):  # the files may hold some in another way
                return room_for(packed, num_rows, row_shape[0], self.device)
        return self._empty(num_rows, *row_shape)

    def _is_kept(self, layer: int, names: tuple[str, ...], *shape: int) -> bool:
        """Whether matrices that the files hold in e4m3 are held so here; the files may leave some as they were."""
        if not self.has_fp8_files or any(size % ALIGNMENT for size in shape):
            return False
        stored = (self.weights.stored(f"layers.{layer}.{name}") for name in names)
        return isinstance(self.weights, DummyWeights) or all(isinstance(each, Fp8Stored) for each in stored)

    def _experts(self, experts: ExpertsSpec, layer: int) -> ExpertWeights:
        """Those that files hold in four bits are wider here, unless it is MXFP4. All experts are held as the first."""
        hidden, size, count = self.spec.hidden_size, experts.size, experts.num_experts
        narrow, shared = partial(ScaledMatrix.empty, device=self.device), ("shared_gate", "shared_up", "shared_down")
        is_shared_kept = experts.shared_size and self._is_kept(layer, shared, experts.shared_size, hidden)
        is_kept = self._is_kept(layer, ("experts.0.gate", "experts.0.down"), size, hidden)
        matrix = narrow if self.is_fp8 or is_shared_kept else self._empty
        packed = narrow if self.is_fp8 or is_kept else self._empty
        if experts.is_mxfp4 and not self.is_fp8:
            packed = partial(Mxfp4Matrix.empty, device=self.device)
        return ExpertWeights(
            router=self._empty(count, hidden),
            gate_up=packed(2 * count * size, hidden),
            down=packed(count * hidden, size),
            router_bias=torch.empty(count, device=self.device) if experts.has_router_bias else None,
            gate_up_bias=self._empty(2 * count * size) if experts.has_bias else None,
            down_bias=self._empty(count * hidden) if experts.has_bias else None,
            shared_gate_up=matrix(2 * experts.shared_size, hidden) if experts.shared_size else None,
            shared_down=matrix(hidden, experts.shared_size) if experts.shared_size else None,
            shared_router=self._empty(1, hidden) if experts.has_shared_gate else None,
        )

    def _linear(self, linear: LinearSpec) -> LinearWeights:
        hidden, heads = self.spec.hidden_size, linear.num_value_heads
        matrix = partial(ScaledMatrix.empty, device=self.device) if self.is_fp8 else self._empty
        vector = partial(torch.empty, device=self.device)
        return LinearWeights(
            qkvz=matrix(linear.conv_size + linear.value_size, hidden),
            rates=self._empty(2 * heads, hidden),
            taps=self._empty(linear.conv_size, linear.conv_width),
            a_log=vector(heads),
            dt_bias=vector(heads),
            norm=vector(linear.value_dim),
            o=matrix(hidden, linear.value_size),
        )

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self.device, dtype=self.dtype)


def _head_rows(embed: Tensor, num_tokens: int, rank: int) -> Tensor:
    """A rank's rows of a head that is the embedding as well."""
    begin = share_begin(len(embed), num_tokens, rank)
    return embed[begin : begin + num_tokens]


_UNSCALED = ("router", "experts.", "shared_router", "linear_b", "linear_a", "linear_conv")
_LAYER_PARTS = {
    "attn_norm": ("attn_norm",),
    "qkv": ("q_gate", "q", "k", "v"),
    "qkv_bias": ("q_bias", "k_bias", "v_bias"),
    "q_norm": ("q_norm",),
    "k_norm": ("k_norm",),
    "q_b": ("q_b",),
    "kv_b": ("kv_b",),
    "o": ("o",),
    "o_bias": ("o_bias",),
    "sinks": ("sinks",),
    "mlp_norm": ("mlp_norm",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
}


def _parts(spec: ModelSpec) -> dict[str, tuple[str, ...]]:
    """Which tensors of a layer go into which."""
    if not spec.latent:
        return _LAYER_PARTS
    first = "q_a" if spec.latent.q_rank else "q"
    return _LAYER_PARTS | {"qkv": (first, "kv_a"), "q_norm": ("q_a_norm",), "k_norm": ("kv_a_norm",)}


def _places(spec: ModelSpec, weights: DeviceWeights) -> Iterator[tuple[str, Place]]:
    """Where on the device each tensor of the model goes, by its name: a whole tensor or some rows of one."""
    yield "embed", weights.embed
    for i, layer in enumerate(weights.layers):
        shapes = split_shapes(spec, i)
        for field, all_names in _parts(spec).items():
            names = [name for name in all_names if name in shapes]
            room = getattr(layer, field)
            if room is not None:
                parts = room.split([shapes[name][0] for name in names])
                yield from ((f"layers.{i}.{name}", part) for name, part in zip(names, parts, strict=True))
        if layer.experts and spec.experts:
            yield from ((f"layers.{i}.{name}", part) for name, part in layer.experts.places(spec.experts))
        if layer.linear and spec.linear:
            yield from ((f"layers.{i}.{name}", part) for name, part in layer.linear.places(spec.linear))
    yield "final_norm", weights.final_norm
    if not spec.has_tied_head:
        yield "head", weights.head


def _fill(places: dict[str, Place], weights: Weights, device: torch.device, chunk_bytes: int, rank: int) -> None:
    if isinstance(weights, DummyWeights):
        generator = torch.Generator(device).manual_seed(SEED)  # the same on all ranks, as `embed` must be
        for name, place in places.items():
            _draw(name, place, generator)
        return
    with ThreadPoolExecutor(_NUM_READERS) as readers:
        staging = _Staging(device, chunk_bytes, readers)
        for name, place in places.items():
            stored = weights.stored(name)
            if isinstance(stored, Int4Stored):
                staging.send_int4(stored, place, rank)
            elif isinstance(stored, Fp8Stored):
                staging.send_fp8(stored, place, rank)
            elif isinstance(place, Mxfp4Matrix):
                staging.send_mxfp4(stored, place, rank)
            else:
                staging.send(stored, place, rank)
        staging.wait()


def _draw(name: str, place: Place, generator: torch.Generator) -> None:
    if isinstance(place, ScaledMatrix):
        drawn = torch.empty(place.shape, dtype=torch.bfloat16, device=generator.device)
        quantise(drawn.normal_(0, STD, generator=generator), place)
    elif isinstance(place, Int4Matrix):
        torch.randint(-(1 << 31), 1 << 31, place.words.shape, generator=generator, out=place.words)
        place.zeros.fill_(8)
        place.scales.fill_(STD / 4.6)  # the deviation of the numbers 0 to 15
    elif isinstance(place, Mxfp4Matrix):
        torch.randint(0, 256, place.values.shape, generator=generator, out=place.values)
        place.scales.fill_(120)  # 2**-7, and the deviation of the sixteen numbers is 2.7
    elif place.ndim == 1:
        place.fill_(dummy_value(name))
    else:
        place.normal_(0, STD, generator=generator)


def _put(numbers: Tensor, place: Tensor | ScaledMatrix) -> None:
    if isinstance(place, ScaledMatrix):
        quantise(numbers.contiguous(), place)
    else:
        place.copy_(numbers)


class _Staging:
    """Bytes on their way to the device. While one buffer is copied, the other is filled from the file.

    All copies and the arithmetic behind them are in the order of one stream, so one buffer on the device is enough.
    """

    def __init__(self, device: torch.device, chunk_bytes: int, readers: ThreadPoolExecutor) -> None:
        self._is_cuda = device.type == "cuda"
        self._readers = readers
        self._hosts = [torch.empty(chunk_bytes, dtype=torch.uint8, pin_memory=self._is_cuda) for _ in range(2)]
        self._is_copied = [torch.cuda.Event() for _ in self._hosts] if self._is_cuda else []
        self._device = torch.empty(chunk_bytes, dtype=torch.uint8, device=device) if self._is_cuda else self._hosts[0]
        self._turn = 0

    def send(self, stored: Stored, place: Place, rank: int) -> None:
        """Put a tensor, or this rank's share of it, where it belongs, a few rows at a time."""
        assert not isinstance(place, Int4Matrix | Mxfp4Matrix)
        rows = stored.data.reshape(-1, stored.data.shape[-1])
        room = place if isinstance(place, ScaledMatrix) else place.view(-1, place.shape[-1])
        num_columns, width = stored.shape[-1], room.shape[1]
        row, column = share_begin(len(rows), len(room), rank), share_begin(num_columns, width, rank)
        rows, columns = rows[row : row + len(room)], slice(column, column + width)
        if stored.kind in FLOATS:  # blocks are read whole and cut when they are numbers
            item_bytes = rows.shape[1] // num_columns
            rows = rows[:, item_bytes * columns.start : item_bytes * columns.stop]
            columns = slice(None)
        is_known = can_dequantise(stored.kind)
        row_bytes = rows.shape[1] if is_known else 4 * num_columns
        step = len(self._device) // row_bytes
        assert step > 0, "a row fits into a buffer"
        for begin in range(0, len(rows), step):
            part, kind = rows[begin : begin + step], stored.kind
            if not is_known:
                part, kind = gguf.dequantise(Stored(part, kind, (len(part), num_columns))).view(np.uint8), "F32"
            _put(dequantise(self._upload(part), kind)[:, columns], room[begin : begin + step])

    def send_int4(self, stored: Int4Stored, place: Place, rank: int) -> None:
        """The same for a matrix in four bits, which is wider where it is to be held so."""
        if isinstance(place, Int4Matrix):
            repack(stored, place, rank, self._upload_all)
            return
        assert not isinstance(place, Mxfp4Matrix)
        numbers = dequantise_stored(stored, self._upload_all, self._device.device)
        row, column = (share_begin(*sizes, rank) for sizes in zip(stored.shape, place.shape, strict=True))
        _put(numbers[row : row + len(place), column : column + place.shape[1]], place)

    def send_fp8(self, stored: Fp8Stored, place: Place, rank: int) -> None:
        """The same for a matrix in e4m3, a few rows at a time."""
        assert not isinstance(place, Int4Matrix | Mxfp4Matrix)
        for rows, data, scales, groups in fp8_rows(stored, place.shape, rank, self._device):
            values, room = self._upload(data).view(E4M3), place[rows]
            if isinstance(room, ScaledMatrix) and room.values.dtype == E4M3:
                keep_fp8(values, scales, groups, room)
            else:
                _put(values.float() * scales[:, groups], room)

    def send_mxfp4(self, stored: Stored, place: Mxfp4Matrix, rank: int) -> None:
        """The same for one that stays in MXFP4: of a row whole groups."""
        assert stored.kind == "MXFP4"
        row, column = (share_begin(*sizes, rank) for sizes in zip(stored.shape, place.shape, strict=True))
        group_bytes = stored.data.shape[1] * GROUP // stored.shape[1]
        begin, width = column // GROUP * group_bytes, place.shape[1] // GROUP * group_bytes
        place.fill(self._upload_all(stored.data[row : row + len(place), begin : begin + width]))

    def wait(self) -> None:
        for event in self._is_copied:
            event.synchronize()

    def _upload_all(self, rows: NDArray[np.uint8]) -> Tensor:
        """These rows on the device, to keep."""
        kept = torch.empty(rows.shape, dtype=torch.uint8, device=self._device.device)
        step = len(self._device) // rows.shape[1]
        assert step > 0, "a row fits into a buffer"
        for begin in range(0, len(rows), step):
            kept[begin : begin + step].copy_(self._upload(rows[begin : begin + step]))
        return kept

    def _upload(self, rows: NDArray[np.uint8]) -> Tensor:
        """These rows on the device, until the next call."""
        host = self._hosts[self._turn]
        if self._is_cuda:
            self._is_copied[self._turn].synchronize()
        target = host.numpy()[: rows.size].reshape(rows.shape)
        pieces = (np.array_split(each, _NUM_READERS) for each in (target, rows))
        list(self._readers.map(np.copyto, *pieces))
        if self._is_cuda:
            self._device[: rows.size].copy_(host[: rows.size], non_blocking=True)
            self._is_copied[self._turn].record()
            self._turn = 1 - self._turn
        return self._device[: rows.size].view(rows.shape)
