"""What reading a GGUF file's header comes to, kept in `cache/models` below HOTLOOP_HOME: lists of hundreds of
thousands of strings take a second to read, and what is made of them a few hundredths.

    [ magic | version | checksum ][ KeptModel in MessagePack ]

A file is named after the model's fingerprint, which changes whenever the model does, and is written in one step. What
cannot be read is made anew, what cannot be written is made anew the next time.
"""

import hashlib
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from hotloop.core.errors import ModelError
from hotloop.core.files import write_private
from hotloop.core.home import home
from hotloop.core.structs import compiled
from hotloop.models.gguf import UNREADABLE, GgufFile
from hotloop.models.spec import FileTensor
from hotloop.models.tokenizer import Tokenizer, TokenTable
from hotloop.models.vocabulary import Vocabulary

_VERSION = 1
"""Raise it whenever something else is made of the same file."""
_MAGIC = b"hotloopM"
_HEADER = struct.Struct("<8sII")
MIN_TOKENS = 10_000  # a smaller vocabulary is read as quickly
_MAX_BYTES = 512 << 20  # of all files; those written last stay
_LONG = {f"tokenizer.ggml.{name}" for name in ("merges", "scores", "token_type", "tokens")}
"""Metadata of which a vocabulary was made."""


class _KeptTensor(msgspec.Struct, frozen=True):
    offset: int
    kind: str
    shape: tuple[int, ...]
    row_bytes: int


@compiled
class _KeptModel(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]
    tensors: dict[str, _KeptTensor]
    bos_id: int | None
    eos_ids: list[int]
    wants_bos: bool
    table: TokenTable
    vocabulary: msgspec.Raw
    """Read where something is encoded first."""


def read_kept(path: Path, fingerprint: str) -> tuple[GgufFile, Tokenizer] | None:
    """A file's header, but for what is long in it, and its tokenizer; None if they are not kept."""
    try:
        data = memoryview(_place(fingerprint).read_bytes())
        if data[: _HEADER.size] != _header(data[_HEADER.size :]):
            return None
        kept = msgspec.msgpack.decode(data[_HEADER.size :], type=_KeptModel)
        return _file_of(path, kept), _tokenizer_of(kept)
    except (OSError, ValueError, ModelError):
        return None


def keep(
    fingerprint: str, file: GgufFile, vocabulary: Vocabulary, tokenizer: Tokenizer, *, min_tokens: int = MIN_TOKENS
) -> None:
    """Where there is room, and where it is worth it."""
    if len(vocabulary.ids) < min_tokens:
        return
    kept = _KeptModel(
        {name: value for name, value in file.metadata.items() if name not in _LONG},
        {name: _KeptTensor(each.offset, each.kind, each.shape, each.row_bytes) for name, each in file.tensors.items()},
        tokenizer.bos_id,
        sorted(tokenizer.eos_ids),
        tokenizer.wants_bos,
        tokenizer.table,
        msgspec.Raw(msgspec.msgpack.encode(vocabulary)),
    )
    data = msgspec.msgpack.encode(kept)
    with suppress(OSError):
        place = _place(fingerprint)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(place, _header(memoryview(data)) + data)
        _drop_oldest(place.parent)


def _file_of(path: Path, kept: _KeptModel) -> GgufFile:
    tensors, size = {}, path.stat().st_size
    for name, each in kept.tensors.items():
        tensors[name] = FileTensor(path, each.offset, each.kind, each.shape, each.row_bytes)
        tensors[name].check_end(name, size)
        if each.kind in UNREADABLE:
            raise ValueError(each.kind)
    return GgufFile(path, kept.metadata, tensors)


def _tokenizer_of(kept: _KeptModel) -> Tokenizer:
    return Tokenizer(
        lambda: msgspec.msgpack.decode(kept.vocabulary, type=Vocabulary).make(),
        bos_id=kept.bos_id,
        eos_ids=kept.eos_ids,
        wants_bos=kept.wants_bos,
        table=kept.table,
    )


def _header(data: memoryview) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, zlib.crc32(data))


def _place(fingerprint: str) -> Path:
    name = hashlib.sha256(f"{fingerprint} {_VERSION} {tokenizers.__version__}".encode()).hexdigest()[:32]
    return home() / "cache" / "models" / f"{name}.header"


def _drop_oldest(folder: Path) -> None:
    num_bytes = 0
    for path in sorted(folder.glob("*.header"), key=os.path.getmtime, reverse=True):
        num_bytes += path.stat().st_size
        if num_bytes > _MAX_BYTES:
            path.unlink()
