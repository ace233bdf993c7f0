"""The task of a request as the fast model sees it, in one constrained step: a letter for each task, and their scores.

The letters are single tokens, so one step scores them all, and the instructions are the same every time, so that only
the request is read. Builds the question and reads the answer; asking is the caller's.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hotloop.router.tiers.config import TASKS, Task

MAX_CHARS = 2_000
"""How much of a request is shown: its beginning and its end, where the wish is said."""

_KINDS: Mapping[Task, str] = {
    "classification": "choose one of a few given labels, or say yes or no",
    "extraction": "copy given facts out of a text into fields",
    "summary": "say a long text in fewer words",
    "qa": "answer a question of fact",
    "reasoning": "work something out in several steps, calculate, plan",
    "code": "write, explain or repair a program",
}
_LETTERS = dict(zip("ABCDEF", TASKS, strict=True))
_INSTRUCTIONS = "What kind of task does the user give? Answer with one letter and nothing else.\n" + "\n".join(
    f"{letter}: {task} ({_KINDS[task]})" for letter, task in _LETTERS.items()
)


def labels_body(model: str, text: str) -> dict[str, Any]:
    """A chat request for one letter. `structured_outputs` is known to hotloop and vLLM; others may ignore it."""
    shown = text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS // 2]}\n...\n{text[-MAX_CHARS // 2 :]}"
    return {
        "model": model,
        "messages": [
            {"role": "system", "content": _INSTRUCTIONS},
            {"role": "user", "content": f"The request is:\n{shown}\n\nIts letter?"},
        ],
        "structured_outputs": {"choice": list(_LETTERS)},
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 20,
    }


def read_scores(answer: Mapping[str, Any]) -> dict[Task, float]:
    """What share of the letters' probability each task has; the letter alone where no probabilities came."""
    weights: dict[Task, float] = {}
    for word, logprob in _candidates(answer):
        task = _LETTERS.get(word.strip())
        if task is not None:
            weights[task] = weights.get(task, 0.0) + math.exp(min(0.0, logprob))
    total = sum(weights.values())
    return {task: weight / total for task, weight in weights.items()} if total > 0 else {}


def _candidates(answer: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    match answer:
        case {"choices": [{"logprobs": {"content": [{"top_logprobs": [_, *_] as tops}, *_]}}, *_]}:
            for top in tops:
                match top:
                    case {"token": str(token), "logprob": int() | float() as logprob}:
                        yield token, logprob
        case {"choices": [{"message": {"content": str(text)}}, *_]}:
            yield text, 0.0
