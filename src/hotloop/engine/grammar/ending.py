"""How an answer that runs out of room can still be closed: a short way from here to a complete one.

A walk that never looks back: close what is open, else write the least value that is asked for, else try characters in
turn, those tried least first, until the grammar leads on. Knows JSON and tags by their brackets, and no rule of them;
of patterns only the words that stand in them, which no characters in turn would spell.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hotloop.engine.grammar.sample import make_sample

_TAGS = ("\n</parameter>\n", "\n</parameter>", "\n</function>", "\n</tool_call>")
# These close a text in one family's calls, and may stand in another's: whether they lead out of it is looked at.
_TEXT_ENDS = ("</parameter>", "</arg_value>", "</｜DSML｜parameter>", '<|"|>', "<escape>", "</arg_key>")
# These close all calls, where another one might begin.
_CALL_ENDS = ("<|tool_calls_section_end|>", "<｜tool▁calls▁end｜>", "</minimax:tool_call>")
# What stands before a call's name, and what behind it, in one family or another.
_NAMING = r'"name"|invoke name=|<function=|<tool_call>|functions\.|tool▁call▁begin|\[TOOL_CALLS\]|call:(?![\w.-]+\{)'
_NAMED = r'"(?:arguments|parameters)"|[<｜]parameter|<arg_key>|<\|message\|>|\[ARGS\]|tool_call_argument_begin'
_NAMED += r"|tool▁sep｜>\s*\{|```json\s*\{|call:[\w.-]+\{"
_PLACE = re.compile(f"({_NAMED})|{_NAMING}".encode())
_BRACKETS = "}]/"  # the last is of a tag that has been begun
_SEPARATORS = (", ", ",", ": ", ":")
_VALUES = '0"[{nft123456789-' + string.punctuation + string.ascii_letters + " \n"
_TEXT = "a0@.-:/_ " + string.ascii_letters + string.digits + string.punctuation + "\n"
_MAX_WORDS = 256  # of an ending: the engine's loop waits for it
_MAX_HINTS = 32
_MAX_SAMPLES = 4
_MAX_LOOKS = 8  # at all ends of all samples
_MAX_PATTERN = 2000  # characters
_MAX_MARKS = 16  # special tokens looked at where they may come
_PATTERN = re.compile(r'"pattern":("(?:[^"\\]|\\.)*")')
# What stands for many characters or for none; a repetition; a character that is escaped, or not.
_PIECES = re.compile(
    r"(\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[^:=!)]*[:=!]?|\\[a-zA-Z0-9]|[()^$.|])|([*+?]|\{\d+,?\d*\})|\\(.)|(.)", re.DOTALL
)
_MAX_TRIED = 64  # tokens looked at where no plain character may come

Word = tuple[int, ...]


class Walker(Protocol):
    """A matcher, as far as this module knows it."""

    @property
    def is_complete(self) -> bool: ...
    def mask(self) -> NDArray[np.uint8]: ...
    def forced(self) -> list[int]: ...
    def allows(self, token_id: int) -> bool: ...
    def advance(self, token_id: int) -> bool: ...
    def rollback(self, num_tokens: int) -> None: ...


class Hints(NamedTuple):
    """What a grammar's patterns need, and no characters in turn would spell."""

    words: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    """Short strings that follow a pattern as a whole."""


NO_HINTS = Hints()


def find_hints(text: str) -> Hints:
    """The words that the patterns in a grammar's text are made of, in their order; and a sample of each."""
    words: dict[str, None] = {}
    samples: dict[str, None] = {}
    for found in _PATTERN.findall(text):
        with suppress(ValueError, RecursionError):  # a grammar that a caller wrote may only look like JSON
            pattern = json.loads(found)
            words |= dict.fromkeys(_as_json(word) for word in _words_of(pattern))
            if len(samples) < _MAX_SAMPLES and len(pattern) <= _MAX_PATTERN:
                samples[_as_json(make_sample(pattern))] = None
    return Hints(tuple(words)[:_MAX_HINTS], tuple(samples))


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def is_in_arguments(text: bytes) -> bool:
    """Whether a text ends behind the name of a call that it has begun."""
    places = [match[1] for match in _PLACE.finditer(text)]
    return bool(places) and places[-1] is not None


def _words_of(pattern: str) -> Iterator[str]:
    word = ""
    for apart, repeated, escaped, char in _PIECES.findall(pattern):
        if repeated in ("*", "?"):
            word = word[:-1]  # it need not be there
        if (apart or repeated) and word:
            yield word
        word = "" if apart or repeated else word + (escaped or char)
    if word:
        yield word


class Endings:
    def __init__(
        self, spell: Callable[[str], list[int]], eos_ids: frozenset[int], special_ids: Iterable[int] = ()
    ) -> None:
        def words(texts: Iterable[str]) -> list[Word]:
            spelt = [tuple(spell(text)) for text in dict.fromkeys(texts)]
            return [word for word in spelt if word]  # not every vocabulary has every character

        self._words = words
        self._spell = spell
        self._eos_ids = eos_ids
        self._marks: list[Word] = [(token_id,) for token_id in special_ids if token_id not in eos_ids]
        self._tags, self._brackets, self._separators = words(_TAGS), words(_BRACKETS), words(_SEPARATORS)
        self._text_ends, self._call_ends = words(_TEXT_ENDS), words(_CALL_ENDS)
        self._values, self._text = words(_VALUES), words(_TEXT)
        [self._quote, self._letter] = [tuple(spell(text)) for text in '"x']

    def find(self, walker: Walker, max_tokens: int, hints: Hints = NO_HINTS) -> list[int] | None:
        """At most so many tokens that complete the answer; None if none were found. The walker goes along."""
        hinted = self._words(hints.words)
        samples = _Samples(hints.samples, self._spell)
        path: list[int] = []
        tried: Counter[Word] = Counter()
        word: Word | None = None
        for _ in range(_MAX_WORDS):
            run = walker.forced()
            for token_id in run:
                if token_id in self._eos_ids:
                    return path if len(path) <= max_tokens else None
                walker.advance(token_id)
                path.append(token_id)
            if len(path) > max_tokens:
                return None
            if run:
                word = None
                continue
            if walker.is_complete:
                return path
            word = self._choose(walker, tried, hinted, samples, may_close=word != self._quote)
            if word is None:
                return None
            for token_id in word:
                walker.advance(token_id)
            path += word
            tried[word] += 1
        return None

    def _choose(
        self, walker: Walker, tried: "Counter[Word]", hinted: Iterable[Word], samples: "_Samples", *, may_close: bool
    ) -> Word | None:
        mask = walker.mask().tobytes()
        is_text = _begins(mask, self._letter)  # outside its strings JSON has no x
        marks = [word for word in self._marks if _begins(mask, word)][:_MAX_MARKS]
        closers = [*self._tags, *self._call_ends, *self._brackets, *self._separators]
        if is_text:
            ends = [word for word in (*self._tags, *self._text_ends, *marks) if _begins(mask, word)]
            closers = [word for word in ends if self._leads_out(walker, word)]
        # A quote that did not lead out of a text is not a string's end: then it is a character among others.
        if is_text and may_close:
            closers.append(self._quote)
        sure = next((word for word in closers if _begins(mask, word) and _takes(walker, word)), None)
        if sure is None and is_text:
            ends = [word for word in samples.rests() if _begins(mask, word)]
            sure = next((word for word in ends if _takes(walker, (*word, *self._quote))), None)
        if sure is not None:
            return sure
        known = [*hinted, *(self._text if is_text else (*self._values, *marks))]
        likely = [word for word in known if _begins(mask, word)]
        words = [word for word in likely if len(word) == 1 or _takes(walker, word)]
        return min(words or _allowed(mask), key=lambda word: tried[word], default=None)

    def _leads_out(self, walker: Walker, word: Word) -> bool:
        """Whether this word ends the text; the walker stays where it is."""
        if not _takes(walker, word):
            return False
        for token_id in word:
            walker.advance(token_id)
        is_out = not _begins(walker.mask().tobytes(), self._letter)
        walker.rollback(len(word))
        return is_out


class _Samples:
    """The ends of samples that may complete a string, so many times."""

    def __init__(self, samples: Iterable[str], spell: Callable[[str], list[int]]) -> None:
        ends = dict.fromkeys(sample[i:] for sample in samples for i in range(len(sample)))
        self._rests: list[Word] = []
        self._ends, self._spell = [*ends], spell
        self._num_looks = _MAX_LOOKS

    def rests(self) -> Sequence[Word]:
        self._num_looks -= 1
        if self._num_looks < 0:
            return ()
        if not self._rests:
            self._rests = [tuple(self._spell(end)) for end in self._ends]
        return self._rests


def _begins(mask: bytes, word: Word) -> bool:
    """Whether the first token of a word may come."""
    return bool(word) and bool(mask[word[0] >> 3] >> (word[0] & 7) & 1)


def _takes(walker: Walker, word: Word) -> bool:
    """Whether this whole word may come next; the walker stays where it is."""
    if len(word) <= 1:
        return bool(word) and walker.allows(word[0])
    num_taken = 0
    while num_taken < len(word) and walker.advance(word[num_taken]):
        num_taken += 1
    walker.rollback(num_taken)
    return num_taken == len(word)


def _allowed(mask: bytes) -> Iterator[Word]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return ((token_id,) for token_id in np.flatnonzero(bits)[:_MAX_TRIED].tolist())
