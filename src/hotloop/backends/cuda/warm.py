"""A few steps before the first request: so that none waits for a kernel to be compiled, and a step of the largest size
that does not fit into the GPU's memory fails while the engine is loaded, not under somebody's prompt.
"""

import numpy as np

from hotloop.backends.backend import Backend, Mask, SampleRow, Sampling, prompt_batch
from hotloop.backends.cuda.quant.fp8 import TILE_ROWS
from hotloop.core.request import Request, SamplingParams

_WAYS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1),
    SamplingParams(temperature=1, top_k=20, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=0, repetition_penalty=1.1, logprobs=1),
)


def warm_up(backend: Backend) -> None:
    """Read and choose in every way there is. Whatever ends up in the blocks, nobody has them yet."""
    for params in _WAYS:
        _run(backend, min(backend.block_size, backend.max_context), params)
    largest = min(backend.step_tokens, backend.num_blocks * backend.block_size, backend.max_context)
    for num_logits in (2, *TILE_ROWS):
        _run(backend, min(max(backend.block_size, num_logits), largest), _WAYS[0], num_logits=num_logits)
    _run(backend, largest, _WAYS[0])
    backend.write_blocks([0], backend.read_blocks([0]).wait())


def _run(backend: Backend, num_tokens: int, params: SamplingParams, num_logits: int = 1) -> None:
    """One prompt of so many tokens, and the tokens after the last of them under a grammar that allows everything."""
    num_logits = min(num_logits, num_tokens)
    row = SampleRow(Request("warm-up", [0] * num_tokens, params), num_tokens)
    mask: Mask = np.full(-(-backend.vocab_size // 8), 255, np.uint8)
    flight = backend.launch(prompt_batch(num_tokens, backend.block_size, num_logits))
    flight.sample(Sampling([row] * num_logits, masks=lambda: [(0, mask)]))
    flight.wait()
