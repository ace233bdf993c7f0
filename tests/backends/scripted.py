"""A backend that says what it was told to say, for tests of whatever listens to a model.

What comes next is a pure function of the tokens in the KV, as with `NullBackend`: the n-th answer of a conversation is
the n-th text of the script, and how much of it was said is read back. Caching, drafts, batches and retries therefore
change nothing, and a grammar is obeyed: where it forbids the script's next token, something else is said.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.backends.null import NullBackend
from hotloop.models.tokenizer import Tokenizer


class ScriptedBackend(NullBackend):
    """`opening` is what an answer begins after; the prompt holds one for each answer so far, and one for this."""

    WINDOW = 1 << 31
    LIKELIEST = 1000.0  # so that no temperature makes it say anything else

    def __init__(
        self,
        tokenizer: Tokenizer,
        script: Sequence[str],
        *,
        opening: str = "<|im_start|>assistant\n",
        block_size: int = 16,
        num_blocks: int = 512,
        max_context: int = 1 << 20,
        on_run: Callable[[Batch], None] | None = None,
    ) -> None:
        super().__init__(
            block_size=block_size,
            num_blocks=num_blocks,
            vocab_size=tokenizer.vocab_size,
            max_context=max_context,
            on_run=on_run,
        )
        self._tokenizer = tokenizer
        self._words = spell_vocabulary(tokenizer)
        self._opening = opening.encode()
        self._end_id = min(tokenizer.eos_ids)
        self._places = [self._plan(text) for text in script]
        self._spelt: deque[tuple[NDArray[np.int64], bytes]] = deque(maxlen=8)  # rows of late, which others begin with

    def _next_token(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        """The next of the text that is being said; the end once it has all been said, or something else was."""
        _, *answers = self._spell(token_ids).split(self._opening)
        if not 1 <= len(answers) <= len(self._places):
            return self._end_id
        return self._places[len(answers) - 1].get(answers[-1], self._end_id)

    def _plan(self, text: str) -> dict[bytes, int]:
        """What was said so far -> the token that is next."""
        token_ids = self._tokenizer.encode(text)
        said = accumulate((self._words[token_id] for token_id in token_ids), initial=b"")
        return dict(zip(said, token_ids, strict=False))

    def _spell(self, token_ids: NDArray[np.int64]) -> bytes:
        known, text = token_ids[:0], b""
        for before, said in self._spelt:
            if len(before) <= len(token_ids) and np.array_equal(before, token_ids[: len(before)]):
                known, text = before, said
                break
        text += b"".join([self._words[token_id] for token_id in token_ids[len(known) :].tolist()])
        self._spelt.appendleft((token_ids, text))
        return text


@cache
def spell_vocabulary(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of every token, special ones by name."""
    return [
        tokenizer.token_text(i).encode() if tokenizer.is_special(i) else tokenizer.token_bytes(i)
        for i in range(tokenizer.vocab_size)
    ]
