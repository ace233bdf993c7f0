"""Tokenizers that would end the process, or take all its memory, are refused in a line."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.models.tiny import tiny_spec, tiny_tokenizer, tiny_weights, write_folder

from hotloop.core.errors import ModelError, RequestError
from hotloop.models.huggingface import folder_tokenizer
from hotloop.models.tokenizer_file import check_tokenizer

SPEC = tiny_spec("llama", num_layers=1)
BASE = json.loads(tiny_tokenizer().to_str())
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
MARK = {"SpecialToken": {"id": "x", "type_id": 0}}
DOUBLE_A = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def mark(num_ids: int) -> dict[str, Any]:
    return {"x": {"id": "x", "ids": [0] * num_ids, "tokens": ["x"] * num_ids}}


def template(single: list[Any], tokens: dict[str, Any]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": [TEXT], "special_tokens": tokens}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def charsmap(replacement: str, trie: bytes = bytes(4)) -> str:
    table = len(trie).to_bytes(4, "little") + trie + replacement.encode() + b"\0"
    return base64.b64encode(table).decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "m", SPEC, tiny_weights(SPEC))


def refuse(folder: Path, text: str, line: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=f"tokenizer.json cannot be read: .*{line}") as caught:
        folder_tokenizer(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"post_processor": template([MARK] * 10_000 + [TEXT], mark(10_000))}, "adds 100000000 ids to a text"),
        (
            {"post_processor": {"type": "Sequence", "processors": [template([MARK] * 9 + [TEXT], mark(9))] * 9}},
            "adds 729 ids",
        ),
        ({"post_processor": template([MARK, TEXT], {})}, "no entry found for key"),
        ({"normalizer": sequence(*[DOUBLE_A] * 40)}, "makes 1099511627776 characters of one"),
        ({"normalizer": sequence(sequence(*[DOUBLE_A] * 4), sequence(*[DOUBLE_A] * 4))}, "makes 256 characters"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 99}}, "makes 100 characters"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 99}}, "makes 100 characters"),
        ({"normalizer": sequence(*[{"type": "ByteLevel"}] * 4)}, "makes 256 characters"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap("x" * 99)}}, "makes 99 characters"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap("", b"")}}, "charsmap is damaged"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "//////////8="}}, "charsmap is damaged"),
        ({"normalizer": sequence(*[{"type": "NFC"}] * 999)}, "999 steps"),
        ({"model": BASE["model"] | {"vocab": BASE["model"]["vocab"] | {"zz": 4_000_000_000}}}, "ids up to 4000000000"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "chunk size must be non-zero"),
        ({"model": {"type": "Unigram", "unk_id": None, "vocab": [["q", 0.0]]}}, "unknown token"),
    ],
)
def test_a_hostile_tokenizer_is_refused(folder: Path, changes: dict[str, Any], line: str) -> None:
    refuse(folder, json.dumps(BASE | changes), line)


@pytest.mark.parametrize("key", ["normalizer", "decoder", "model", "else"])
def test_a_deep_tokenizer_is_refused(folder: Path, key: str) -> None:
    nested = "[" * 100_000 + "]" * 100_000
    others = {name: value for name, value in BASE.items() if name != key}
    refuse(folder, f'{json.dumps(others)[:-1]}, "{key}": {nested}}}', "it is nested too deeply")


def test_a_field_is_there_once(folder: Path) -> None:
    twice = '{"type": "Replace", "pattern": {"String": "a"}, "content": "a", "content": "aa"}'
    others = {name: value for name, value in BASE.items() if name != "normalizer"}
    refuse(folder, f'{json.dumps(others)[:-1]}, "normalizer": {twice}}}', "a field is there twice")


def test_a_text_that_the_tokenizer_cannot_cut_is_the_requests_error(folder: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps(BASE | {"pre_tokenizer": split}))
    tokenizer = folder_tokenizer(folder)
    with pytest.raises(RequestError, match=r"cannot encode this text: .*retry-limit-in-match"):
        tokenizer.encode("x" * 99)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"normalizer": sequence({"type": "Prepend", "prepend": "▁"}, DOUBLE_A | {"content": "▁"})},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap("ﷺ" * 18)}},
        {"normalizer": sequence({"type": "NFC"}, {"type": "ByteLevel"})},
        {"post_processor": template([MARK, TEXT, MARK], mark(1))},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]}},
    ],
)
def test_what_models_have_is_read(changes: dict[str, Any]) -> None:
    check_tokenizer(json.dumps(BASE | changes).encode())
