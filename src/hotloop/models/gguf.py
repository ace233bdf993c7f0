"""GGUF files: metadata and tensor descriptions at the front, tensors behind. What they say of a model: `gguf_model`.

Invariant: every tensor of a `GgufFile` lies inside its file and is of a type that can be read. The header is parsed
here, because the `gguf` package takes seconds over a vocabulary; what quantised numbers mean is left to that package,
which is imported when the first of them is read.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
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
# Of each number of a tensor type its name, the numbers in a block of it, and its bytes.
KINDS = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
UNREADABLE = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64", "Q1_0"}
"""Those that nothing turns into numbers."""


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
    if stored.kind == "F32":
        rows = stored.data.view(np.float32)
    else:
        from gguf.constants import GGMLQuantizationType  # noqa: PLC0415 - a tenth of a second, which few models need
        from gguf.quants import dequantize  # noqa: PLC0415

        rows = dequantize(stored.data, GGMLQuantizationType[stored.kind])
    return np.ascontiguousarray(rows, np.float32).reshape(stored.shape)


def quantise(matrix: NDArray[np.float32]) -> Stored:
    """Rows of multiples of 32 numbers in Q8_0, some at a time: what that takes meanwhile is several times as large."""
    from gguf.constants import GGMLQuantizationType  # noqa: PLC0415 - as above
    from gguf.quants import quantize  # noqa: PLC0415

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
        if tensor.kind in UNREADABLE:
            raise ModelError(f"{path}: tensor {name} has type {tensor.kind}, which cannot be read")
        tensor.check_end(name, header.size)
    return GgufFile(path, metadata, tensors)


def _describe(header: "_Header") -> tuple[str, FileTensor]:
    """A tensor's name and its place, counted from where the tensors begin."""
    name, num_dims = header.string(), header.u32()
    if num_dims > _MAX_DIMS:
        raise header.damaged(f"tensor {name} claims {num_dims} dimensions")
    shape = tuple(reversed([header.u64() for _ in range(num_dims)]))  # in numpy's order
    type_id, offset = header.u32(), header.u64()
    if type_id not in KINDS:
        raise header.damaged(f"tensor {name} has the unknown type {type_id}")
    kind, block_items, block_bytes = KINDS[type_id]
    if not shape or shape[-1] % block_items:
        raise header.damaged(f"tensor {name} of type {kind} cannot have the shape {shape}")
    return name, FileTensor(header.path, offset, kind, shape, shape[-1] // block_items * block_bytes)


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
