"""How far each backend is from transformers, family by family and manner by manner, as a table in Markdown.

    python -m tests.parity.table                    on the CPU
    python -m tests.parity.table --backend cuda     on a card, or in Triton's interpreter (TRITON_INTERPRET=1)

Tiny random models in float32, and what transformers said of them when `tests/parity/make.py` was run. A cell is the
largest difference of a logit; the last column how often the top token is the same, in the manner where it is least so.
Rows are printed as they come.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engine.tiny import TOKENIZER
from tests.parity import manners, states
from tests.parity.manners import Run
from tests.parity.models import CONFIGS, HYBRIDS, read_model, write_model

from hotloop.core.config import EngineConfig
from hotloop.models.model import Model

MANNERS = ("plain", "cached", "chunked", "batched", "drafted", "decoded")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of: {'; '.join([*CONFIGS, *HYBRIDS])}")
    options = parser.parse_args()
    tell(f"| {options.backend} | " + " | ".join(MANNERS) + " | same top token |")
    tell("|---" * (len(MANNERS) + 2) + "|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOTLOOP_HOME"] = folder
        for name in options.names or [*CONFIGS, *HYBRIDS]:
            tell(row(name, Path(folder), options.backend))


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def row(name: str, folder: Path, backend: str) -> str:
    model = read_model(name, write_model(name, folder / name), TOKENIZER)
    off, same = dict.fromkeys(MANNERS, 0.0), 1.0
    try:
        with (on_cpu if backend == "cpu" else on_cuda)(model) as (run, block_size):
            found = states.differences(name, run) if name in HYBRIDS else manners.differences(name, run, block_size)
            for manner, each, share in found:
                manner = manner.removesuffix(" again")
                off[manner], same = max(off[manner], each), min(same, share)
    except Exception as error:  # the other rows are worth having
        return f"| {name} | {type(error).__name__}: {str(error).splitlines()[0]} |"
    return f"| {name} | " + " | ".join(f"{each:.0e}" for each in off.values()) + f" | {same:.0%} |"


@contextmanager
def on_cpu(model: Model) -> Iterator[tuple[Run, int]]:
    from hotloop.backends.cpu.opening import open_cpu  # noqa: PLC0415 - a card needs none of it

    backend = open_cpu(model, EngineConfig(kv_memory="8MiB"), weight_format="f32", precision="exact")
    yield lambda step: backend.run(step).copy(), backend.block_size  # type: ignore[attr-defined]
    backend.close()


@contextmanager
def on_cuda(model: Model) -> Iterator[tuple[Run, int]]:
    import torch  # noqa: PLC0415 - the CPU needs none of it
    from tests.backends.cuda.test_backend import logits_of, make_backend  # noqa: PLC0415

    backend = make_backend(model, "cuda" if torch.cuda.is_available() else "cpu", max_step_tokens=256)
    yield lambda step: logits_of(backend, step), backend.block_size
    backend.close()


if __name__ == "__main__":
    main()
