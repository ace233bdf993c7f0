"""The tokenizer a GGUF file describes: its lists of tokens, types, merges and scores made into a `Tokenizer`.

How a text is cut into words before merging is not in the file, only the name of the way; the ways known are below.
"""

from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as InnerTokenizer

from hotloop.core.errors import ModelError
from hotloop.models.gguf_file import GgufFile
from hotloop.models.tokenizer import Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True, slots=True)
class _WordCut:
    """How byte-level vocabularies cut a text into words."""

    pattern: str = ""
    """Empty: GPT-2's own."""
    has_single_digits: bool = False
    has_whole_words: bool = False
    """Whether a word that is a token is taken whole, before any merging."""
    is_normalised: bool = False
    """Whether the text is put into Unicode's form C first."""
    wants_bos: bool = False


_GPT2 = _WordCut()
_DIGITS = _WordCut(has_single_digits=True)
_LLAMA3 = _WordCut(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}",
    has_whole_words=True,
    wants_bos=True,
)
_QWEN2 = _WordCut(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION}", is_normalised=True)
_TEKKEN = _WordCut(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    has_whole_words=True,
    wants_bos=True,
)
_WORD_CUTS = {
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """Build the tokenizer from the file's metadata alone."""
    if "tokenizer.ggml.tokens" not in file.metadata:
        raise ModelError(f"{file.path} has no tokenizer")
    kind = file.get("tokenizer.ggml.model", str)
    if kind == "gpt2":
        inner, wants_bos = _byte_level(file)
    elif kind == "llama":
        inner, wants_bos = _sentencepiece(file), True
    else:
        raise ModelError(f"{file.path}: a tokenizer of type {kind!r} is not supported (only gpt2 and llama are)")
    inner.add_tokens(_added_tokens(file))
    keys = [f"tokenizer.ggml.{key}" for key in _END_KEYS]
    return Tokenizer(
        inner,
        bos_id=file.get("tokenizer.ggml.bos_token_id", int) if "tokenizer.ggml.bos_token_id" in file.metadata else None,
        eos_ids=[file.get(key, int) for key in keys if key in file.metadata],
        wants_bos=file.get("tokenizer.ggml.add_bos_token", bool, wants_bos),
    )


def _vocabulary(file: GgufFile) -> dict[str, int]:
    """Tokens and their ids, without those that only pad the table."""
    tokens = file.items("tokenizer.ggml.tokens", str)
    types = _token_types(file, len(tokens))
    return {token: i for i, token in enumerate(tokens) if types[i] != _UNUSED}


def _token_types(file: GgufFile, num_tokens: int) -> list[int]:
    if "tokenizer.ggml.token_type" not in file.metadata:
        return [1] * num_tokens
    types = file.items("tokenizer.ggml.token_type", int)
    if len(types) != num_tokens:
        raise ModelError(f"{file.path}: the tokenizer has {num_tokens} tokens but {len(types)} token types")
    return types


def _added_tokens(file: GgufFile) -> list[AddedToken]:
    tokens = file.items("tokenizer.ggml.tokens", str)
    types = _token_types(file, len(tokens))
    return [
        AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _byte_level(file: GgufFile) -> tuple[InnerTokenizer, bool]:
    usual = "gpt-2" if file.get("general.architecture", str) == "llama" else "qwen2"
    name = file.get("tokenizer.ggml.pre", str, usual)
    cut = _WORD_CUTS.get(usual if name == "default" else name)
    if cut is None:
        raise ModelError(f"{file.path}: the pre-tokenizer {name!r} is not known (only {', '.join(_WORD_CUTS)} are)")
    merges = [pair.partition(" ")[::2] for pair in file.items("tokenizer.ggml.merges", str)]
    inner = _inner(file, _vocabulary(file), merges, ignore_merges=cut.has_whole_words)
    if cut.is_normalised:
        inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = _pre_tokenizer(cut)
    inner.decoder = decoders.ByteLevel()
    return inner, cut.wants_bos


def _pre_tokenizer(cut: _WordCut) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if cut.has_single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if cut.pattern:
        steps.append(pre_tokenizers.Split(Regex(cut.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cut.pattern))
    return pre_tokenizers.Sequence(steps)


def _sentencepiece(file: GgufFile) -> InnerTokenizer:
    vocabulary = _vocabulary(file)
    unknown = file.items("tokenizer.ggml.tokens", str)[file.get("tokenizer.ggml.unknown_token_id", int, 0)]
    merges = _merges_from_scores(file, vocabulary)
    inner = _inner(file, vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    has_prefix = file.get("tokenizer.ggml.add_space_prefix", bool, True)
    prepend: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if has_prefix else []
    strip: list[decoders.Decoder] = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    inner.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return inner


def _merges_from_scores(file: GgufFile, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece keeps a score for each token instead of merges: a better one was merged earlier."""
    tokens = file.items("tokenizer.ggml.tokens", str)
    scores = file.items("tokenizer.ggml.scores", float)
    types = _token_types(file, len(tokens))
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path}: the tokenizer has {len(tokens)} tokens but {len(scores)} scores")
    merges: list[tuple[float, int, int, str, str]] = []
    for i, token in enumerate(tokens):
        if types[i] != 1:
            continue
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                merges.append((-scores[i], left, right, token[:cut], token[cut:]))
    return [(left, right) for *_, left, right in sorted(merges)]


def _inner(
    file: GgufFile, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: bool | str
) -> InnerTokenizer:
    try:
        return InnerTokenizer(models.BPE(vocabulary, merges, **options))
    except Exception as error:  # the Rust side raises bare Exceptions
        raise ModelError(f"{file.path}: the tokenizer is damaged: {error}") from None
