"""Tokenizers with merges, whose text can be cut in more than one way."""

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as InnerTokenizer

from hotloop.models.tokenizer import Tokenizer

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|mark|>")
MERGES = (
    ("h", "e"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
    ("Ġ", "w"),
    ("Ġw", "o"),
    ("Ċ", "Ċ"),
    ("Ã", "©"),
    ("l", "o"),
)


class CountingTokenizer(Tokenizer):
    """Says how much it was asked to cut."""

    num_chars = 0

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        self.num_chars += len(text)
        return super().encode(text, add_bos=add_bos)


def merging_tokenizer(
    merges: Iterable[tuple[str, str]] = MERGES,
    *,
    special: Sequence[str | AddedToken] = SPECIAL,
    is_normalised: bool = False,
    has_words: bool = False,
) -> CountingTokenizer:
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = []
    for left, right in merges:
        if left in tokens and right in tokens:
            known.append((left, right))
            if left + right not in tokens:
                tokens.append(left + right)
    inner = InnerTokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=known))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=has_words)
    inner.decoder = decoders.ByteLevel()
    if is_normalised:
        inner.normalizer = normalizers.NFC()
    inner.add_special_tokens(list(special))
    inner.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return CountingTokenizer(inner)


def spell(tokenizer: Tokenizer, *words: str) -> list[int]:
    """Tokens for each word by itself: mostly not those the tokenizer has for all of them together."""
    return [token_id for word in words for token_id in tokenizer.encode(word)]
