"""Text to token ids and back, exactly.

Invariant: the bytes of a text's tokens, joined, are the text (after the model's own normalisation, and with the space
that SentencePiece vocabularies put in front). Two kinds of vocabulary are known: byte-level ones, whose tokens spell
bytes in GPT-2's alphabet, and SentencePiece ones, which write a space as ▁ and a lone byte as <0xNN>.
"""

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import Any

import tokenizers

from hotloop.core.errors import ModelError, RequestError

# Tokens that end a turn wherever a vocabulary has them as special tokens, whether or not the metadata says so.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "</s>")
# Where an answer is made of several messages, an end is that of one of them.
_END_OF_ANSWER = ("<|return|>", "<|call|>")
MAX_VOCAB = 1 << 24
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MAX_SHRINK = 3  # what a text may lose of its bytes when it is normalised: Hangul, composed, has a third of them
_SPELLED_AT_ONCE = 4096
_LARGE_CHARS = 1 << 18
_large_texts = threading.BoundedSemaphore(2)  # at a time: each takes some 400 bytes of memory a token


def _gpt2_alphabet() -> dict[int, int]:
    """The byte of each character that GPT-2 writes: itself if it is visible, else the next free one above 255.

    Those up to 255 that it does not write become one that is no byte.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in visible]
    no_byte = dict.fromkeys(hidden, 0xFFFF)
    return no_byte | {byte: byte for byte in visible} | {256 + i: byte for i, byte in enumerate(hidden)}


_BYTE_OF = _gpt2_alphabet()


def _spell_letters(pieces: Sequence[str]) -> list[bytes]:
    """Of a byte-level vocabulary: a letter is a byte. All at once, since there are hundreds of thousands."""
    try:
        data = "".join(pieces).translate(_BYTE_OF).encode("latin-1")
    except UnicodeEncodeError:  # one is written in letters of its own
        if len(pieces) == 1:
            return [pieces[0].encode()]
        return [data for piece in pieces for data in _spell_letters([piece])]
    ends = [*accumulate(map(len, pieces))]
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _spell_pieces(pieces: Sequence[str]) -> list[bytes]:
    bytes_alone = map(_BYTE_PIECE.fullmatch, pieces)
    return [
        bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode()
        for piece, byte in zip(pieces, bytes_alone, strict=True)
    ]


class Tokenizer:
    """A `tokenizers.Tokenizer` and what a server needs to know beside it."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        wants_bos: bool = False,
    ) -> None:
        self._inner = inner
        vocab = inner.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        longest = max((len(piece.encode()) for piece in vocab), default=1)
        self.max_token_bytes = longest * (_MAX_SHRINK if inner.normalizer else 1)
        """No token stands for more bytes of a text than this."""
        if self.vocab_size > MAX_VOCAB:
            raise ModelError(f"the tokenizer has ids up to {self.vocab_size - 1}; at most {MAX_VOCAB} are read")
        self.bos_id = bos_id
        self.wants_bos = wants_bos and bos_id is not None
        """Whether the model expects a plain text, one that no chat template wrote, to begin with `bos_id`."""
        added = inner.get_added_tokens_decoder()
        self._special = {token_id: token.content for token_id, token in added.items() if token.special}
        self._verbatim = {token_id: token.content for token_id, token in added.items() if not token.special}
        named = {name: token_id for token_id, name in self._special.items()}
        ends = _END_OF_ANSWER if "<|channel|>" in named and "<|message|>" in named else _END_OF_TURN
        self.eos_ids = frozenset({*eos_ids, *(named[name] for name in ends if name in named)})
        steps = _decoder_steps(inner)
        self._is_byte_level = "ByteLevel" in steps
        self._has_space_prefix = "Strip" in steps or "Metaspace" in steps
        if not self._is_byte_level and not steps & {"ByteFallback", "Metaspace", "Replace"}:
            raise ModelError("the tokenizer is neither byte-level nor SentencePiece")
        self._bytes = self._spell_all(vocab)
        self._cuts = _cut_pattern([token for token in added.values() if not token.normalized])
        self._special_ids = named
        is_exact = b"".join(map(self.token_bytes, self.encode("a b"))) == b"a b"
        self.can_split = self._cuts is not None and is_exact
        """Whether `split` can tell the pieces of a text, and a text is its tokens' bytes without a space added."""

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Token ids of a text; special tokens written in it are recognised."""
        begin = [self.bos_id] if add_bos and self.bos_id is not None else []
        try:
            # The batch call, unlike the plain one, lets other threads run meanwhile and skips the offsets.
            with _large_texts if len(text) > _LARGE_CHARS else nullcontext():
                return begin + self._inner.encode_batch_fast([readable(text)], add_special_tokens=False)[0].ids
        except BaseException as error:
            raise RequestError(f"the tokenizer cannot encode this text: {rust_reason(error)}") from None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The special tokens written in a text, and the pieces between them, which are cut into tokens independently.

        Joined, the tokens of the pieces are those of the text. Only for a tokenizer that `can_split`.
        """
        assert self._cuts
        begin = 0
        for match in self._cuts.finditer(text):
            token_id = self._special_ids.get(match[0])
            if token_id is None:
                continue
            if match.start() > begin:
                yield text[begin : match.start()], None
            yield match[0], token_id
            begin = match.end()
        if begin < len(text):
            yield text[begin:], None

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """The text of whole token ids; bytes that are not UTF-8 become U+FFFD."""
        special = self._special if keep_special else {}
        data = b"".join(special[i].encode() if i in special else self.token_bytes(i) for i in ids)
        return (data.removeprefix(b" ") if self._has_space_prefix else data).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token stands for; none for special tokens and for ids that have no token."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def _spell_all(self, vocab: Mapping[str, int]) -> list[bytes]:
        spelled = [b""] * self.vocab_size
        for token_id, content in self._verbatim.items():
            spelled[token_id] = content.encode()
        own = [(piece, i) for piece, i in vocab.items() if i not in self._special and i not in self._verbatim]
        spell = _spell_letters if self._is_byte_level else _spell_pieces
        for begin in range(0, len(own), _SPELLED_AT_ONCE):
            part = own[begin : begin + _SPELLED_AT_ONCE]
            for (_, token_id), data in zip(part, spell([piece for piece, _ in part]), strict=True):
                spelled[token_id] = data
        return spelled

    def visible_bytes(self, token_id: int) -> bytes:
        """As `token_bytes`, but special tokens are their name, unless they end a turn."""
        if token_id in self._special and token_id not in self.eos_ids:
            return self._special[token_id].encode()
        return self.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """A token for people to read: special ones by name, bytes that are not UTF-8 as U+FFFD."""
        return self._special.get(token_id) or self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def has_special(self, token_ids: Iterable[int]) -> bool:
        return not self._special.keys().isdisjoint(token_ids)


def rust_reason(error: BaseException) -> str:
    """Why `tokenizers` failed, in one line: it raises bare Exceptions, or panics, which are none. Raises all else."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return f"{' '.join(str(error).split()):.300}"


def readable(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can carry and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _cut_pattern(tokens: Sequence[tokenizers.AddedToken]) -> re.Pattern[str] | None:
    """Finds the tokens that are looked for before all else, of two at one place the longer, as `tokenizers` does.

    None if there are none, or one that takes the whitespace around it too.
    """
    if not tokens or any(token.lstrip or token.rstrip or token.single_word for token in tokens):
        return None
    names = sorted((token.content for token in tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)))


def _decoder_steps(inner: tokenizers.Tokenizer) -> set[str]:
    """The kinds of step the decoder is made of: they tell how the vocabulary writes bytes and spaces."""
    if inner.decoder is None:
        return set()
    decoder: dict[str, Any] = json.loads(inner.decoder.__getstate__())
    steps = decoder.get("decoders", [decoder])
    return {step["type"] for step in steps if step.get("prepend_scheme") != "never"}
