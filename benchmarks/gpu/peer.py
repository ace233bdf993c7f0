"""The same shapes in transformers, as one would use it by itself: the plain way that an engine has to beat."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.models import dummy_folder

LIMIT_S = 60.0
TINY = {
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of it: the figures' work, unless it only has to run."""

    num_decoded: int = 64
    context: int = 2048
    prompt: int = 8192
    batch: tuple[int, int, int] = (64, 1024, 128)
    """How many at once, tokens in, tokens out."""


class Peer:
    def __init__(self, device: str, **changes: Any) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - for this part alone

        self._device = device
        config = AutoConfig.from_pretrained(dummy_folder("llama-8b", **changes))
        with torch.device(device):
            self._model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()

    def decode(self, work: Work) -> float:
        """Tokens a second after the first one."""
        prompts = self._prompts(1, work.context)
        first_s, all_s = (self._time(partial(self._generate, prompts, n)) for n in (1, work.num_decoded + 1))
        return work.num_decoded / (all_s - first_s)

    def prefill(self, work: Work) -> float:
        """Tokens of a prompt a second."""
        prompts = self._prompts(1, work.prompt)
        return work.prompt / self._time(lambda: self._model(prompts, logits_to_keep=1, use_cache=True))

    def batch(self, work: Work) -> float:
        """Output tokens a second, prompts included in the time."""
        count, num_in, num_out = work.batch
        return count * num_out / self._time(partial(self._generate, self._prompts(count, num_in), num_out))

    def first_s(self, count: int, num_tokens: int) -> float:
        """Seconds until so many prompts at once have their first token."""
        return self._time(partial(self._generate, self._prompts(count, num_tokens), 1))

    def _prompts(self, count: int, num_tokens: int) -> torch.Tensor:
        return torch.randint(1000, 100_000, (count, num_tokens), device=self._device)

    def _generate(self, prompts: torch.Tensor, num_new: int) -> None:
        lengths = {"max_new_tokens": num_new, "min_new_tokens": num_new}
        self._model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, **lengths)

    def _time(self, act: Callable[[], object]) -> float:
        with torch.inference_mode():
            self._synchronize()
            began_at = time.perf_counter()
            act()
            self._synchronize()
            return time.perf_counter() - began_at

    def _synchronize(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def run(peer: Peer, work: Work, limit_s: float = LIMIT_S) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each the better of two runs, of which the first warms up; what there is no time for is said to be missing."""
    began_at = time.perf_counter()
    count, num_in, num_out = work.batch
    parts = {
        f"decode alone at {work.context:,}": peer.decode,
        f"prefill of {work.prompt:,}": peer.prefill,
        f"{count} x ({num_in:,} + {num_out})": peer.batch,
    }
    for name, measure in parts.items():
        rates: list[float] = []
        while len(rates) < 2 and time.perf_counter() - began_at < limit_s:
            rates.append(measure(work))
        runs = [round(rate, 1) for rate in rates]
        yield f"transformers, {name}", {"tokens/s": max(runs), "runs": runs} if runs else {"not done in s": limit_s}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which nothing more is begun")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, to see that it runs")
    flags = parser.parse_args()
    if flags.tiny:
        peer, work = Peer("cpu", **TINY), Work(4, 32, 64, (2, 16, 4))
    else:
        peer, work = Peer("cuda"), Work()
    for name, figure in run(peer, work, flags.limit):
        print(json.dumps({name: figure}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
