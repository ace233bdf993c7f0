"""What each format of weights and of KV costs a real model on this CPU: perplexity over text, and how often the
likeliest token is another one than in float32.

`python -m benchmarks.cpu_quality [--model NAME] [--weights int8,stored] [--kv auto,int8] [--step 8] [FILE ...]`:
the backends themselves, window by window. Of a file of JSON lines, gzipped or not, the text is that of its messages;
without a file it is this repository's documentation. The first row is float32 of the same file, or what `--against`
says, and what the others are compared with.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Backend, Batch
from hotloop.backends.cpu import open_cpu
from hotloop.core.config import DEFAULT_MODEL, EngineConfig, KvPrecision, WeightFormat
from hotloop.core.files import read_lines
from hotloop.models.model import Model, load_model

_DOCS = Path(__file__).parents[1] / "docs"

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over the tokens of all windows."""

    perplexity: float
    other: float
    """Share of tokens whose likeliest follower is not that of the reference."""
    divergence: float
    """From the reference, in nats."""


def read_text(path: Path) -> str:
    if ".jsonl" not in path.name:
        return path.read_text()
    rows = (json.loads(line) for _, line in read_lines(path))
    return "\n\n".join(message.get("content") or "" for row in rows for message in row["messages"])


def windows(model: Model, paths: Sequence[Path], size: int, count: int) -> list[list[int]]:
    """From all over each file, so that none is left out."""
    texts = [model.tokenizer.encode(read_text(path)[: 40 * size * count]) for path in paths]
    found = [text[begin : begin + size] for text in texts for begin in range(0, len(text) - size, size)]
    return found[:: max(1, len(found) // count)][:count]


def log_probs(backend: Backend, token_ids: Sequence[int], step_tokens: int) -> Array:
    """[positions, vocabulary]: of what follows each token but the last, so many of them in a step."""
    blocks = -(-len(token_ids) // backend.block_size)
    steps = []
    for begin in range(0, len(token_ids) - 1, step_tokens):
        tokens = np.array(token_ids[begin : min(begin + step_tokens, len(token_ids) - 1)])
        batch = Batch(
            token_ids=tokens,
            positions=np.arange(begin, begin + len(tokens)),
            past_lens=np.array([begin], np.int32),
            begins=np.array([0, len(tokens)], np.int32),
            block_ids=np.arange(blocks, dtype=np.int32),
            block_begins=np.array([0, blocks], np.int32),
            wanted=np.arange(len(tokens)),
        )
        steps.append(np.array(backend.run(batch)))  # type: ignore[attr-defined]
    logits = np.concatenate(steps)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits


def compare(texts: Sequence[list[int]], found: Iterator[Array], wanted: Iterator[Array]) -> Quality:
    lost, num_other, divergence, count = 0.0, 0, 0.0, 0
    for text, ours, theirs in zip(texts, found, wanted, strict=True):
        lost -= float(ours[np.arange(len(ours)), text[1:]].sum())
        num_other += int((ours.argmax(-1) != theirs.argmax(-1)).sum())
        divergence += float((np.exp(theirs) * (theirs - ours)).sum())
        count += len(ours)
    return Quality(math.exp(lost / count), num_other / count, divergence / count)


def measure(
    model: Model,
    weights: WeightFormat,
    kv_precision: KvPrecision,
    texts: Sequence[list[int]],
    step_tokens: int,
    kept: Path,
) -> Quality:
    """Against what was kept, which is this itself if nothing was."""
    config = EngineConfig(kv_memory="256MiB", kv_precision=kv_precision)
    backend = open_cpu(model, config, weight_format=weights, precision="exact" if weights == "f32" else "fast")
    is_first = not any(kept.iterdir())

    def found() -> Iterator[Array]:
        for i, text in enumerate(texts):
            computed = log_probs(backend, text, step_tokens)
            if is_first:
                np.save(kept / f"{i}.npy", computed)
            yield computed

    try:
        return compare(texts, found(), (np.load(kept / f"{i}.npy", mmap_mode="r") for i in range(len(texts))))
    finally:
        backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_quality")
    parser.add_argument("files", nargs="*", type=Path, default=sorted(_DOCS.glob("*.md")))
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--weights", default="int8,stored", help=f"of {', '.join(get_args(WeightFormat))}")
    parser.add_argument("--kv", default="auto", help=f"of {', '.join(get_args(KvPrecision))}")
    parser.add_argument("--against", default="f32", choices=get_args(WeightFormat), help="weights of the first row")
    parser.add_argument("--window", type=int, default=512, help="tokens that are read together")
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument(
        "--step", type=int, default=4096, help="tokens of a step; few of them are computed as in decoding"
    )
    asked = parser.parse_args()
    model = load_model(asked.model)
    texts = windows(model, asked.files, asked.window, asked.windows)
    print(f"{model.name}, {len(texts)} x {asked.window} tokens")
    print(f"{'weights':10}{'KV':6}perplexity  other top token  KL, nats")
    with tempfile.TemporaryDirectory() as folder:
        first: tuple[WeightFormat, KvPrecision] = (asked.against, "auto")
        others = product(asked.weights.split(","), asked.kv.split(","))
        for weights, kv_precision in (first, *(other for other in others if other != first)):
            found = measure(model, weights, kv_precision, texts, asked.step, Path(folder))
            figures = f"{found.perplexity:10.3f}{found.other:17.2%}{found.divergence:10.4f}"
            print(f"{weights:10}{kv_precision:6}{figures}", flush=True)


if __name__ == "__main__":
    main()
