"""Tokenizers for models that have none: they spell every text, and have an end of turn, so a grammar can bind them."""

import json
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

END = "<|im_end|>"
_REPOSITORY = Path(__file__).parents[2]
_CORPUS = ("src/**/*.py", "docs/*.md", "*.md", "tests/**/*.py")


def write_byte_tokenizer(folder: Path, vocab_size: int) -> None:
    """A token a byte, made-up words, and last the end of a turn."""
    _write(folder, vocab_size, sorted(pre_tokenizers.ByteLevel.alphabet()), [])


def write_trained_tokenizer(folder: Path, vocab_size: int, num_trained: int = 16_000) -> None:
    """As many real tokens, learned from this repository, and made-up words up to the size of the vocabulary: JSON takes
    about as many tokens as with a real model's.
    """
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=num_trained, initial_alphabet=sorted(alphabet), show_progress=False)
    inner.train_from_iterator(_texts(), trainer)
    ids = inner.get_vocab()
    merges = [(first, second) for first, second in json.loads(inner.to_str())["model"]["merges"]]
    _write(folder, vocab_size, sorted(ids, key=ids.__getitem__), merges)


def _write(folder: Path, vocab_size: int, words: list[str], merges: list[tuple[str, str]]) -> None:
    known = set(words)
    assert len(words) < vocab_size, "there is room for the end of a turn"
    made_up = (word for i in range(2 * vocab_size) if (word := f"Ġw{i}") not in known)
    words = [*words, *(next(made_up) for _ in range(vocab_size - 1 - len(words)))]
    inner = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([END])
    inner.save(str(folder / "tokenizer.json"))


def _texts() -> Iterator[str]:
    for pattern in _CORPUS:
        for path in sorted(_REPOSITORY.glob(pattern)):
            yield path.read_text("utf-8")
