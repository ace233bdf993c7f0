"""`python -m benchmarks.gpu`: how fast the engine is on this machine's card, beside what the card could do."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.figures import (
    Client,
    batch,
    decode_alone,
    decode_limit,
    idle_share,
    lockstep,
    long_prompts,
    measure_limits,
    open_engine,
    prefill,
    prefill_limit,
)
from benchmarks.gpu.models import SHAPES
from hotloop.backends.cuda.runner import CudaBackend


def run(shape: str, *, is_short: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """All figures of one run, each as soon as it is there: its repeats beside its limit."""
    limits = measure_limits()
    began_at = time.perf_counter()
    engine = open_engine(shape, drafts=False)
    backend = engine._backend
    assert isinstance(backend, CudaBackend)
    spec = backend.spec
    yield (
        "card",
        {
            "name": torch.cuda.get_device_name(),
            "copy TB/s": round(limits.copy_bytes_s / 1e12, 2),
            "matmul TFLOP/s": round(limits.matmul_flop_s / 1e12),
            "start s": round(time.perf_counter() - began_at, 1),
            "KV tokens": engine.num_kv_tokens,
        },
    )
    with engine:
        client = Client(engine)
        client.ask([client.prompt(2048)], 8)
        client.ask([client.prompt(8192)], 2)
        yield from _host_figures(client)
        if is_short:
            return
        for context in (2048, 32768):
            rates = decode_alone(client, context)
            yield f"decode alone at {context:,}", _figure(rates, decode_limit(spec, limits, 1, context))
        for num_tokens in (2048, 8192, 32768, 100_000):
            rates = prefill(client, num_tokens, repeats=1 if num_tokens == 100_000 else 3)
            yield f"prefill of {num_tokens:,}", _figure(rates, prefill_limit(spec, limits, num_tokens))
        yield "64 agents in lockstep", _figure(lockstep(client), None)


def _host_figures(client: Client) -> Iterator[tuple[str, dict[str, Any]]]:
    """What steps cost the host, and in which order prompts are prefilled."""
    for count in (64, 192, 256):
        yield f"{count} running", idle_share(client, count)
    yield "256 running, drawn, min_tokens", idle_share(client, 256, temperature=1.0, top_p=0.9, min_tokens=128)
    times_s = long_prompts(client)
    runs = [round(each_s, 3) for each_s in times_s]
    yield "3 x 8,000, mean TTFT", {"seconds": round(statistics.median(times_s), 3), "runs": runs}
    for count in (64, 256):
        yield f"{count} x (1,024 + 128)", _figure(batch(client, count), None)


def _figure(rates: list[float], limit: float | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"tokens/s": round(statistics.median(rates), 1), "runs": [round(rate, 1) for rate in rates]}
    return {**shown, "limit": round(limit, 1)} if limit else shown


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device: this runs on a machine with a card")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b", help="of the model, whose weights are random")
    parser.add_argument("--short", action="store_true", help="what steps cost the host, and long prompts, alone")
    options = parser.parse_args()
    for name, figure in run(options.shape, is_short=options.short):
        print(json.dumps({name: figure}), flush=True)


if __name__ == "__main__":
    main()
