import pickle
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.tiny import (
    SPECIAL,
    tiny_spec,
    tiny_tokenizer,
    tiny_weights,
    tokenizer_metadata,
    write_folder,
    write_json,
)
from tests.properties import examples
from tokenizers import decoders, models, normalizers, pre_tokenizers

from hotloop.core.errors import ModelError
from hotloop.models.gguf import GgufFile
from hotloop.models.huggingface import folder_template, folder_tokenizer
from hotloop.models.model import load_model
from hotloop.models.tokenizer import Tokenizer
from hotloop.models.vocabulary import gguf_tokenizer

PIECES = [
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "the",
    "fox",
    "It's",
    "WE'LL",
    "x1",
    "42",
    "12345",
    "é",
    "ﬁ",
    "日本",
    "👍🏽",
    "...",
    "()",
]
texts = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
many = settings(max_examples=examples(200))


def from_metadata(changes: dict[str, Any], arch: str = "llama") -> Tokenizer:
    metadata = {"general.architecture": arch, **tokenizer_metadata(tiny_tokenizer()), **changes}
    return gguf_tokenizer(GgufFile(Path("m.gguf"), {k: v for k, v in metadata.items() if v is not None}, {}))


def sentencepiece(**changes: Any) -> Tokenizer:
    """A vocabulary as SentencePiece would train it: bytes, then characters, then ever longer pieces."""
    special = ["<unk>", "<s>", "</s>"]
    lone_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    merged = ["▁t", "he", "▁the", "▁f", "ox", "▁fox", "▁▁"]
    tokens = [*special, *lone_bytes, *merged, *"▁theofx,", "<tool>"]
    scores = [0.0] * 259 + [-float(i) for i in range(len(merged))] + [-1e9] * 8 + [0.0]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(merged) + 8) + [4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return gguf_tokenizer(GgufFile(Path("m.gguf"), metadata, {}))


GPT2, LLAMA3, SMOLLM = (from_metadata({"tokenizer.ggml.pre": pre}) for pre in ("gpt-2", "llama-bpe", "smollm"))
QWEN, TEKKEN, O200K = (from_metadata({"tokenizer.ggml.pre": pre}) for pre in ("qwen2", "tekken", "gpt-4o"))
GLM4, DEEPSEEK3 = (from_metadata({"tokenizer.ggml.pre": pre}) for pre in ("glm4", "deepseek-v3"))
SPM, BARE_SPM = sentencepiece(), sentencepiece(add_space_prefix=False)


@many
@given(text=texts)
def test_the_bytes_of_the_tokens_are_the_text(text: str) -> None:
    data = text.encode()
    for tokenizer in (GPT2, LLAMA3, SMOLLM, TEKKEN, O200K, GLM4, DEEPSEEK3, BARE_SPM):
        ids = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == data
        assert tokenizer.decode(ids) == text
    normal = normalizers.NFC().normalize_str(text)
    assert QWEN.decode(QWEN.encode(text)) == normal
    assert SPM.decode(SPM.encode(text)) == text


def test_a_tokenizer_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(GPT2)).encode("as Ray does") == GPT2.encode("as Ray does")


@many
@given(text=texts)
def test_a_gguf_encodes_as_the_tokenizer_it_was_made_from(text: str) -> None:
    assert GPT2.encode(text) == tiny_tokenizer().encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (GPT2, ["It", "'s", "Ġ", "Ġ1234", "!?", "ĊĊĠ", "Ġx"]),
        (SMOLLM, ["It", "'s", "ĠĠ", "1", "2", "3", "4", "!?", "ĊĊĠ", "Ġx"]),
        (QWEN, ["It", "'s", "Ġ", "Ġ", "1", "2", "3", "4", "!?ĊĊ", "Ġ", "Ġx"]),
        (LLAMA3, ["It", "'s", "Ġ", "Ġ", "123", "4", "!?ĊĊ", "Ġ", "Ġx"]),
        (O200K, ["It's", "Ġ", "Ġ", "123", "4", "!?ĊĊ", "Ġ", "Ġx"]),
        (GLM4, ["It", "'s", "Ġ", "Ġ", "123", "4", "!?ĊĊ", "Ġ", "Ġx"]),
        (DEEPSEEK3, ["It", "'s", "ĠĠ", "123", "4", "!?ĊĊ", "Ġ", "Ġx"]),
    ],
)
def test_each_way_of_cutting_words(tokenizer: Tokenizer, words: list[str]) -> None:
    cut = tokenizer._inner.pre_tokenizer.pre_tokenize_str("It's  1234!?\n\n  x")
    assert [word for word, _ in cut] == words


def test_deepseek_cuts_numbers_and_chinese_first() -> None:
    cut = DEEPSEEK3._inner.pre_tokenizer.pre_tokenize_str("a12345中b_Name")
    assert [span for _, span in cut] == [(0, 1), (1, 4), (4, 6), (6, 7), (7, 8), (8, 13)]


def test_special_tokens_are_recognised_in_text_and_stand_for_nothing() -> None:
    ids = GPT2.encode("<|im_start|>the<|im_end|>")
    start, end = (tiny_tokenizer().token_to_id(token) for token in SPECIAL[1:])
    assert (ids[0], ids[-1]) == (start, end)
    assert GPT2.is_special(start)
    assert GPT2.token_bytes(start) == b""
    assert GPT2.token_text(start) == "<|im_start|>"
    assert GPT2.decode(ids) == "the"
    assert GPT2.decode(ids, keep_special=True) == "<|im_start|>the<|im_end|>"


def test_user_defined_tokens_are_text() -> None:
    (token_id,) = GPT2.encode("<tool_call>")
    assert not GPT2.is_special(token_id)
    assert GPT2.token_bytes(token_id) == b"<tool_call>"
    assert GPT2.decode([token_id]) == "<tool_call>"


def test_ids_without_a_token_stand_for_nothing() -> None:
    for token_id in (-1, GPT2.vocab_size, 1 << 40):
        assert GPT2.token_bytes(token_id) == b""
        assert GPT2.token_text(token_id) == ""


def test_padding_tokens_are_no_tokens() -> None:
    metadata = tokenizer_metadata(tiny_tokenizer())
    padded = from_metadata(
        {
            "tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"], "[PAD1]", "[PAD2]"],
            "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"], 5, 5],
        }
    )
    assert padded.vocab_size == GPT2.vocab_size
    assert padded.token_bytes(padded.vocab_size) == b""


def test_half_a_character_is_shown_with_a_replacement() -> None:
    ids = GPT2.encode("日")
    assert len(ids) == 3
    assert GPT2.token_bytes(ids[0]) == b"\xe6"
    assert GPT2.token_text(ids[0]) == "\N{REPLACEMENT CHARACTER}"
    assert GPT2.decode(ids[:2]) == "\N{REPLACEMENT CHARACTER}"


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert GPT2.decode(GPT2.encode("a\ud83db")) == "a\N{REPLACEMENT CHARACTER}b"


def test_bos_is_added_only_when_asked() -> None:
    assert GPT2.encode("the", add_bos=True) == [GPT2.bos_id, *GPT2.encode("the")]
    bare = from_metadata({"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": True})
    assert bare.bos_id is None
    assert not bare.wants_bos
    assert bare.encode("the", add_bos=True) == bare.encode("the")


@pytest.mark.parametrize(
    ("pre", "wants_bos"), [("gpt-2", False), ("qwen2", False), ("glm4", False), ("llama-bpe", True)]
)
def test_whether_plain_text_wants_bos(pre: str, wants_bos: bool) -> None:
    assert from_metadata({"tokenizer.ggml.pre": pre}).wants_bos is wants_bos
    assert from_metadata({"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": True}).wants_bos


def test_every_end_the_metadata_or_the_vocabulary_names_counts() -> None:
    end_of_text, im_end = (tiny_tokenizer().token_to_id(token) for token in (SPECIAL[0], SPECIAL[2]))
    assert GPT2.eos_ids == {im_end}
    assert from_metadata({"tokenizer.ggml.eos_token_id": end_of_text}).eos_ids == {end_of_text, im_end}
    assert from_metadata({"tokenizer.ggml.eot_token_id": end_of_text}).eos_ids == {end_of_text, im_end}


def test_an_unnamed_way_of_cutting_follows_the_architecture() -> None:
    text = "It's  1234!?\n\n  x"
    for changes in ({"tokenizer.ggml.pre": None}, {"tokenizer.ggml.pre": "default"}):
        assert from_metadata(changes).encode(text) == GPT2.encode(text)
        assert from_metadata(changes, "qwen3").encode(text) == QWEN.encode(text)


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    pieces = [SPM.token_text(i) for i in SPM.encode("the fox, the")]
    assert pieces == [" the", " fox", ",", " the"]
    assert [SPM.token_bytes(i) for i in SPM.encode("é")[1:]] == [b"\xc3", b"\xa9"]
    assert BARE_SPM.encode("the fox") != SPM.encode("the fox")
    assert SPM.wants_bos
    assert SPM.eos_ids == {2}
    assert [SPM.token_text(i) for i in SPM.encode("<s>the<tool>")] == ["<s>", " the", "<tool>"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tokenizer.ggml.tokens": None}, "m.gguf has no tokenizer"),
        ({"tokenizer.ggml.model": "t5"}, "a tokenizer of type 't5' is not supported"),
        ({"tokenizer.ggml.pre": "gpt-99"}, "the pre-tokenizer 'gpt-99' is not known"),
        ({"tokenizer.ggml.merges": None}, "the metadata has no list tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["no such"]}, "the tokenizer is damaged"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "tokens but 2 token types"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.5]}, "tokens but 1 scores"),
    ],
)
def test_a_wrong_vocabulary_says_so(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ModelError, match=line) as caught:
        from_metadata(changes)
    assert "\n" not in str(caught.value)


def test_a_folder_names_its_ends_in_several_files(tmp_path: Path) -> None:
    spec = tiny_spec("llama")
    folder = write_folder(tmp_path / "m", spec, tiny_weights(spec), {"eos_token_id": 7})
    write_json(folder / "generation_config.json", {"eos_token_id": [8, 9]})
    im_end = tiny_tokenizer().token_to_id("<|im_end|>")
    assert folder_tokenizer(folder).eos_ids == {7, 8, 9, im_end}


def test_a_folder_without_tokenizer_config_has_neither_bos_nor_template(tmp_path: Path) -> None:
    spec = tiny_spec("llama")
    folder = write_folder(tmp_path / "m", spec, tiny_weights(spec))
    (folder / "tokenizer_config.json").unlink()
    assert folder_tokenizer(folder).bos_id is None
    assert folder_template(folder) is None


def test_a_folder_may_keep_its_template_in_three_places(tmp_path: Path) -> None:
    spec = tiny_spec("llama")
    folder = write_folder(tmp_path / "m", spec, tiny_weights(spec))
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain {{ eos_token }}"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": named, "eos_token": "<|im_end|>"})
    template = folder_template(folder)
    assert template is not None
    assert template.render([]) == "plain <|im_end|>"
    (folder / "chat_template.jinja").write_text("from a file")
    template = folder_template(folder)
    assert template is not None
    assert template.render([]) == "from a file"


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ModelError, match="neither byte-level nor SentencePiece"):
        Tokenizer(inner)


@pytest.mark.model
def test_the_default_tokenizer_on_its_own_words(default_model_path: Path) -> None:
    tokenizer = load_model(str(default_model_path)).tokenizer
    text = "<|im_start|>user\nIt costs $1,234.50 — “naïve” 日本語 👍🏽\n\tdef f(x):\n        return x  42<|im_end|>\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, keep_special=True) == text
    assert [tokenizer.token_text(i) for i in tokenizer.encode("Hello world 12  34")] == [
        "Hello",
        " world",
        " ",
        "1",
        "2",
        "  ",
        "3",
        "4",
    ]
    assert all(tokenizer.token_text(i) for i in range(tokenizer.vocab_size))


class SlowInner:
    """A tokenizer whose large texts take a while, and which knows how many it was given at once."""

    def __init__(self) -> None:
        self.inner = tiny_tokenizer()
        self.num_now, self.num_most = 0, 0
        self.lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        with self.lock:
            self.num_now += len(texts[0]) > 1000
            self.num_most = max(self.num_most, self.num_now)
        time.sleep(0.01)
        with self.lock:
            self.num_now -= len(texts[0]) > 1000
        return self.inner.encode_batch_fast([texts[0][:9]], **options)


def test_few_large_texts_are_tokenized_at_a_time() -> None:
    inner = SlowInner()
    tokenizer = Tokenizer(inner)  # type: ignore[arg-type]
    with ThreadPoolExecutor(8) as pool:
        [*pool.map(tokenizer.encode, ["x" * 1_000_000] * 8)]
        assert inner.num_most == 2
        [*pool.map(tokenizer.encode, ["x" * 10_000] * 8)]
        assert inner.num_most > 2, "others do not wait"


@given(text=st.lists(st.sampled_from(PIECES)).map("".join) | st.text() | st.just("각" * 9))
def test_no_token_stands_for_more_bytes_than_the_longest(text: str) -> None:
    plain, composing = tiny_tokenizer(), tiny_tokenizer()
    composing.normalizer = normalizers.NFC()
    text = unicodedata.normalize("NFD", text).encode(errors="replace").decode()
    for tokenizer in map(Tokenizer, (plain, composing)):
        assert len(text.encode()) <= tokenizer.max_token_bytes * len(tokenizer.encode(text))


def test_a_byte_level_token_in_letters_of_its_own_is_its_text() -> None:
    inner = tokenizers.Tokenizer(models.BPE({"Ġa": 0, "b": 1, "日本": 2, "ł": 3, "c": 4}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer = Tokenizer(inner)
    assert [tokenizer.token_bytes(i) for i in range(-1, 6)] == [b"", b" a", b"b", "日本".encode(), b"\xa0", b"c", b""]
