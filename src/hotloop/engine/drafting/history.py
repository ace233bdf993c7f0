"""Drafts that continue as this request or an earlier one did: prompts and outputs, looked up by the last tokens.

Memory is set aside once and never grows: a ring of tokens, and a table from the hash of a few tokens to where they were
last seen in the ring. What is found there is compared token by token before it is believed. The same requests have the
same drafts in every process.

A session's own past comes first, then that of all with the same salt: tokens in the ring are masked by their salt.
Every draft is verified by the model, so no text passes from one session to another; timing may tell those who share a
salt that something was seen before.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hotloop.core.request import Request
from hotloop.engine.drafting.drafter import DraftRequest, Proposal
from hotloop.models.tokenizer import Tokenizer

Classes = NDArray[np.int32]

MAX_MATCH = 16
MAX_SCAN = 1 << 14  # tokens looked through, the latest
_MAX_PLACES = 1024  # where the last token was seen that are looked at, the latest

_NOTHING = -1  # stands between the pieces of the ring: no match and no draft runs across it
_SIZES = (2, 4, 8)  # of the runs of tokens that are looked up; each is twice the one before
_SLOTS_PER_TOKEN = 8  # three runs, each for all and for its session, and room so that few share a place
_FACTOR = 0x9E3779B97F4A7C15  # odd, and its bits well mixed
_MASK = (1 << 64) - 1


class SuffixHistory:
    """Remembers the last `max_tokens` tokens, at 36 to 68 bytes each."""

    def __init__(self, max_tokens: int) -> None:
        self._ring = array("i", [_NOTHING]) * (MAX_MATCH + max_tokens + 1)
        self._head = MAX_MATCH  # the front stays empty, so that there is something before every place
        self._bits = (_SLOTS_PER_TOKEN * max_tokens).bit_length()
        self._places = np.full(1 << self._bits, 0, np.int32)  # written now, so that no step waits for its pages

    def propose(self, token_ids: "array[int]", max_tokens: int, session_id: str = "", salt: str = "") -> Proposal:
        """What followed the longest run that is known; among runs of one size, the session's own first."""
        tail, mask, owners = token_ids[-MAX_MATCH:], _mask(salt), _owners(session_id, salt)
        masked = _masked(tail, mask)
        for size, run in reversed([*_last_runs(tail)]):
            for owner in owners:
                begin = int(self._places[(((run ^ owner) * _FACTOR) & _MASK) >> (64 - self._bits)])
                match = _count_match(self._ring[max(0, begin - MAX_MATCH) : begin], masked)
                if match >= size:
                    return Proposal([token_id ^ mask for token_id in self._read(begin, max_tokens)], match)
        return Proposal()

    def learn(self, request: Request) -> None:
        """Remember what a request has read, but for what it shared with an earlier one, and what it wrote."""
        begin = max(0, request.num_cached - MAX_MATCH)
        room = len(self._ring) - MAX_MATCH - 1
        tokens = request.token_ids[begin:][-room:] if room else array("i")
        head = self._head if self._head + len(tokens) < len(self._ring) else MAX_MATCH
        end = head + len(tokens)
        self._ring[head:end] = _masked(tokens, _mask(request.salt))
        self._ring[end] = _NOTHING
        self._head = end + 1
        for size, runs in _all_runs(tokens):
            places = np.arange(head + size, end + 1, dtype=np.int32)
            for owner in _owners(request.session_id, request.salt):
                slots = (runs ^ np.uint64(owner)) * np.uint64(_FACTOR) >> np.uint64(64 - self._bits)
                self._places[slots] = places  # of equal runs the last stays

    def _read(self, begin: int, max_tokens: int) -> "array[int]":
        token_ids = self._ring[begin : begin + max_tokens]
        return token_ids[: token_ids.index(_NOTHING)] if _NOTHING in token_ids else token_ids


def token_classes(tokenizer: Tokenizer, vocab_size: int) -> Classes:
    """For each token id the least id of the tokens that differ from it in one leading space and (ASCII) case only."""
    first_ids: dict[bytes, int] = {}
    spelled = map(tokenizer.token_bytes, range(vocab_size))
    letters = [data.removeprefix(b" ").lower() for data in spelled]
    same = [first_ids.setdefault(each, i) if each else i for i, each in enumerate(letters)]
    return np.array(same, np.int32)


class PromptLookup:
    """Finds the longest repetition among a request's own tokens, and of equally long ones the latest.

    They are compared by class: a value in JSON begins `"San` where the question had ` San`. What is proposed are the
    tokens that stood there, never their classes.
    """

    def __init__(self, classes: Classes) -> None:
        self._classes = classes

    def propose(self, token_ids: "array[int]", max_tokens: int) -> Proposal:
        tokens = np.frombuffer(token_ids, np.int32)[-MAX_SCAN:]
        classes = self._classes[tokens]
        ends = np.flatnonzero(classes[:-1] == classes[-1])[-_MAX_PLACES:]
        if not len(ends):
            return Proposal()
        match = 1
        while match < MAX_MATCH:
            longer = ends[ends >= match]
            longer = longer[classes[longer - match] == classes[-1 - match]]
            if not len(longer):
                break
            ends, match = longer, match + 1
        begin = int(ends[-1]) + 1
        return Proposal(tokens[begin : begin + max_tokens].tolist(), match)


class PastDrafter:
    """Drafts from what was read and written before: by this request itself, or by those before it."""

    model = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_history_tokens: int, *, min_match: int = 1) -> None:
        self._min_match = min_match
        self._lookup = PromptLookup(token_classes(tokenizer, vocab_size))
        self._history = SuffixHistory(max_history_tokens)

    def propose(self, wants: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._propose(want) for want in wants]

    def learn(self, request: Request) -> None:
        self._history.learn(request)

    def close(self) -> None:
        self._history = SuffixHistory(0)

    def _propose(self, want: DraftRequest) -> Proposal:
        """The longer match wins. Beyond twice its length a draft is more often wrong than right."""
        own = self._lookup.propose(want.token_ids, want.max_tokens)
        past = self._history.propose(want.token_ids, want.max_tokens, want.request.session_id, want.request.salt)
        best = past if past.match > own.match else own
        return Proposal(best.token_ids[: 2 * best.match], best.match) if best.match >= self._min_match else Proposal()


def _all_runs(token_ids: "array[int]") -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """For each size the hash of every run of that many tokens, in order: two halves make a whole."""
    runs, factor = np.array(token_ids, np.uint64), _FACTOR
    for size in _SIZES:
        if len(token_ids) < size:
            return
        half = size // 2
        runs = runs[:-half] * np.uint64(factor) + runs[half:]
        factor = (factor * factor) & _MASK
        yield size, runs


def _last_runs(token_ids: "array[int]") -> Iterator[tuple[int, int]]:
    """The same hashes, of the last run of each size only."""
    run, factor = 0, 1
    for size, token_id in enumerate(reversed(token_ids[-max(_SIZES) :]), 1):
        run = (run + token_id * factor) & _MASK
        factor = (factor * _FACTOR) & _MASK
        if size in _SIZES:
            yield size, run


def _owners(session_id: str, salt: str) -> Iterable[int]:
    """Whose past it is, or may be drafted from: the session's first, then that of all who share."""
    return [_digest(salt, name) for name in dict.fromkeys((session_id, ""))]


@lru_cache(1024)
def _digest(*parts: str) -> int:
    """Of 64 bits; unlike that of `hash`, the same in every process."""
    data = "\0".join(parts).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


def _mask(salt: str) -> int:
    """What leaves a token of this salt what it is and makes it another under any other."""
    return _digest(salt) >> 33 if salt else 0


def _masked(token_ids: "array[int]", mask: int) -> "array[int]":
    """Masked or, if they are, as they were; never negative."""
    return array("i", (np.array(token_ids, np.int32) ^ np.int32(mask)).tobytes()) if mask else token_ids


def _count_match(one: "array[int]", other: "array[int]") -> int:
    match = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        match += 1
    return match
