"""How a prompt differs from an earlier one: where the two part, in which words, and how much is the same behind.

    earlier   [ common ............ | other words | the same ...... | answer ]
    current   [ common ............ | new words | the same ...... | what is new ]
                          num_common ^           ^ covered by windows of 16 tokens that the earlier one has too

Pure, and linear in both lengths. Knows no server and no cache: what to compare with is chosen elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.chat.assembly.spans import PromptSpan, SpanKind, Spell, num_common
from hotloop.chat.prompt import Prompt

WINDOW = 16
"""As many tokens in the same order are taken for the same text."""

TokenIds = NDArray[np.int32]
Hashes = NDArray[np.uint64]
Change = Literal["diverged", "retokenised"]

_FACTOR = 0x9E3779B97F4A7C15
_MAX_SPELT = 512  # tokens behind the place where two prompts part that are looked at as text
_NUM_BEFORE, _NUM_AFTER = 32, 48  # tokens around that place, of which the words are taken
_MAX_CHARS = 60  # of the words on each side
_MAX_STUB = 40  # characters of a word in common that are told with the rest of it


@dataclass(frozen=True, slots=True)
class Divergence:
    """The place where two prompts part: at token `index`, and the tokens around it."""

    index: int
    change: Change
    before_ids: tuple[int, ...]
    earlier_ids: tuple[int, ...]
    current_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a prompt has in common with an earlier one. No divergence: one of the two is the beginning of the other."""

    num_common: int
    divergence: Divergence | None = None
    _is_recomputed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    """For each token from the divergence on, whether it was read before."""

    def num_recomputed(self, begin: int = 0) -> int:
        """How many tokens behind the divergence, and from `begin` on, were read before all the same."""
        return int(np.count_nonzero(self._is_recomputed[max(begin - self.num_common, 0) :]))


class Words(NamedTuple):
    """A few words in common, and those that follow them in the earlier and in the current prompt."""

    before: str
    previous: str
    current: str


@dataclass(frozen=True, slots=True)
class PromptPosition:
    """A place in a conversation: so many characters into this part of it."""

    kind: SpanKind
    index: int | None
    offset: int


def token_array(token_ids: Sequence[int]) -> TokenIds:
    return np.asarray(token_ids, np.int32)


def compare(current: TokenIds, earlier: TokenIds, spell: Spell) -> Comparison:
    num_common = count_common(current, earlier)
    rest, other = current[num_common:], earlier[num_common:]
    if not len(rest) or not len(other):
        return Comparison(num_common)
    is_recomputed = _find_recomputed(rest, other)
    num_recut = _count_recut(rest, other, spell)
    is_recomputed[:num_recut] = True
    divergence = Divergence(
        num_common,
        "retokenised" if num_recut else "diverged",
        tuple(current[max(num_common - _NUM_BEFORE, 0) : num_common].tolist()),
        tuple(other[:_NUM_AFTER].tolist()),
        tuple(rest[:_NUM_AFTER].tolist()),
    )
    return Comparison(num_common, divergence, is_recomputed)


def count_common(one: TokenIds, other: TokenIds) -> int:
    size = min(len(one), len(other))
    differs = one[:size] != other[:size]
    first = int(differs.argmax()) if size else 0
    return first if size and differs[first] else size


def hash_windows(token_ids: TokenIds) -> Hashes:
    """A hash of every run of `WINDOW` tokens, in order. Doubled from single tokens: of 2, of 4, of 8, of 16."""
    if len(token_ids) < WINDOW:
        return np.zeros(0, np.uint64)
    hashes = (token_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_FACTOR)
    size = 1
    while size < WINDOW:
        factor = np.uint64(pow(_FACTOR, size, 1 << 64))
        hashes = hashes[:-size] * factor + hashes[size:]
        size *= 2
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(_FACTOR)
    return hashes ^ (hashes >> np.uint64(29))


def find_words(divergence: Divergence, spell: Spell) -> Words:
    """The words around a divergence. Text that was only cut otherwise is shown with a bar between its tokens."""
    before = _join(divergence.before_ids, spell)
    if divergence.change == "retokenised":
        previous, current = (
            "|".join(spell(token_id).decode(errors="replace") for token_id in ids)
            for ids in (divergence.earlier_ids, divergence.current_ids)
        )
        return Words(_end_of(_decode(before)), _beginning_of(previous), _beginning_of(current))
    earlier_text, current_text = (
        before + _join(ids, spell) for ids in (divergence.earlier_ids, divergence.current_ids)
    )
    size = _whole_chars(current_text, num_common(current_text, earlier_text))
    text = _decode(current_text[:size])
    stub = _open_word(text)
    previous, current = (stub + _decode(data[size:]) for data in (earlier_text, current_text))
    return Words(_end_of(text.removesuffix(stub)), _beginning_of(previous), _beginning_of(current))


def find_position(divergence: Divergence, prompt: Prompt, spell: Spell) -> PromptPosition | None:
    """Which part of the current prompt has the first character that is not as before; None if its parts are unknown."""
    at = divergence.index
    span = next((span for span in prompt.spans if span.begin <= at < span.end), None)
    if span is None:
        return None
    char = _find_char(span, at, prompt, spell)
    if divergence.change == "diverged":
        other, rest = _join(divergence.earlier_ids, spell), _join(divergence.current_ids, spell)
        char += len(_decode(rest[: _whole_chars(rest, num_common(rest, other))]))
    return _place_position(prompt.spans, char)


def _find_recomputed(rest: TokenIds, other: TokenIds) -> NDArray[np.bool_]:
    """For each token of the rest, whether it lies in a window that the other has as well."""
    is_known = _is_in(hash_windows(rest), hash_windows(other))
    depth = np.zeros(len(rest) + 1, np.int32)  # windows opened less windows closed
    depth[: len(is_known)] += is_known
    depth[WINDOW : WINDOW + len(is_known)] -= is_known
    covered: NDArray[np.bool_] = np.cumsum(depth[:-1]) > 0
    return covered


def _is_in(hashes: Hashes, known: Hashes) -> NDArray[np.bool_]:
    """Which of the hashes are known. A table answers nearly all of it; only where two share a slot is it searched."""
    if not len(hashes) or not len(known):
        return np.zeros(len(hashes), bool)
    shift = np.uint64(64 - (4 * len(known)).bit_length())
    table = np.zeros(1 << (64 - int(shift)), np.uint64)
    table[known >> shift] = known
    found = table[hashes >> shift]
    is_known: NDArray[np.bool_] = found == hashes
    unsure = np.flatnonzero(~is_known & (found != 0))
    if len(unsure):
        ordered = np.sort(known)
        places = np.searchsorted(ordered, hashes[unsure]).clip(max=len(ordered) - 1)
        is_known[unsure] = ordered[places] == hashes[unsure]
    return is_known


def _count_recut(rest: TokenIds, other: TokenIds, spell: Spell) -> int:
    """How many tokens of the rest spell what the other spells too, in other tokens; none if the texts really differ.

    They are the same text if both cuts come to a common end within it: up to there it was only cut otherwise. Mostly a
    few tokens show that they are not.
    """
    num_recut = 0
    for limit in (_MAX_SPELT // 32, _MAX_SPELT):
        ours, theirs = ([*map(spell, ids[:limit].tolist())] for ids in (rest, other))
        text, their_text = b"".join(ours), b"".join(theirs)
        size = num_common(text, their_text)
        ends, their_ends = ([*accumulate(map(len, pieces))] for pieces in (ours, theirs))
        is_whole = size == min(len(text), len(their_text))
        if not size or not (is_whole or any(end <= size for end in {*ends} & {*their_ends} - {0})):
            return num_recut
        num_recut = sum(end <= size for end in ends) or 1
        if not is_whole:
            break
    return num_recut


def _whole_chars(data: bytes, size: int) -> int:
    """So many bytes, less those of a character that is not whole."""
    while size and size < len(data) and data[size] & 0xC0 == 0x80:
        size -= 1
    return size


def _find_char(span: PromptSpan, at: int, prompt: Prompt, spell: Spell) -> int:
    """Where in the text a token of this span begins. The span's first token may begin a little behind its place."""
    begin = span.place.begin
    opening = _decode(_join(prompt.token_ids[span.begin : span.begin + _NUM_AFTER], spell))
    found = prompt.text.find(opening[:_MAX_STUB], begin, begin + 2 * len(opening))
    return max(found, begin) + len(_decode(_join(prompt.token_ids[span.begin : at], spell)))


def _place_position(spans: Sequence[PromptSpan], char: int) -> PromptPosition | None:
    """The part of the conversation that a character belongs to.

    What the template writes between two parts belongs to the one before it where that could have gone on, and else to
    the one it leads up to.
    """
    here = next((i for i, span in enumerate(spans) if char < span.place.end), len(spans) - 1)
    span = spans[here]
    if span.kind == "template":
        if here and char == span.place.begin:
            before = spans[here - 1]
            return PromptPosition(before.kind, before.index, before.place.end - before.place.begin)
        if here + 1 < len(spans):
            return PromptPosition(spans[here + 1].kind, spans[here + 1].index, 0)
    return PromptPosition(span.kind, span.index, char - span.place.begin)


def _join(token_ids: Iterable[int], spell: Spell) -> bytes:
    return b"".join(map(spell, token_ids))


def _decode(data: bytes) -> str:
    return data.decode(errors="ignore")


def _open_word(text: str) -> str:
    """What a text has of the word it ends in, unless that is no word for people."""
    word = "" if text[-1:].isspace() else "".join(text.split()[-1:])
    return word if len(word) <= _MAX_STUB else ""


def _beginning_of(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS].rpartition(" ")[0] or text[:_MAX_CHARS]


def _end_of(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[-_MAX_CHARS:].partition(" ")[2] or text[-_MAX_CHARS:]
