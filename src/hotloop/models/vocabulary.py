"""The tokenizer a GGUF file describes: its lists of tokens, types, merges and scores made into a `Tokenizer`.

Of these lists comes a `Vocabulary`, which can be kept. How a text is cut into words before merging is not in the file,
only the name of the way; the ways known are below.
"""

from dataclasses import dataclass, replace

import msgspec
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as InnerTokenizer

from hotloop.core.errors import ModelError
from hotloop.core.structs import compiled
from hotloop.models.gguf import GgufFile
from hotloop.models.tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = range(1, 6)
_MERGES = "tokenizer.ggml.merges"
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


@compiled
class Vocabulary(msgspec.Struct, frozen=True):
    """What a tokenizer is made of."""

    ids: dict[str, int]
    """Without tokens that only pad the table."""
    merges: list[tuple[str, str]]
    added: list[tuple[str, bool]]
    """Tokens that are looked for before all else, and whether they are special."""
    way: str = ""
    """How words are cut, by name; empty: a SentencePiece vocabulary."""
    unknown: str = ""
    has_prefix: bool = True
    """Whether a SentencePiece vocabulary puts a space in front of a text."""

    def make(self) -> InnerTokenizer:
        inner = self._byte_level(_WORD_CUTS[self.way]) if self.way else self._sentencepiece()
        inner.add_tokens([AddedToken(name, special=special, normalized=False) for name, special in self.added])
        return inner

    def _byte_level(self, cut: _WordCut) -> InnerTokenizer:
        inner = InnerTokenizer(models.BPE(self.ids, self.merges, ignore_merges=cut.has_whole_words))
        if cut.is_normalised:
            inner.normalizer = normalizers.NFC()
        inner.pre_tokenizer = _pre_tokenizer(cut)
        inner.decoder = decoders.ByteLevel()
        return inner

    def _sentencepiece(self) -> InnerTokenizer:
        options = {"unk_token": self.unknown, "fuse_unk": True, "byte_fallback": True}
        inner = InnerTokenizer(models.BPE(self.ids, self.merges, **options))
        prepend: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if self.has_prefix else []
        strip: list[decoders.Decoder] = [decoders.Strip(" ", 1, 0)] if self.has_prefix else []
        inner.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        inner.decoder = decoders.Sequence(steps)
        return inner


def gguf_tokenizer(file: GgufFile, vocabulary: Vocabulary | None = None) -> Tokenizer:
    vocabulary = vocabulary or gguf_vocabulary(file)
    try:
        inner = vocabulary.make()
    except Exception as error:  # the Rust side raises bare Exceptions
        raise ModelError(f"{file.path}: the tokenizer is damaged: {error}") from None
    ids = {key: file.get(key, int) for key in (_BOS_KEY, *_END_KEYS) if key in file.metadata}
    wants_bos = not vocabulary.way or _WORD_CUTS[vocabulary.way].wants_bos
    return Tokenizer(
        inner,
        bos_id=ids.pop(_BOS_KEY, None),
        eos_ids=ids.values(),
        wants_bos=file.get("tokenizer.ggml.add_bos_token", bool, wants_bos),
    )


def gguf_vocabulary(file: GgufFile) -> Vocabulary:
    if "tokenizer.ggml.tokens" not in file.metadata:
        raise ModelError(f"{file.path} has no tokenizer")
    names = file.items("tokenizer.ggml.tokens", str)
    has_kinds = "tokenizer.ggml.token_type" in file.metadata
    kinds = file.items("tokenizer.ggml.token_type", int) if has_kinds else [_NORMAL] * len(names)
    if len(kinds) != len(names):
        raise ModelError(f"{file.path}: the tokenizer has {len(names)} tokens but {len(kinds)} token types")
    ids = {name: i for i, (name, kind) in enumerate(zip(names, kinds, strict=True)) if kind != _UNUSED}
    own = (_UNKNOWN, _CONTROL, _USER_DEFINED)
    added = [(name, kind != _USER_DEFINED) for name, kind in zip(names, kinds, strict=True) if kind in own]
    model = file.get("tokenizer.ggml.model", str)
    if model == "gpt2":
        merges = [(left, right) for left, _, right in (pair.partition(" ") for pair in file.items(_MERGES, str))]
        return Vocabulary(ids, merges, added, _way(file))
    if model != "llama":
        raise ModelError(f"{file.path}: a tokenizer of type {model!r} is not supported (only gpt2 and llama are)")
    unknown = names[file.get("tokenizer.ggml.unknown_token_id", int, 0)]
    has_prefix = file.get("tokenizer.ggml.add_space_prefix", bool, True)
    merges = _merges_from_scores(file, names, kinds, ids)
    return Vocabulary(ids, merges, added, unknown=unknown, has_prefix=has_prefix)


def _way(file: GgufFile) -> str:
    usual = "gpt-2" if file.get("general.architecture", str) == "llama" else "qwen2"
    name = file.get("tokenizer.ggml.pre", str, usual)
    name = usual if name == "default" else name
    if name not in _WORD_CUTS:
        raise ModelError(f"{file.path}: the pre-tokenizer {name!r} is not known (only {', '.join(_WORD_CUTS)} are)")
    return name


def _pre_tokenizer(cut: _WordCut) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if cut.has_single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    patterns = [*cut.before, cut.pattern] if cut.pattern else []
    steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cut.pattern))
    return pre_tokenizers.Sequence(steps)


def _merges_from_scores(
    file: GgufFile, names: list[str], kinds: list[int], ids: dict[str, int]
) -> list[tuple[str, str]]:
    """SentencePiece keeps a score for each token instead of merges: a better one was merged earlier."""
    scores = file.items("tokenizer.ggml.scores", float)
    if len(scores) != len(names):
        raise ModelError(f"{file.path}: the tokenizer has {len(names)} tokens but {len(scores)} scores")
    merges: list[tuple[float, int, int, str, str]] = []
    for name, kind, score in zip(names, kinds, scores, strict=True):
        for cut in range(1, len(name)) if kind == _NORMAL else ():
            left, right = name[:cut], name[cut:]
            if left in ids and right in ids:
                merges.append((-score, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]
