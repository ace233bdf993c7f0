"""A GGUF file that was read before is the same model the next time, whatever became of what was kept of it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.models.tiny import tiny_spec, tiny_weights, write_gguf

from hotloop.core.home import home
from hotloop.models.gguf import GgufFile, read_gguf_file
from hotloop.models.kept import keep, read_kept
from hotloop.models.model import load_model
from hotloop.models.tokenizer import Tokenizer
from hotloop.models.vocabulary import gguf_tokenizer, gguf_vocabulary

TEXT = "the lazy fox, 10!<|im_end|> ünï <tool>"
FINGERPRINT = "of a file"


@pytest.fixture
def path(tmp_path: Path, empty_home: Path) -> Path:
    spec = tiny_spec("qwen2")
    return write_gguf(tmp_path / "m.gguf", spec, tiny_weights(spec), {"general.name": "ünï", "numbers": [1, 2]})


def keep_all(path: Path) -> tuple[GgufFile, Tokenizer]:
    file = read_gguf_file(path)
    vocabulary = gguf_vocabulary(file)
    tokenizer = gguf_tokenizer(file, vocabulary)
    keep(FINGERPRINT, file, vocabulary, tokenizer, min_tokens=0)
    return file, tokenizer


def kept_file() -> Path:
    [found] = (home() / "cache" / "models").iterdir()
    return found


def test_what_is_kept_is_what_was_read(path: Path) -> None:
    file, tokenizer = keep_all(path)
    kept = read_kept(path, FINGERPRINT)
    assert kept
    again, same = kept
    assert again.tensors == file.tensors
    assert again.metadata.items() <= file.metadata.items()
    assert file.metadata.keys() - again.metadata.keys() == {
        f"tokenizer.ggml.{name}" for name in ("merges", "token_type", "tokens")
    }
    assert same.encode(TEXT) == tokenizer.encode(TEXT)
    assert [*same.split(TEXT)] == [*tokenizer.split(TEXT)]
    ids = range(-1, tokenizer.vocab_size + 1)
    assert [*map(same.token_bytes, ids)] == [*map(tokenizer.token_bytes, ids)]
    assert [*map(same.token_text, ids)] == [*map(tokenizer.token_text, ids)]
    for name in ("vocab_size", "max_token_bytes", "bos_id", "eos_ids", "wants_bos", "can_split"):
        assert getattr(same, name) == getattr(tokenizer, name), name


def test_a_model_is_read_from_what_is_kept(default_model_path: Path, empty_home: Path) -> None:
    first = load_model(str(default_model_path))
    written_at = kept_file().stat().st_mtime_ns
    second = load_model(str(default_model_path))
    assert kept_file().stat().st_mtime_ns == written_at
    assert second.spec == first.spec
    assert second.tokenizer.table == first.tokenizer.table
    assert second.tokenizer.encode(TEXT) == first.tokenizer.encode(TEXT)
    assert first.template
    assert second.template
    assert second.template.source == first.template.source


def test_a_small_vocabulary_is_not_kept(path: Path) -> None:
    load_model(str(path))
    assert not (home() / "cache" / "models").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: b"hotloopX" + data[8:],
    ],
)
def test_what_is_damaged_is_made_anew(path: Path, damage: Callable[[bytes], bytes]) -> None:
    keep_all(path)
    kept_file().write_bytes(damage(kept_file().read_bytes()))
    assert read_kept(path, FINGERPRINT) is None
    keep_all(path)
    assert read_kept(path, FINGERPRINT)


def test_nothing_is_kept_of_another_file(path: Path) -> None:
    keep_all(path)
    assert read_kept(path, "of a changed file") is None
    os.truncate(path, path.stat().st_size - 100)
    assert read_kept(path, FINGERPRINT) is None, "its tensors would end behind the file"


def test_where_nothing_can_be_written_only_time_is_lost(path: Path) -> None:
    (home() / "cache").mkdir(parents=True)
    (home() / "cache" / "models").write_text("no folder")
    keep_all(path)
    assert read_kept(path, FINGERPRINT) is None
