"""Which tokens may come next: a cache of compiled grammars, and a matcher for each request.

Invariant: what a matcher allows depends on its grammar and on the tokens it has taken, never on queries in between,
nor on what was rolled back. A run of forced tokens is settled where it begins, so that the tokens are
the same whether a run is appended at once or sampled one by one.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask_par

from hotloop.backends.backend import Mask
from hotloop.backends.sampler import is_allowed
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar
from hotloop.core.lru import LruCache
from hotloop.engine.grammar.compiler import Compiler, first_line
from hotloop.engine.grammar.ending import NO_HINTS, Hints, find_hints, is_in_arguments
from hotloop.engine.grammar.trial import is_plain
from hotloop.models.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_MANY = 8  # masks, from which on it pays to share them out
_MIN_RENEWED = 16  # tokens between two parsers
_MAX_DRY = 4  # tokens of a plain grammar without a mask: only with one does a parser get new fuel, in its own words
_MAX_REPLAY_S = 0.25  # of the engine's thread
_MAX_CLOSING = 2000  # tokens

# What a compiled grammar takes: measured for enums, objects and patterns of 200 to 200,000 bytes, the most of them.
_GRAMMAR_BYTES = 64 << 10
_BYTES_PER_BYTE = 64


class Matcher:
    """One request's place in its grammar. Used by one thread at a time.

    A parser may fail later on: it has limits, and all the texts that went through it and its copies count. Then its
    grammar is compiled anew, and goes on from the same place; if that fails as well, the answer is closed: what is
    forced from there on completes it, as JSON at least.
    """

    def __init__(
        self,
        inner: LLMatcher,
        compiler: Compiler,
        forget: Callable[[], None],
        hints: Hints = NO_HINTS,
        grammar: Grammar | None = None,
        begun_ids: Iterable[int] = (),
    ) -> None:
        self._inner = inner
        self._hints = hints
        self._compiler = compiler
        self._forget = forget
        self.eos_id = compiler.eos_id
        self.has_ended = False
        # The forced tokens from here on are run[at:]; None: not looked up yet. `past` has both for each token taken.
        self._run: list[int] | None = None
        self._at = 0
        self._past: list[tuple[list[int], int]] = []
        self.error: str | None = None  # of one that cannot be renewed; from then on nothing is allowed
        self._grammar = grammar  # to renew the parser with
        self._taken = [*begun_ids]  # all that the parser has taken
        self._num_dry = 0  # tokens taken since the last mask
        self._max_dry = _MAX_DRY if grammar is None or is_plain(grammar) else 1
        self._renewed_at = -_MIN_RENEWED
        self._closed_at: int | None = None  # tokens taken when the rest was decided

    @property
    def is_complete(self) -> bool:
        """Whether the answer could end here, or has."""
        return self.has_ended or self._inner.is_accepting()

    @property
    def is_cut(self) -> bool:
        """Whether the rest of the answer is only there to close it."""
        return self._closed_at is not None

    def mask(self) -> Mask:
        known = self._known_mask()
        return self._checked(np.frombuffer(self._inner.compute_bitmask(), np.uint8)) if known is None else known

    @property
    def _walker(self) -> "Matcher":
        """The one whose parser knows the mask."""
        return self

    def _known_mask(self) -> Mask | None:
        """The mask, if no look at the vocabulary is needed for it."""
        run = self._forced_run()
        if self.error or self.has_ended:
            return self._only()
        return self._only(run[self._at]) if run else None

    def _checked(self, bits: Mask) -> Mask:
        if self._inner.is_error() or not bits.any():
            return self.mask() if self._recover() else self._only()
        self._num_dry = 0
        return bits[: (self._compiler.vocab_size + 7) // 8]

    def allows(self, token_id: int) -> bool:
        """Whether this token may come next; quicker than a mask."""
        run = self._forced_run()
        if self.error or self.has_ended or not 0 <= token_id < self._compiler.vocab_size:
            return False
        if run:
            return token_id == run[self._at]
        if token_id in self._compiler.eos_ids:
            return self._inner.is_accepting() or is_allowed(self.mask(), token_id)
        is_valid: bool = self._inner.validate_tokens([token_id]) == 1
        return self._recover() and self.allows(token_id) if self._inner.is_error() else is_valid

    def advance(self, token_id: int) -> bool:
        """Take a token; False, and nothing has changed, if it may not come next."""
        if not self.allows(token_id):
            return False
        run, at = self._forced_run(), self._at
        is_end = token_id in self._compiler.eos_ids
        if not is_end and not self._inner.consume_token(token_id):
            return self._inner.is_error() and self._recover() and self.advance(token_id)
        self._past.append((run, at))
        if not is_end:
            self._taken.append(token_id)
            self._num_dry += 1
        self.has_ended = is_end
        self._run, self._at = (run, at + 1) if at + 1 < len(run) else (None, 0)
        return True

    def rollback(self, num_tokens: int) -> None:
        """One that has failed has no place to go back to, and may have taken less than it was given."""
        if not num_tokens or self.error:
            return
        assert 0 < num_tokens <= len(self._past), "more rolled back than was taken"
        self._run, self._at = self._past[-num_tokens]
        del self._past[-num_tokens:]
        num_taken = num_tokens - self.has_ended
        self.has_ended = False
        del self._taken[len(self._taken) - num_taken :]
        if self._closed_at is not None and len(self._taken) < self._closed_at:
            self._reopen()  # what made it fail is taken back
        elif not self._inner.rollback(num_taken) and self._inner.is_error():
            self._recover()

    def forced(self) -> list[int]:
        """The tokens that must come next, as the model itself would spell them; takes none of them. Where a longer
        token could go on past their end, the choice is left open; if nothing but the end may follow, it is the last of
        them.
        """
        return self._forced_run()[self._at :]

    def closes(self, token_id: int) -> bool:
        """Whether a token ends something, be it the answer, and says nothing by itself."""
        text = self._compiler.token_bytes[token_id].lstrip().lstrip(b"\xff")  # which stands before special ones
        return token_id in self._compiler.eos_ids or not text or text[:1] in b'"}],:</'

    def is_in_arguments(self, num_tokens: int) -> bool:
        """Whether the last of its tokens, so many, have chosen the function of a call that they have not finished."""
        taken = self._taken[len(self._taken) - num_tokens :] if num_tokens else []
        return is_in_arguments(b"".join(self._compiler.token_bytes[i] for i in taken))

    def is_blank(self, token_id: int) -> bool:
        """Whether a token is nothing but space."""
        return not self._compiler.token_bytes[token_id].strip()

    def ending(self, max_tokens: int) -> list[int] | None:
        """A short way from here to a complete answer, its end not included; None if none was found."""
        if self.has_ended or self.error:
            return [] if self.has_ended else None
        if self.is_cut:
            return self.forced()[:-1]
        copy = Matcher(self._inner.deep_copy(), self._compiler, self._forget)
        copy._run, copy._at = self._run, self._at
        return self._compiler.endings.find(copy, max_tokens, self._hints)

    def _forced_run(self) -> list[int]:
        while self._run is None:
            run = self._look_up_run()
            if not self._inner.is_error() or self.error or not self._recover():
                self._run, self._at = run, 0
        return self._run

    def _look_up_run(self) -> list[int]:
        if self.has_ended or self.error:
            return []
        if self._num_dry >= self._max_dry:
            self._inner.compute_bitmask()
            self._num_dry = 0
        run = [] if self._inner.is_stopped() else self._inner.compute_ff_tokens()
        num_taken = self._inner.try_consume_tokens(run) if run else 0
        is_all = num_taken == len(run) and self._inner.is_stopped()
        if num_taken:
            self._inner.rollback(num_taken)
        return [*run, self._compiler.eos_id] if is_all else run[:num_taken]

    def _only(self, *token_ids: int) -> Mask:
        mask = np.zeros((self._compiler.vocab_size + 7) // 8, np.uint8)
        for token_id in token_ids:
            mask[token_id >> 3] = 1 << (token_id & 7)
        return mask

    def _recover(self) -> bool:
        """Go on from a parser that has failed; False if that is impossible, and nothing is allowed any more."""
        self._forget()  # its copies share what has failed
        error = first_line(self._inner.get_error() or "no token may come next")
        if self._grammar is None:
            self.error = error
            return False
        if self.is_cut:
            self._run, self._at = [self.eos_id], 0
            return True
        if len(self._taken) - self._renewed_at >= _MIN_RENEWED and (parser := self._replay(self._compiler.build)):
            self._inner, self._renewed_at = parser, len(self._taken)
            self._run = self._run or None
            return True
        log.warning("an answer ends after %d tokens, because its grammar failed: %s", len(self._taken), error)
        self._close()
        return True

    def _close(self) -> None:
        self._closed_at = len(self._taken)
        ending: list[int] | None = None
        if parser := self._replay(self._compiler.outline):
            self._inner = parser
            walker = Matcher(parser.deep_copy(), self._compiler, self._forget)
            ending = self._compiler.endings.find(walker, _MAX_CLOSING, self._hints)
        self._run, self._at = [*(ending or ()), self.eos_id], 0

    def _replay(self, make: Callable[[Grammar], LLMatcher | None]) -> LLMatcher | None:
        """Another parser at the same place."""
        assert self._grammar
        until_s = time.thread_time() + _MAX_REPLAY_S
        try:
            parser = make(self._grammar)
        except RequestError:
            return None
        for begin in range(0, len(self._taken), self._max_dry):
            if parser is None:
                return None
            parser.compute_bitmask()
            taken = self._taken[begin : begin + self._max_dry]
            if parser.try_consume_tokens(taken) < len(taken) or time.thread_time() > until_s:
                return None
        return parser

    def _reopen(self) -> None:
        """Follow the grammar itself again, or close the answer here."""
        parser = self._replay(self._compiler.build)
        if parser:
            self._inner, self._closed_at = parser, None
        else:
            self._close()


def masks_of(matchers: Sequence[Matcher]) -> list[Mask]:
    """The masks of many, all of one vocabulary, made by all cores."""
    masks = [matcher._known_mask() for matcher in matchers]
    unknown = [i for i, mask in enumerate(masks) if mask is None]
    absent = [(matchers[i]._walker._inner, i) for i in unknown]
    if len(absent) < _MANY:
        return [matcher.mask() if mask is None else mask for matcher, mask in zip(matchers, masks, strict=True)]
    bits = np.zeros((len(matchers), matchers[0]._compiler.num_mask_words), np.int32)
    fill_next_token_bitmask_par(_executor(), absent, bits)
    for _, i in absent:
        masks[i] = matchers[i]._walker._checked(bits[i].view(np.uint8))
    return [mask for mask in masks if mask is not None]


@cache
def _executor() -> LLExecutor:
    return LLExecutor()


@dataclass(slots=True, eq=False)
class _Shape:
    """A grammar's place in the table, where its parser is or will be."""

    parser: "Future[LLMatcher]" = field(default_factory=Future)
    hints: Hints = NO_HINTS  # of its patterns, which an ending may need
    is_fresh: bool = True  # whether nobody has used it yet: its first user counts as the miss


class Grammars:
    """Compiles grammars and keeps those used last, up to so many bytes as they are estimated to take. For all threads;
    none waits for a grammar that is not its own."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_bytes: int = 256 << 20) -> None:
        self.num_hits = 0
        self.num_misses = 0
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compiler: Compiler | None = None
        self._building = threading.Lock()
        self._lock = threading.Lock()  # guards the table and the counts; never held while something is compiled
        self._kept: LruCache[Grammar, _Shape] = LruCache(max_bytes)

    def matcher(self, grammar: Grammar) -> Matcher:
        """At the beginning of this grammar, or behind what is begun. Raises what `prepare` raises."""
        grammar, begun = replace(grammar, begun=""), grammar.begun
        shape, compiler = self.prepare(grammar), self.compiler
        with self._lock:
            self.num_hits += not shape.is_fresh
            shape.is_fresh = False
        parser = shape.parser.result().deep_copy()
        token_ids = compiler.spell(begun) if begun else []
        if token_ids and parser.try_consume_tokens(token_ids) < len(token_ids):
            raise RequestError("the beginning of the answer does not match its grammar")
        return Matcher(parser, compiler, lambda: self._forget(grammar, shape), shape.hints, grammar, token_ids)

    def prepare(self, grammar: Grammar) -> _Shape:
        """Compile a grammar on the calling thread, if it is new. Raises `RequestError` if it cannot be used."""
        compiler = self.compiler
        with self._lock:
            shape = self._kept.find(grammar)
            is_new = shape is None
            if shape is None:
                shape = _Shape()
                self.num_misses += 1
                self._kept.put(grammar, shape, estimate_bytes(grammar))
        if is_new:
            try:
                shape.hints = find_hints(grammar.text)
                shape.parser.set_result(compiler.compile(grammar))
            except BaseException as error:
                self._forget(grammar, shape)
                shape.parser.set_exception(error)
        shape.parser.result()
        return shape

    def _forget(self, grammar: Grammar, shape: _Shape) -> None:
        with self._lock:
            if self._kept.find(grammar) is shape:
                self._kept.pop(grammar, None)

    @property
    def compiler(self) -> Compiler:
        """Built when it is first wanted."""
        with self._building:
            if self._compiler is None:
                self._compiler = Compiler(self._tokenizer, self._vocab_size)
            return self._compiler


def estimate_bytes(grammar: Grammar) -> int:
    return _GRAMMAR_BYTES + _BYTES_PER_BYTE * len(grammar.text)
