"""GGUF files: metadata and tensor descriptions at the front, tensors behind. What they say of a model: `gguf_model`.

Invariant: every tensor of a `GgufFile` lies inside its file and is of a type that can be read. The header is parsed
here, because the `gguf` package takes seconds over a vocabulary; what the tensor types mean is left to that package.
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
from hotloop.models.spec import FileTensor, Stored

T = TypeVar("T", str, int, float, bool)

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "?"}
_SCALARS |= {10: "<u8", 11: "<i8", 12: "<f8"}
_MAX_NESTING, _MAX_DIMS = 4, 4
_PIECE_ROWS = 4096


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


def dequantise(stored: Stored) -> NDArray[np.float32]:
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


def read_beginning(path: Path, data: bytes) -> GgufFile:
    """The metadata in a file's first bytes, as far as these go: the rest need not be here."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ModelError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
    header, metadata = _Header(path, BytesIO(data[len(_MAGIC) :]), len(data) - len(_MAGIC)), dict[str, Any]()
    with suppress(ModelError):  # where the bytes end
        header.take(12)
        for _ in range(header.u64()):
            key = header.string()
            metadata[key] = header.value(header.u32())
    return GgufFile(path, metadata, {})


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
    """Whether the package can dequantise this type: it says so only when asked to, so ask for one block of zeros."""
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
        self._go_to(self.at + num_bytes)
        return self._file.read(num_bytes)

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self) -> str:
        return self._strings(1)[0]

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self._numbers(kind, 1)[0]
        if kind == _ARRAY and depth < _MAX_NESTING:
            item_kind, count = self.u32(), self.u64()
            if item_kind in _SCALARS:
                return self._numbers(item_kind, count)
            if item_kind == _STRING:
                return self._strings(count)
            return [self.value(item_kind, depth + 1) for _ in range(count)]
        raise self.damaged(f"a value of unknown type {kind}")

    def _go_to(self, at: int) -> None:
        self.at = at
        if at > self.size:
            raise ModelError(f"{self.path} is cut short: its header goes on after its end at byte {self.size}")

    def _strings(self, count: int) -> list[str]:
        """Each after its length. Vocabularies have hundreds of thousands, so this calls only what it must."""
        texts, at, size, read = [], self.at, self.size, self._file.read
        try:
            for _ in range(count):
                length = int.from_bytes(read(8), "little")
                at += 8 + length
                if at > size:
                    break
                texts.append(read(length).decode())
        except UnicodeDecodeError:
            self.at = at
            raise self.damaged("text that is not UTF-8") from None
        self._go_to(at)
        return texts

    def _numbers(self, kind: int, count: int) -> list[Any]:
        dtype = np.dtype(_SCALARS[kind])
        return list(np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist())
