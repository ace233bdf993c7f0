"""Answers that reason first: free text until the reasoning is closed, then the grammar of the answer, if it has one.

    before      the answer may begin with the opening, or at once
    reasoning   anything; when its tokens are used up, the closing and the space around it are forced
    answer      what its own matcher allows

Invariant: as with every matcher, what is allowed depends on the tokens that were taken alone. Marks are told by the
bytes of the tokens; those of a special token cannot be spelt by others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import cache
from typing import NamedTuple

import numpy as np

from hotloop.backends.backend import Mask
from hotloop.core.reasoning import Reasoning
from hotloop.core.request import Request
from hotloop.engine.grammar.compiler import Compiler, marked_bytes
from hotloop.engine.grammar.matcher import Grammars, Matcher
from hotloop.models.tokenizer import Tokenizer

_MAX_LINE = 256  # bytes of a line that are looked at to see whether it is blank


class Phase(Enum):
    BEFORE = auto()
    REASONING = auto()
    ANSWER = auto()


class _State(NamedTuple):
    phase: Phase
    run: tuple[int, ...] = ()
    """Tokens that are forced; behind them the answer begins."""
    num_opened: int = 0
    """Tokens of the opening that were taken."""
    tail: bytes = b""
    """The end of the reasoning, which may be the beginning of a closing."""
    num_reasoning: int = 0
    num_answer: int = 0
    """Tokens that the answer's matcher has taken."""


def open_matcher(request: Request, grammars: Grammars) -> Matcher | None:
    """What guides a request; None if nothing does. Raises what `Grammars.prepare` raises."""
    answer = grammars.matcher(request.grammar) if request.grammar else None
    if request.reasoning is None or not request.is_guided:
        return answer
    return ReasoningMatcher(request.reasoning, grammars.compiler, answer)


class ReasoningMatcher(Matcher):
    def __init__(self, reasoning: Reasoning, compiler: Compiler, answer: Matcher | None) -> None:
        self._compiler = compiler
        self._reasoning = reasoning
        self._answer = answer
        self._closing = b"".join(compiler.token_bytes[i] for i in reasoning.closing_ids)
        self.eos_id = compiler.eos_id
        self.has_ended = False
        self.error = None
        is_skipped = reasoning.max_tokens == 0 and not reasoning.is_open
        phase = Phase.REASONING if reasoning.is_open else Phase.ANSWER if is_skipped else Phase.BEFORE
        self._state = _State(phase, reasoning.ending_ids if reasoning.is_open and reasoning.max_tokens == 0 else ())
        self._states: list[_State] = []

    @property
    def is_cut(self) -> bool:
        return self._answer is not None and self._answer.is_cut

    @property
    def _walker(self) -> Matcher:
        assert self._answer
        return self._answer

    @property
    def is_complete(self) -> bool:
        if self.has_ended or self._answer is None:
            return True
        with self._opening_as_answer() as is_possible:
            return is_possible and self._state.phase is not Phase.REASONING and self._answer.is_complete

    def mask(self) -> Mask:
        known = self._known_mask()
        if known is not None:
            return known
        assert self._answer
        return self._answer.mask()

    def _known_mask(self) -> Mask | None:
        state, answer = self._state, self._answer
        if self.error or self.has_ended:
            return self._only()
        if state.run:
            return self._only(state.run[0])
        if answer is None:
            return _free(self._compiler.vocab_size, frozenset())
        if state.phase is Phase.ANSWER:
            return answer._known_mask()
        if state.phase is Phase.REASONING:
            return _free(self._compiler.vocab_size, self._compiler.eos_ids)
        with self._opening_as_answer() as is_possible:
            mask = answer.mask().copy() if is_possible else self._only()
        next_id = self._reasoning.opening_ids[state.num_opened]
        mask[next_id >> 3] |= 1 << (next_id & 7)
        return mask

    def allows(self, token_id: int) -> bool:
        state, answer = self._state, self._answer
        if self.error or self.has_ended or not 0 <= token_id < self._compiler.vocab_size:
            return False
        if state.run:
            return token_id == state.run[0]
        if answer is None:
            return True
        if state.phase is Phase.ANSWER:
            return answer.allows(token_id)
        if state.phase is Phase.REASONING:
            return token_id not in self._compiler.eos_ids
        with self._opening_as_answer() as is_possible:
            is_opening = token_id == self._reasoning.opening_ids[state.num_opened]
            return is_opening or (is_possible and answer.allows(token_id))

    def advance(self, token_id: int) -> bool:
        if not self.allows(token_id):
            return False
        before = self._state
        self._state = self._after(token_id)
        self._states.append(before)
        self.has_ended = token_id in self._compiler.eos_ids
        self.error = self._answer.error if self._answer else None
        return True

    def rollback(self, num_tokens: int) -> None:
        if not num_tokens:
            return
        state = self._states[-num_tokens]
        if self._answer:
            self._answer.rollback(self._state.num_answer - state.num_answer)
        del self._states[-num_tokens:]
        self._state, self.has_ended = state, False

    def forced(self) -> list[int]:
        state, answer = self._state, self._answer
        if state.run:
            return [*state.run, *(answer.forced() if answer else ())]
        if answer is None or state.phase is Phase.REASONING:
            return []
        if state.phase is Phase.ANSWER:
            return answer.forced()
        with self._opening_as_answer() as is_possible:
            return [] if is_possible else list(self._reasoning.opening_ids[state.num_opened :])

    def closes(self, token_id: int) -> bool:
        if self._state.phase is Phase.REASONING or self._answer is None:
            return True
        return self._answer.closes(token_id)

    def is_in_arguments(self, num_tokens: int) -> bool:
        return self._answer is not None and self._answer.is_in_arguments(num_tokens)

    def ending(self, max_tokens: int) -> list[int] | None:
        if self.has_ended or self._answer is None:
            return []
        with self._opening_as_answer() as is_possible:
            rest = self._rest_of_reasoning(is_possible)
            more = self._answer.ending(max_tokens - len(rest)) if len(rest) <= max_tokens else None
        return None if more is None else [*rest, *more]

    def _rest_of_reasoning(self, may_answer: bool) -> tuple[int, ...]:
        """What must be written before an answer can be; the least of it."""
        state, reasoning = self._state, self._reasoning
        if state.run or state.phase is Phase.ANSWER or (state.phase is Phase.BEFORE and may_answer):
            return state.run
        if state.phase is Phase.REASONING:
            return self._rest_of_closing() + reasoning.gap_ids
        return reasoning.opening_ids[state.num_opened :] + reasoning.closing_ids + reasoning.gap_ids

    def _after(self, token_id: int) -> _State:
        state = self._state
        if state.run:
            run = state.run[1:]
            phase = state.phase if run else Phase.ANSWER
            return state._replace(phase=phase, run=run, num_reasoning=state.num_reasoning + 1)
        if state.phase is Phase.REASONING:
            return self._after_reasoning(token_id)
        if state.phase is Phase.ANSWER:
            return state._replace(num_answer=state.num_answer + self._take(token_id))
        opening_ids = self._reasoning.opening_ids
        if token_id == opening_ids[state.num_opened]:
            is_open = state.num_opened + 1 == len(opening_ids)
            return _State(Phase.REASONING) if is_open else _State(Phase.BEFORE, num_opened=state.num_opened + 1)
        num_answer = self._take(*opening_ids[: state.num_opened], token_id)
        return _State(Phase.ANSWER, num_answer=num_answer)

    def _after_reasoning(self, token_id: int) -> _State:
        num_reasoning, max_tokens = self._state.num_reasoning + 1, self._reasoning.max_tokens
        tail = self._state.tail + self._compiler.token_bytes[token_id]
        _, closing, behind = tail.partition(self._closing)
        if closing:
            run = self._reasoning.gap_ids if self._answer and not behind else ()
            return _State(Phase.REASONING if run else Phase.ANSWER, run, num_reasoning=num_reasoning)
        run = self._reasoning.ending_ids if max_tokens is not None and num_reasoning >= max_tokens else ()
        return _State(Phase.REASONING, run, tail=tail[-len(self._closing) :], num_reasoning=num_reasoning)

    def _take(self, *token_ids: int) -> int:
        """How many tokens the answer's matcher took, which are all where there is one."""
        if self._answer is None:
            return 0
        for token_id in token_ids:
            self._answer.advance(token_id)
        return len(token_ids)

    @contextmanager
    def _opening_as_answer(self) -> Iterator[bool]:
        """With the answer's matcher as if it had taken what there is of the opening; whether that is possible."""
        answer, num_taken = self._answer, 0
        assert answer
        begun = self._reasoning.opening_ids[: self._state.num_opened]
        while num_taken < len(begun) and answer.advance(begun[num_taken]):
            num_taken += 1
        try:
            yield num_taken == len(begun)
        finally:
            answer.rollback(num_taken)

    def _rest_of_closing(self) -> tuple[int, ...]:
        """What is missing of a closing that may have been begun."""
        closing_ids = self._reasoning.closing_ids
        for num_written in range(len(closing_ids) - 1, 0, -1):
            written = b"".join(self._compiler.token_bytes[i] for i in closing_ids[:num_written])
            if self._state.tail.endswith(written):
                return closing_ids[num_written:]
        return closing_ids


@cache
def _free(vocab_size: int, forbidden: frozenset[int]) -> Mask:
    mask = np.full((vocab_size + 7) // 8, 255, np.uint8)
    for token_id in forbidden:
        mask[token_id >> 3] &= ~np.uint8(1 << (token_id & 7))
    return mask


class ReasoningCounter:
    """Told the tokens of an answer one by one, tells which are reasoning. A mark counts where a line begins, or
    where it is a special token."""

    def __init__(self, reasoning: Reasoning, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._opening, self._closing = (
            b"".join(marked_bytes(tokenizer, i) for i in ids) for ids in (reasoning.opening_ids, reasoning.closing_ids)
        )
        self._is_special = tokenizer.has_special(reasoning.opening_ids)
        self._is_reasoning = reasoning.is_open
        self._tail = b""

    def push(self, token_id: int) -> bool:
        """Whether this token is reasoning; a mark is, from the token that completes it."""
        tail = self._tail + marked_bytes(self._tokenizer, token_id)
        if self._is_reasoning:
            self._is_reasoning = self._closing not in tail
            self._tail = tail[-len(self._closing) :] if self._is_reasoning else b""
            return True
        line, opening, behind = tail.partition(self._opening)
        if not opening:
            self._tail = tail.rpartition(b"\n")[2][-_MAX_LINE:]
            return False
        self._is_reasoning = self._is_special or not line.strip()
        self._tail = b"" if self._is_reasoning else b"." + behind  # the line is not blank
        return self._is_reasoning
