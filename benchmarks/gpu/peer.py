"""The same shapes in transformers, as one would use it by itself: the plain way that an engine has to beat."""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.models import dummy_folder


def run(name: str = "llama-8b", num_new: int = 64) -> Iterator[tuple[str, dict[str, Any]]]:
    """Decoding alone after 2,048 tokens, and a prompt of 8,192, each the better of two runs."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - for this part alone

    config = AutoConfig.from_pretrained(dummy_folder(name))
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    yield "transformers, decode alone at 2,048", {"tokens/s": round(max(_decode(model, num_new) for _ in range(2)), 1)}
    yield "transformers, prefill of 8,192", {"tokens/s": round(max(_prefill(model) for _ in range(2)), 1)}


def _decode(model: Any, num_new: int) -> float:
    prompt = torch.randint(1000, 100_000, (1, 2048), device="cuda")
    first_s, all_s = (_time(partial(_generate, model, prompt, count)) for count in (1, num_new + 1))
    return num_new / (all_s - first_s)


def _generate(model: Any, prompt: torch.Tensor, count: int) -> None:
    mask = torch.ones_like(prompt)
    model.generate(prompt, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False)


def _prefill(model: Any) -> float:
    prompt = torch.randint(1000, 100_000, (1, 8192), device="cuda")
    return 8192 / _time(lambda: model(prompt, logits_to_keep=1, use_cache=True))


def _time(act: Callable[[], object]) -> float:
    with torch.inference_mode():
        torch.cuda.synchronize()
        began_at = time.perf_counter()
        act()
        torch.cuda.synchronize()
        return time.perf_counter() - began_at


def main() -> None:
    for name, figure in run():
        print(json.dumps({name: figure}), flush=True)


if __name__ == "__main__":
    main()
