"""A model in a GGUF file: metadata and tensor descriptions at the front, tensors behind.

Invariant: every tensor of a `GgufFile` lies inside its file and is of a type that can be read. The header is parsed
here, because the `gguf` package takes seconds over a vocabulary; what the tensor types mean is left to that package.
Refuses what would be computed wrongly: other architectures, shards, rotary scaling it does not know.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.architecture import GPT_OSS_LIMIT, GPT_OSS_SLOPE
from hotloop.models.layout import check_spec, check_tensors, tensor_places
from hotloop.models.rope import scaling_from_config, scaling_from_divisors
from hotloop.models.spec import ExpertsSpec, Family, FileTensor, ModelSpec, RopeScaling, Stored

T = TypeVar("T", str, int, float, bool)

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "?"}
_SCALARS |= {10: "<u8", 11: "<i8", 12: "<f8"}
_MAX_NESTING, _MAX_DIMS = 4, 4
_FAMILIES: dict[str, Family] = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3moe", "gpt-oss": "gptoss",
}  # fmt: skip
_WITH_EXPERTS = ("llama", "qwen3moe", "gpt-oss")
_PIECE_ROWS = 4096
_ROPE_DIVISORS = "rope_freqs.weight"
_ROPE_KEYS = {  # what Hugging Face calls it: what it is called after rope.scaling
    "rope_type": "type",
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The header of one file; tensors are read on demand."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, FileTensor]

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A metadata value of the kind wanted; a missing one without a default is an error."""
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self.path}: the metadata has no {key}")
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelError(f"{self.path}: {key} should be of type {kind.__name__}, not {value!r:.60}")
        return value

    def items(self, key: str, kind: type[T]) -> list[T]:
        """A metadata array whose elements are all of one kind."""
        values = self.metadata.get(key)
        if not isinstance(values, list):
            raise ModelError(f"{self.path}: the metadata has no list {key}")
        if not set(map(type, values)) <= {kind}:
            raise ModelError(f"{self.path}: {key} should hold only {kind.__name__} values")
        return values


def widen(stored: Stored) -> NDArray[np.float32]:
    """Stored rows, of any kind that a GGUF file may have, as float32."""
    rows = dequantize(stored.data, GGMLQuantizationType[stored.kind])
    return np.ascontiguousarray(rows, np.float32).reshape(stored.shape)


def quantise(matrix: NDArray[np.float32]) -> Stored:
    """Rows of multiples of 32 numbers in Q8_0, some at a time: what that takes meanwhile is several times as large."""
    pieces = [matrix[i : i + _PIECE_ROWS] for i in range(0, len(matrix), _PIECE_ROWS)]
    data = np.concatenate([quantize(piece, GGMLQuantizationType.Q8_0) for piece in pieces])
    return Stored(data, "Q8_0", matrix.shape)


def read_gguf_file(path: Path) -> GgufFile:
    """Parse the header and check that every tensor is wholly there."""
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise ModelError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
            return _parse(path, _Header(path, file, path.stat().st_size))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None


def check_beginning(path: Path, data: bytes) -> None:
    """Refuse a file of that name that cannot be run, as far as its first bytes tell: the rest need not be here."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ModelError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
    header, metadata = _Header(path, BytesIO(data[len(_MAGIC) :]), len(data) - len(_MAGIC)), dict[str, Any]()
    with suppress(ModelError):  # where the bytes end
        header.take(12)
        for _ in range(header.u64()):
            key = header.string()
            metadata[key] = header.value(header.u32())
    if "general.architecture" in metadata:
        _refuse_unsupported(GgufFile(path, metadata, {}))


def _parse(path: Path, header: "_Header") -> GgufFile:
    version = header.u32()
    if version not in _VERSIONS:
        raise ModelError(f"{path}: GGUF version {version} is not one of {_VERSIONS} (a big-endian file, perhaps)")
    num_tensors, num_entries = header.u64(), header.u64()
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = header.string()
        metadata[key] = header.value(header.u32())
    described = dict(_describe(header) for _ in range(num_tensors))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelError(f"{path}: general.alignment is {alignment!r:.60}")
    begin = -(-header.at // alignment) * alignment
    tensors = {name: replace(tensor, offset=begin + tensor.offset) for name, tensor in described.items()}
    for name, tensor in tensors.items():
        if not _is_readable(tensor.kind):
            raise ModelError(f"{path}: tensor {name} has type {tensor.kind}, which cannot be read")
        tensor.check_end(name, header.size)
    return GgufFile(path, metadata, tensors)


@cache
def _is_readable(name: str) -> bool:
    """Whether the package can widen this type: it says so only when asked to, so ask for one block of zeros."""
    kind = GGMLQuantizationType[name]
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _describe(header: "_Header") -> tuple[str, FileTensor]:
    """A tensor's name and its place, counted from where the tensors begin."""
    name, num_dims = header.string(), header.u32()
    if num_dims > _MAX_DIMS:
        raise header.damaged(f"tensor {name} claims {num_dims} dimensions")
    shape = tuple(reversed([header.u64() for _ in range(num_dims)]))  # in numpy's order
    type_id, offset = header.u32(), header.u64()
    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError:
        raise header.damaged(f"tensor {name} has the unknown type {type_id}") from None
    block_items, block_bytes = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % block_items:
        raise header.damaged(f"tensor {name} of type {kind.name} cannot have the shape {shape}")
    return name, FileTensor(header.path, offset, kind.name, shape, shape[-1] // block_items * block_bytes)


class _Header:
    """Reads forward through the header and never past the end of the file."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self._file = path, file
        self.at, self.size = file.tell(), size

    def damaged(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: the header is damaged at byte {self.at}: {what}")

    def take(self, num_bytes: int) -> bytes:
        self.at += num_bytes
        if self.at > self.size:
            raise ModelError(f"{self.path} is cut short: its header goes on after its end at byte {self.size}")
        return self._file.read(num_bytes)

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self) -> str:
        try:
            return self.take(self.u64()).decode()
        except UnicodeDecodeError:
            raise self.damaged("text that is not UTF-8") from None

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self._numbers(kind, 1)[0]
        if kind == _ARRAY and depth < _MAX_NESTING:
            item_kind, count = self.u32(), self.u64()
            if item_kind in _SCALARS:
                return self._numbers(item_kind, count)
            return [self.value(item_kind, depth + 1) for _ in range(count)]
        raise self.damaged(f"a value of unknown type {kind}")

    def _numbers(self, kind: int, count: int) -> list[Any]:
        dtype = np.dtype(_SCALARS[kind])
        return list(np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist())


class GgufWeights:
    """The tensors of one file, read one at a time."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        check_spec(file.path, spec, len(file.tensors))
        places = list(tensor_places(spec))
        found = {name: tensor.shape for name, tensor in file.tensors.items()}
        all_experts = (spec.experts.num_experts,) if spec.experts else ()
        wanted = {p.gguf_name: p.shape if p.expert is None else (*all_experts, *p.shape) for p in places}
        check_tensors(file.path, wanted, found, [_ROPE_DIVISORS])
        self._file = file
        self._places = {place.name: place for place in places}
        # Only the llama architecture is stored with the rotary halves of each head interleaved.
        is_llama = spec.family in ("llama", "mixtral")
        self._interleaved = {"q": spec.num_heads, "k": spec.num_kv_heads} if is_llama else {}

    def read(self, name: str) -> NDArray[np.float32]:
        return widen(self.stored(name))

    def stored(self, name: str) -> Stored:
        place = self._places[name]
        found = self._file.tensors[place.gguf_name].stored()
        if place.expert is not None:
            return Stored(found.data[place.expert], found.kind, place.shape)
        num_heads = self._interleaved.get(name.rpartition(".")[2].removesuffix("_bias"))
        if not num_heads:
            return found
        # Rows of each head from a0 b0 a1 b1 … to a0 a1 … b0 b1 …; a bias has a row for each number.
        row_bytes = found.data.size // found.shape[0]
        pairs = found.data.reshape(num_heads, -1, 2, row_bytes).swapaxes(1, 2)
        return replace(found, data=np.ascontiguousarray(pairs).reshape(found.data.shape))


def gguf_spec(file: GgufFile) -> ModelSpec:
    _refuse_unsupported(file)
    arch, family = file.get("general.architecture", str), _family(file)
    experts = _experts(file, arch)
    if experts and family == "llama":
        family = "mixtral"
    embed = file.tensors.get("token_embd.weight")
    if embed is None:
        raise ModelError(f"{file.path}: the tensor token_embd.weight is missing")
    num_heads = file.get(f"{arch}.attention.head_count", int)
    hidden_size = file.get(f"{arch}.embedding_length", int)
    head_dim = file.get(f"{arch}.attention.key_length", int, hidden_size // max(num_heads, 1))
    rope_theta = file.get(f"{arch}.rope.freq_base", float, 10_000.0)
    if file.get(f"{arch}.rope.dimension_count", int, head_dim) != head_dim:
        raise ModelError(f"{file.path}: rotary positions over only a part of each head are not supported")
    if file.get(f"{arch}.attention.value_length", int, head_dim) != head_dim:
        raise ModelError(f"{file.path}: keys and values of different widths are not supported")
    max_context = file.get(f"{arch}.context_length", int)
    window, num_layers = file.get(f"{arch}.attention.sliding_window", int, 0), file.get(f"{arch}.block_count", int)
    scaling: RopeScaling | None
    if _ROPE_DIVISORS in file.tensors:
        divisors = widen(file.tensors[_ROPE_DIVISORS].stored())
        scaling = scaling_from_divisors(divisors, head_dim, str(file.path))
    else:
        rope = {name: file.metadata.get(f"{arch}.rope.scaling.{theirs}") for name, theirs in _ROPE_KEYS.items()}
        rope = {name: value for name, value in rope.items() if value is not None and value != "none"}
        rope["truncate"] = family != "gptoss"  # which no file says, and its config.json does
        scaling = scaling_from_config(
            rope, theta=rope_theta, head_dim=head_dim, max_context=max_context, where=str(file.path)
        )
    return ModelSpec(
        family=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=file.get(f"{arch}.feed_forward_length", int),
        num_heads=num_heads,
        num_kv_heads=file.get(f"{arch}.attention.head_count_kv", int, num_heads),
        head_dim=head_dim,
        vocab_size=embed.shape[0],
        max_context=max_context,
        rms_eps=file.get(f"{arch}.attention.layer_norm_rms_epsilon", float),
        rope_theta=rope_theta,
        rope_scaling=scaling,
        has_tied_head="output.weight" not in file.tensors,
        has_qkv_bias=family == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        has_o_bias=family == "gptoss",
        has_qk_norm=family in ("qwen3", "qwen3moe"),
        has_sinks=family == "gptoss",
        experts=experts,
        windows=_windows(window, min(num_layers, len(file.tensors)), family) if 0 < window < max_context else (),
    )


def _windows(window: int, num_layers: int, family: Family) -> tuple[int | None, ...]:
    """Of gpt-oss every second layer has one, the first among them."""
    return tuple(window if family != "gptoss" or i % 2 == 0 else None for i in range(num_layers))


def _experts(file: GgufFile, arch: str) -> ExpertsSpec | None:
    if arch not in _WITH_EXPERTS or not file.get(f"{arch}.expert_count", int, 0):
        return None
    experts = ExpertsSpec(
        num_experts=file.get(f"{arch}.expert_count", int),
        num_chosen=file.get(f"{arch}.expert_used_count", int),
        size=file.get(f"{arch}.{'' if arch == 'llama' else 'expert_'}feed_forward_length", int),
    )
    if arch != "gpt-oss":
        return experts
    kinds = {tensor.kind for name, tensor in file.tensors.items() if name.endswith("_exps.weight")}
    limits = replace(experts, gate_limit=GPT_OSS_LIMIT, gate_slope=GPT_OSS_SLOPE)
    return replace(limits, has_bias=True, has_router_bias=True, is_mxfp4=kinds == {"MXFP4"})


def _family(file: GgufFile) -> Family:
    architecture = file.get("general.architecture", str)
    if architecture not in _FAMILIES:
        only = ", ".join(_FAMILIES)
        raise ModelError(f"{file.path}: the architecture {architecture!r} is not supported (only {only} are)")
    return _FAMILIES[architecture]


def _refuse_unsupported(file: GgufFile) -> None:
    family, arch = _family(file), file.get("general.architecture", str)
    if file.get("split.count", int, 1) > 1:
        raise ModelError(f"{file.path} is one shard of several: join them into one file first")
    if arch not in _WITH_EXPERTS and file.get(f"{arch}.expert_count", int, 0) > 0:
        raise ModelError(f"{file.path}: {family} with mixture-of-experts layers is not supported: dense models are")
    if file.get(f"{arch}.rope.scale_linear", float, 1.0) != 1.0:
        raise ModelError(f"{file.path}: rope.scale_linear is not supported: rope.scaling.type is")
