"""The model of these tests: what it says follows from what it reads, so it needs no memory and no order of requests."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from tests.backends.scripted import ScriptedBackend
from tests.engine.tiny import TOKENIZER

QUESTION = "What is the word?"
WORD = "heron-4711"
"""Only the tool knows it: whoever has it in a prompt has been given the tool's result."""
ANSWER = "The word is known."
OPENING = "<|im_start|>assistant\n"
THOUGHT = "<think>\nThe word is not here yet, so step {} has to be taken before it can be told.\n</think>\n\n"


class SpeakingBackend(ScriptedBackend):
    """Says what `speak` answers to the text of a prompt; a token is a byte, and a block holds 32 of them."""

    def __init__(self, speak: Callable[[str], str], *, max_context: int = 1 << 20) -> None:
        super().__init__(TOKENIZER, (), opening=OPENING, block_size=32, num_blocks=30_000, max_context=max_context)
        self._speak = speak
        self._turn_id = TOKENIZER.encode(OPENING)[0]
        self._plan_for = cache(self._plan_answer)

    def _next_token(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        """Only the answer is spelled for each token: prompts are long."""
        start = int(np.flatnonzero(token_ids == self._turn_id)[-1])
        said = self._spell(token_ids[start:]).removeprefix(self._opening)
        return self._plan_for(token_ids[:start].tobytes()).get(said, self._end_id)

    def _plan_answer(self, prompt: bytes) -> dict[bytes, int]:
        text = self._spell(np.frombuffer(prompt, np.int64)).decode(errors="replace")
        return self._plan(self._speak(text))


def follow(script: Sequence[str]) -> Callable[[str], str]:
    """The n-th answer since the question was asked is the n-th of these; what is asked beside it gets the last."""

    def speak(prompt: str) -> str:
        place = prompt.rpartition(QUESTION)[2].count(OPENING)
        return script[min(place, len(script) - 1)]

    return speak


def think(script: Sequence[str]) -> list[str]:
    return [THOUGHT.format(i) + text for i, text in enumerate(script)]
