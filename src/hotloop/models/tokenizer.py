"""Text to token ids and back, exactly.

Invariant: the bytes of a text's tokens, joined, are the text (after the model's own normalisation, and with the space
that SentencePiece vocabularies put in front). Two kinds of vocabulary are known: byte-level ones, whose tokens spell
bytes in GPT-2's alphabet, and SentencePiece ones, which write a space as ▁ and a lone byte as <0xNN>.
"""

import json
import re
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate
from typing import Any

import msgspec
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


class TokenTable(msgspec.Struct, frozen=True):
    """All that is asked of a tokenizer's tokens but how a text is cut into them."""

    max_token_bytes: int
    """No token stands for more bytes of a text than this."""
    special: dict[int, str]
    spelled: bytes
    """What the tokens stand for, one after the other."""
    ends: bytes
    """Of each of them, as integers of 32 bits."""
    cuts: list[str]
    """Tokens that are looked for in a text before all else; empty if that cannot be told."""
    has_space_prefix: bool
    is_exact: bool
    """Whether the bytes of its tokens are the text, without a space added."""

    @classmethod
    def of(cls, inner: tokenizers.Tokenizer) -> "TokenTable":
        vocab = inner.get_vocab(with_added_tokens=True)
        vocab_size = max(vocab.values(), default=-1) + 1
        if vocab_size > MAX_VOCAB:
            raise ModelError(f"the tokenizer has ids up to {vocab_size - 1}; at most {MAX_VOCAB} are read")
        added, steps = inner.get_added_tokens_decoder(), _decoder_steps(inner)
        if not steps & {"ByteLevel", "ByteFallback", "Metaspace", "Replace"}:
            raise ModelError("the tokenizer is neither byte-level nor SentencePiece")
        spelled = [b""] * vocab_size
        for token_id, token in added.items():
            if not token.special:
                spelled[token_id] = token.content.encode()
        own = [(piece, token_id) for piece, token_id in vocab.items() if token_id not in added]
        spell = _spell_letters if "ByteLevel" in steps else _spell_pieces
        for begin in range(0, len(own), _SPELLED_AT_ONCE):
            part = own[begin : begin + _SPELLED_AT_ONCE]
            for (_, token_id), data in zip(part, spell([piece for piece, _ in part]), strict=True):
                spelled[token_id] = data
        longest = max((len(piece.encode()) for piece in vocab), default=1)
        return cls(
            longest * (_MAX_SHRINK if inner.normalizer else 1),
            {token_id: token.content for token_id, token in added.items() if token.special},
            b"".join(spelled),
            array("i", accumulate(map(len, spelled))).tobytes(),
            _cut_names([token for token in added.values() if not token.normalized]),
            "Strip" in steps or "Metaspace" in steps,
            b"".join(spelled[token_id] for token_id in _encode(inner, "a b")) == b"a b",
        )


class Tokenizer:
    """A `tokenizers.Tokenizer` and what a server needs to know beside it."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer | Callable[[], tokenizers.Tokenizer],
        *,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        wants_bos: bool = False,
        table: TokenTable | None = None,
    ) -> None:
        """With the table of an equal one `inner` may be a function: it is called when something is encoded first."""
        self._make: Callable[[], tokenizers.Tokenizer] | None = inner if callable(inner) else None
        self._made: tokenizers.Tokenizer | None = None if callable(inner) else inner
        self._making = threading.Lock()
        self.table = table or TokenTable.of(self._inner)
        self._spelled, self._begins = self.table.spelled, array("i", [0])
        self._begins.frombytes(self.table.ends)
        self.vocab_size = len(self._begins) - 1
        self.max_token_bytes = self.table.max_token_bytes
        self.bos_id = bos_id
        self.wants_bos = wants_bos and bos_id is not None
        """Whether the model expects a plain text, one that no chat template wrote, to begin with `bos_id`."""
        self._special = self.table.special
        self._special_ids = {name: token_id for token_id, name in self._special.items()}
        named = self._special_ids
        ends = _END_OF_ANSWER if "<|channel|>" in named and "<|message|>" in named else _END_OF_TURN
        self.eos_ids = frozenset({*eos_ids, *(named[name] for name in ends if name in named)})
        cuts = sorted(self.table.cuts, key=len, reverse=True)  # of two at one place the longer, as `tokenizers` does
        self._cuts = re.compile("|".join(map(re.escape, cuts))) if cuts else None
        self.can_split = self._cuts is not None and self.table.is_exact
        """Whether `split` can tell the pieces of a text, and a text is its tokens' bytes without a space added."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is sent to other processes, which no lock can be."""
        make = partial(type(self), bos_id=self.bos_id, eos_ids=self.eos_ids, wants_bos=self.wants_bos, table=self.table)
        return make, (self._inner,)

    @property
    def _inner(self) -> tokenizers.Tokenizer:
        with self._making:
            if self._made is None:
                assert self._make
                self._made, self._make = self._make(), None
            return self._made

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Token ids of a text; special tokens written in it are recognised."""
        begin = [self.bos_id] if add_bos and self.bos_id is not None else []
        with _large_texts if len(text) > _LARGE_CHARS else nullcontext():
            return begin + _encode(self._inner, readable(text))

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
        return (data.removeprefix(b" ") if self.table.has_space_prefix else data).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token stands for; none for special tokens and for ids that have no token."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        return self._spelled[self._begins[token_id] : self._begins[token_id + 1]]

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


def _encode(inner: tokenizers.Tokenizer, text: str) -> list[int]:
    """By the batch call, which unlike the plain one lets other threads run meanwhile, and skips the offsets."""
    try:
        return inner.encode_batch_fast([text], add_special_tokens=False)[0].ids
    except BaseException as error:
        raise RequestError(f"the tokenizer cannot encode this text: {rust_reason(error)}") from None


def _cut_names(tokens: Sequence[tokenizers.AddedToken]) -> list[str]:
    """Of the tokens that are looked for before all else; none if one of them takes the whitespace around it too."""
    if any(token.lstrip or token.rstrip or token.single_word for token in tokens):
        return []
    return [token.content for token in tokens]


def _decoder_steps(inner: tokenizers.Tokenizer) -> set[str]:
    """The kinds of step the decoder is made of: they tell how the vocabulary writes bytes and spaces."""
    if inner.decoder is None:
        return set()
    decoder: dict[str, Any] = json.loads(inner.decoder.__getstate__())
    steps = decoder.get("decoders", [decoder])
    return {step["type"] for step in steps if step.get("prepend_scheme") != "never"}
