"""The same shapes in transformers, as one would use it by itself: the plain way that an engine has to beat.

    python -m benchmarks.claims.naive FOLDER REPEATS PROMPT COUNT IN OUT

is a process of its own, which leaves a card empty; it writes the figures as JSON.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.claims.bench import Bench

SERVED = ("one, tokens/s", "one, first token", "batch, tokens/s", "batch, first token")


def serve_naively(bench: Bench) -> Mapping[str, Sequence[float]]:
    """Of each figure a value a repeat; none on a CPU, or where transformers cannot be run."""
    if bench.device == "cpu":
        return {}
    bench.servers.close()
    scale = bench.scale
    sizes = map(str, (scale.repeats, scale.prompt, *scale.batch))
    command = [sys.executable, "-m", "benchmarks.claims.naive", bench.standing, *sizes]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return {} if done.returncode else json.loads(done.stdout.splitlines()[-1])


def measure(folder: str, repeats: int, prompt: int, count: int, num_in: int, num_out: int) -> dict[str, list[float]]:
    """One request after the other, then batches at once, whose prompts all have their first token together."""
    import torch  # noqa: PLC0415 - for this process alone
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - for this process alone

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16).eval()

    def generate(num_prompts: int, num_tokens: int, num_new: int) -> float:
        prompts = torch.randint(0, model.config.vocab_size, (num_prompts, num_tokens), device=device)
        began_at = time.perf_counter()
        lengths = {"max_new_tokens": num_new, "min_new_tokens": num_new}
        tokens = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, **lengths)
        tokens.tolist()  # waits for the device
        return time.perf_counter() - began_at

    found: dict[str, list[float]] = {name: [] for name in SERVED}
    for repeat in range(-1, repeats):  # the first warms up
        first_s, whole_s = (generate(1, prompt, num) for num in (1, num_out))
        firsts_s, wholes_s = (generate(count, num_in, num) for num in (1, num_out))
        rows = (num_out - 1) / (whole_s - first_s), first_s, count * num_out / wholes_s, firsts_s
        for name, value in zip(SERVED, rows, strict=True):
            found[name].extend([value] if repeat >= 0 else [])
    return found


if __name__ == "__main__":
    folder, *sizes = sys.argv[1:]
    print(json.dumps(measure(folder, *map(int, sizes))))
