"""Guessing that a request repeats what it has read: the end of its tokens is looked up among its own tokens.

Tokens are compared by class: a value in JSON begins `"San` where the question had ` San`, and `Paris` may come back as
`paris`. What is proposed are the tokens that stood there, never their classes.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

from hotloop.engine.drafting.drafter import Guess
from hotloop.models.tokenizer import Tokenizer

Classes = NDArray[np.int32]

MAX_MATCH = 16
MAX_SCAN = 1 << 14  # tokens looked through, the latest
_MAX_PLACES = 1024  # where the last token was seen that are looked at, the latest


def token_classes(tokenizer: Tokenizer, vocab_size: int) -> Classes:
    """For each token id the least id of the tokens that differ from it in one leading space and (ASCII) case only."""
    classes = np.arange(vocab_size, dtype=np.int32)
    first_ids: dict[bytes, int] = {}
    for token_id in range(min(vocab_size, tokenizer.vocab_size)):
        letters = tokenizer.token_bytes(token_id).removeprefix(b" ").lower()
        if letters:
            classes[token_id] = first_ids.setdefault(letters, token_id)
    return classes


class PromptLookup:
    """Finds the longest repetition, and of equally long ones the latest."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes

    def guess(self, token_ids: "array[int]", max_tokens: int) -> Guess:
        tokens = np.frombuffer(token_ids, np.int32)[-MAX_SCAN:]
        classes = self._classes[tokens]
        ends = np.flatnonzero(classes[:-1] == classes[-1])[-_MAX_PLACES:]
        if not len(ends):
            return Guess()
        match = 1
        while match < MAX_MATCH:
            longer = ends[ends >= match]
            longer = longer[classes[longer - match] == classes[-1 - match]]
            if not len(longer):
                break
            ends, match = longer, match + 1
        begin = int(ends[-1]) + 1
        return Guess(tokens[begin : begin + max_tokens].tolist(), match)
