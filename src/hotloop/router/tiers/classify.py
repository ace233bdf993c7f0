"""The task of a request where its client does not say: as the smallest model sees it, or by words alike.

The model scores one letter for each task in one constrained step, and the instructions are the same every time, so that
only the request is prefilled. The embedding needs no model: hashed character n-grams, and the nearest of a few centres
learnt from examples. It sees spelling, not meaning: requests that are worded like the examples are recognised.
"""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hotloop.router.tiers.config import TASKS, Task
from hotloop.router.tiers.judge import top_logprobs

MAX_CHARS = 2_000
NUM_BUCKETS = 1 << 16

_DESCRIPTIONS: Mapping[Task, str] = {
    "classification": "choose one of a few given labels, or say yes or no",
    "extraction": "copy given facts out of a text into fields",
    "summary": "say a long text in fewer words",
    "qa": "answer a question of fact",
    "reasoning": "work something out in several steps, calculate, plan",
    "code": "write, explain or repair a program",
}
_LETTERS = dict(zip("ABCDEF", TASKS, strict=True))
_INSTRUCTIONS = "What kind of task does the user give? Answer with one letter and nothing else.\n" + "\n".join(
    f"{letter}: {task} ({_DESCRIPTIONS[task]})" for letter, task in _LETTERS.items()
)
_GRAMS = (3, 4, 5)

Vector = Mapping[int, float]


def labels_body(model: str, text: str) -> dict[str, Any]:
    """A chat request for one letter, which shows a long request by its beginning and its end, where the wish is said.
    `structured_outputs` is known to hotloop and vLLM; others may ignore it."""
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
    weights: defaultdict[Task, float] = defaultdict(float)
    for word, logprob in _candidates(answer):
        task = _LETTERS.get(word.strip())
        if task is not None:
            weights[task] += math.exp(min(0.0, logprob))
    total = sum(weights.values())
    return {task: weight / total for task, weight in weights.items()} if total > 0 else {}


def _candidates(answer: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    match answer:
        case {"choices": [{"logprobs": {"content": [{"top_logprobs": [_, *_]} as first, *_]}}, *_]}:
            yield from top_logprobs(first)
        case {"choices": [{"message": {"content": str(text)}}, *_]}:
            yield text, 0.0


class Centres:
    """One centre a task: the mean of its examples."""

    def __init__(self, examples: Mapping[Task, Iterable[str]]) -> None:
        self._centres = {task: _mean(map(embed, texts)) for task, texts in examples.items()}

    def nearest(self, text: str) -> tuple[Task, float] | None:
        """The task, and the cosine of the angle to its centre; None where nothing is alike."""
        vector = embed(text)
        cosines = {
            task: sum(weight * centre.get(bucket, 0.0) for bucket, weight in vector.items())
            for task, centre in self._centres.items()
        }
        best = max(cosines, key=lambda task: cosines[task], default=None)
        return (best, cosines[best]) if best is not None and cosines[best] > 0 else None


def embed(text: str) -> Vector:
    """A unit vector over the buckets; frequent n-grams count less than their number. Empty for an empty text."""
    padded = f" {' '.join(text[:MAX_CHARS].lower().split())} "
    if len(padded) < min(_GRAMS):
        return {}
    grams = (padded[i : i + size] for size in _GRAMS for i in range(len(padded) - size + 1))
    counts = Counter(zlib.crc32(gram.encode()) % NUM_BUCKETS for gram in grams)
    return _unit({bucket: math.sqrt(count) for bucket, count in counts.items()})


def _mean(vectors: Iterable[Vector]) -> Vector:
    total: defaultdict[int, float] = defaultdict(float)
    for vector in vectors:
        for bucket, weight in vector.items():
            total[bucket] += weight
    return _unit(total)


def _unit(vector: Mapping[int, float]) -> Vector:
    length = math.sqrt(sum(weight * weight for weight in vector.values()))
    return {bucket: weight / length for bucket, weight in vector.items()} if length else {}
