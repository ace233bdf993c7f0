"""The tokenizer a GGUF file describes: its lists of tokens, types, merges and scores made into a `Tokenizer`.

How a text is cut into words before merging is not in the file, only the name of the way; the ways known are below.
"""

from dataclasses import dataclass, replace

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as InnerTokenizer

from hotloop.core.errors import ModelError
from hotloop.models.gguf import GgufFile
from hotloop.models.tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = range(1, 6)
_BOS_KEY = "tokenizer.ggml.bos_token_id"
_END_KEYS = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True, slots=True)
class _WordCut:
    """How byte-level vocabularies cut a text into words."""

    pattern: str = ""
    """Empty: GPT-2's own."""
    before: tuple[str, ...] = ()
    """Patterns that cut first, one after the other."""
    has_single_digits: bool = False
    has_whole_words: bool = False
    """Whether a word that is a token is taken whole, before any merging."""
    is_normalised: bool = False
    """Whether the text is put into Unicode's form C first."""
    wants_bos: bool = False


_GPT2 = _WordCut()
_DIGITS = _WordCut(has_single_digits=True)
_GLM4 = _WordCut(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}")
_LLAMA3 = replace(_GLM4, has_whole_words=True, wants_bos=True)
_QWEN2 = _WordCut(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION}", is_normalised=True)
_TEKKEN = _WordCut(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    has_whole_words=True,
    wants_bos=True,
)
_O200K = _WordCut(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = _WordCut(
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    before=(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
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
    "gpt-4o": _O200K,
    "glm4": _GLM4,
    "chatglm-bpe": _GLM4,
    "deepseek-v3": _DEEPSEEK3,
}


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The file's tokens, and what kind each is."""

    file: GgufFile
    names: list[str]
    kinds: list[int]

    def ids(self) -> dict[str, int]:
        """Without those that only pad the table."""
        return {name: i for i, name in enumerate(self.names) if self.kinds[i] != _UNUSED}

    def added(self) -> list[AddedToken]:
        return [
            AddedToken(name, special=kind != _USER_DEFINED, normalized=False)
            for name, kind in zip(self.names, self.kinds, strict=True)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]

    def bpe(self, merges: list[tuple[str, str]], **options: bool | str) -> InnerTokenizer:
        try:
            return InnerTokenizer(models.BPE(self.ids(), merges, **options))
        except Exception as error:  # the Rust side raises bare Exceptions
            raise ModelError(f"{self.file.path}: the tokenizer is damaged: {error}") from None


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    if "tokenizer.ggml.tokens" not in file.metadata:
        raise ModelError(f"{file.path} has no tokenizer")
    tokens = _read_tokens(file)
    kind = file.get("tokenizer.ggml.model", str)
    if kind == "gpt2":
        inner, wants_bos = _byte_level(tokens)
    elif kind == "llama":
        inner, wants_bos = _sentencepiece(tokens), True
    else:
        raise ModelError(f"{file.path}: a tokenizer of type {kind!r} is not supported (only gpt2 and llama are)")
    inner.add_tokens(tokens.added())
    ids = {key: file.get(key, int) for key in (_BOS_KEY, *_END_KEYS) if key in file.metadata}
    return Tokenizer(
        inner,
        bos_id=ids.pop(_BOS_KEY, None),
        eos_ids=ids.values(),
        wants_bos=file.get("tokenizer.ggml.add_bos_token", bool, wants_bos),
    )


def _read_tokens(file: GgufFile) -> _Tokens:
    names = file.items("tokenizer.ggml.tokens", str)
    has_kinds = "tokenizer.ggml.token_type" in file.metadata
    kinds = file.items("tokenizer.ggml.token_type", int) if has_kinds else [_NORMAL] * len(names)
    if len(kinds) != len(names):
        raise ModelError(f"{file.path}: the tokenizer has {len(names)} tokens but {len(kinds)} token types")
    return _Tokens(file, names, kinds)


def _byte_level(tokens: _Tokens) -> tuple[InnerTokenizer, bool]:
    file = tokens.file
    usual = "gpt-2" if file.get("general.architecture", str) == "llama" else "qwen2"
    name = file.get("tokenizer.ggml.pre", str, usual)
    cut = _WORD_CUTS.get(usual if name == "default" else name)
    if cut is None:
        raise ModelError(f"{file.path}: the pre-tokenizer {name!r} is not known (only {', '.join(_WORD_CUTS)} are)")
    merges = [pair.partition(" ")[::2] for pair in file.items("tokenizer.ggml.merges", str)]
    inner = tokens.bpe(merges, ignore_merges=cut.has_whole_words)
    if cut.is_normalised:
        inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = _pre_tokenizer(cut)
    inner.decoder = decoders.ByteLevel()
    return inner, cut.wants_bos


def _pre_tokenizer(cut: _WordCut) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if cut.has_single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    patterns = [*cut.before, cut.pattern] if cut.pattern else []
    steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cut.pattern))
    return pre_tokenizers.Sequence(steps)


def _sentencepiece(tokens: _Tokens) -> InnerTokenizer:
    unknown = tokens.names[tokens.file.get("tokenizer.ggml.unknown_token_id", int, 0)]
    inner = tokens.bpe(_merges_from_scores(tokens), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    has_prefix = tokens.file.get("tokenizer.ggml.add_space_prefix", bool, True)
    prepend: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if has_prefix else []
    strip: list[decoders.Decoder] = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    inner.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return inner


def _merges_from_scores(tokens: _Tokens) -> list[tuple[str, str]]:
    """SentencePiece keeps a score for each token instead of merges: a better one was merged earlier."""
    scores, ids = tokens.file.items("tokenizer.ggml.scores", float), tokens.ids()
    if len(scores) != len(tokens.names):
        raise ModelError(f"{tokens.file.path}: the tokenizer has {len(tokens.names)} tokens but {len(scores)} scores")
    merges: list[tuple[float, int, int, str, str]] = []
    for name, kind, score in zip(tokens.names, tokens.kinds, scores, strict=True):
        for cut in range(1, len(name)) if kind == _NORMAL else ():
            left, right = name[:cut], name[cut:]
            if left in ids and right in ids:
                merges.append((-score, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]
