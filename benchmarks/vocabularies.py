"""Tokenizers for models that have none: made-up words, or bytes, which spell every text: a grammar can bind them."""

from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from hotloop.models.tokenizer import Tokenizer

END = "<|im_end|>"


def null_tokenizer(vocab_size: int) -> Tokenizer:
    """As many made-up words as the null backend has tokens, none of which ends a turn."""
    inner = tokenizers.Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocab_size)}, "w0"))
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner)


def byte_tokenizer(more: Iterable[str] = (), special: Iterable[str] = ("<|im_start|>", END)) -> tokenizers.Tokenizer:
    """A token a byte, so that a text can be taken up to any letter; then these words, then special tokens."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *more]
    inner = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([*special])
    return inner


def filled_tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    """A token a byte, made-up words, and last the end of a turn."""
    return byte_tokenizer((f"Ġw{i}" for i in range(256, vocab_size - 1)), (END,))


def write_filled_tokenizer(folder: Path, vocab_size: int) -> None:
    filled_tokenizer(vocab_size).save(str(folder / "tokenizer.json"))
