"""From a row of logits to a token, on the host. It depends on the row, the request and its position, never the batch.

Randomness is addressed, not streamed: the noise for a token is a hash of (seed, position, token), so a request that was
preempted, batched differently or verified as a draft draws the same again. Draws are Gumbel-max, as on a GPU: logits
that differ in the last digits, as those of a cached prompt do from a computed one's, give another token only where two
tokens came out equally good to those digits. (A draw from the running sum would move with every weight before it.)
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Allowed, Mask, SampleRow
from hotloop.core.request import SamplingParams, TokenLogprob

Logits = NDArray[np.float32]
"""One row of them."""

_FORBIDDEN = np.float32(-1e30)  # finite, so that a row of nothing else still is a distribution
_BLOCK = 256
_MANY_LOGITS = 1 << 21  # from here on a core alone waits for memory
_num_cores = os.cpu_count() or 1
_helpers = ThreadPoolExecutor(_num_cores, thread_name_prefix="hotloop-sampler")


_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_CEILINGS = np.where(_BITS, np.float32(np.inf), np.float32(-np.inf))  # of eight logits, for each byte of a mask


class Rows:
    """The logits of a step, looked through once, by all cores if there are many."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        parts = np.array_split(logits, _num_cores) if logits.size >= _MANY_LOGITS else [logits]
        find = _helpers.map if len(parts) > 1 else map
        likeliest = np.concatenate([*find(lambda rows: rows.argmax(-1), parts)])
        # The largest of a row with a NaN is NaN.
        self.is_valid: list[bool] = np.isfinite(logits[np.arange(len(logits)), likeliest]).tolist()
        self.likeliest: list[int] = likeliest.tolist()
        self.logits = logits


def sample(rows: Rows, index: int, row: SampleRow, allowed: Allowed | None, eos_ids: frozenset[int]) -> int:
    """The token of this row, among those allowed."""
    params = row.request.sampling
    likeliest = rows.likeliest[index]
    if params.is_greedy and _is_plain(row) and (allowed is None or allowed.allows(likeliest)):
        return likeliest
    raw: Logits = rows.logits[index]
    logits = _shape(raw, row, eos_ids)
    if allowed is not None:
        logits = logits.copy() if logits is raw else logits
        apply_mask(logits, allowed.mask())
    if params.is_greedy:
        return int(logits.argmax())
    return choose(logits, params, address(row.request.seed, row.position))


def apply_mask(logits: Logits, mask: Mask) -> None:
    """Put the logits of tokens that may not come at minus infinity; ten times as fast as indexing with booleans."""
    np.minimum(logits, np.take(_CEILINGS, mask, axis=0).reshape(-1)[: len(logits)], out=logits)


def is_allowed(mask: Mask, token_id: int) -> bool:
    return bool(mask[token_id >> 3] >> (token_id & 7) & 1)


def _shape(raw: Logits, row: SampleRow, eos_ids: frozenset[int]) -> Logits:
    """Penalties, biases and forbidden ends, on a copy if there are any."""
    params = row.request.sampling
    if _is_plain(row):
        return raw
    logits = raw.copy()
    if params.has_penalties:
        _penalise(logits, row)
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += bias
    if row.num_output < params.min_tokens:
        logits[list(eos_ids | params.stop_token_ids)] = _FORBIDDEN
    return logits


def choose(row: Logits, params: SamplingParams, key: int) -> int:
    """The token that the noise at this address picks from the distribution the parameters leave of this row."""
    candidates = np.argpartition(row, -params.top_k)[-params.top_k :] if 0 < params.top_k < len(row) else None
    kept = row if candidates is None else row[candidates]
    weights: Logits = kept - kept.max()
    weights *= np.float32(1 / params.temperature)
    np.exp(weights, out=weights)  # in place: a fresh row costs more than the arithmetic
    if params.min_p > 0:
        weights[weights < params.min_p] = 0  # the likeliest weighs exactly 1
    if params.top_p < 1:
        weights = _cut_tail(weights, params.top_p)
    if candidates is not None:  # in the places they have in the row: the noise is that of the token
        of_candidates, weights = weights, np.zeros_like(row)
        weights[candidates] = of_candidates
    return _pick(weights, key)


def address(seed: int, position: int) -> int:
    """What all noise for this seed and position is made from: two rounds of splitmix64."""
    return mix(mix(seed) + position)


_MASK = (1 << 64) - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_OF_BLOCKS = 0xA5A5_A5A5_A5A5_A5A5


def mix_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix` of each of them."""
    values = values + np.uint64(_STEP)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))


def mix(value: int) -> int:
    """A round of splitmix64."""
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _is_plain(row: SampleRow) -> bool:
    """Whether its logits are taken as they are."""
    params = row.request.sampling
    return not params.has_penalties and not params.logit_bias and row.num_output >= params.min_tokens


def _penalise(logits: Logits, row: SampleRow) -> None:
    """Repetition counts the prompt too, as its inventors and others do; presence and frequency the output only."""
    params, token_ids = row.request.sampling, row.token_ids()
    if params.repetition_penalty != 1:
        values = logits[token_ids]
        logits[token_ids] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    output, counts = np.unique(token_ids[row.request.num_prompt :], return_counts=True)
    logits[output] -= (counts * params.frequency_penalty + params.presence_penalty).astype(np.float32)


def _cut_tail(weights: Logits, top_p: float) -> Logits:
    """Keep the fewest likeliest tokens whose share reaches top_p, and those that weigh the same as the last of them.

    All tokens below an even share of what may be cut weigh less than that together, so only the others need sorting.
    """
    total = float(weights.sum(dtype=np.float64))
    head = np.sort(weights[weights >= (1 - top_p) * total / len(weights)])[::-1]
    num_below = int(np.searchsorted(np.cumsum(head, dtype=np.float64), top_p * total))
    least = head[min(num_below, len(head) - 1)]
    return np.where(weights >= least, weights, np.float32(0))


def _pick(weights: Logits, key: int) -> int:
    """The token that the noise puts first: its block by what the tokens of each weigh together, then the token in it.

    A weight divided by exponential noise is Gumbel-max without the logarithms. In two stages, few numbers are drawn.
    """
    num_blocks = len(weights) // _BLOCK
    whole, rest = weights[: num_blocks * _BLOCK], weights[num_blocks * _BLOCK :]
    sums = np.append(np.einsum("ij->i", whole.reshape(num_blocks, _BLOCK)), rest.sum())
    begin = int((sums / _noise(key ^ _OF_BLOCKS, 0, len(sums))).argmax()) * _BLOCK
    block = weights[begin : begin + _BLOCK]
    return begin + int((block / _noise(key, begin, len(block))).argmax())


def _noise(key: int, begin: int, count: int) -> NDArray[np.float64]:
    """Exponentially distributed, one for each number from `begin` on: `mix` of all of them at once."""
    value = mix_all(np.arange(begin, begin + count, dtype=np.uint64) + np.uint64(key & _MASK))
    uniform = ((value >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log1p(-uniform)


def logprob(raw: Logits, token_id: int, num_top: int) -> TokenLogprob:
    """From the model's own distribution: before temperature, penalties and cuts."""
    shifted = raw - raw.max()
    log_total = math.log(np.exp(shifted).sum(dtype=np.float64))
    top: tuple[tuple[int, float], ...] = ()
    num_top = min(num_top, len(raw))
    if num_top:
        best = np.argpartition(shifted, -num_top)[-num_top:]
        best = best[np.argsort(-shifted[best], kind="stable")]
        top = tuple((i, float(shifted[i]) - log_total) for i in best.tolist())
    return TokenLogprob(token_id, float(shifted[token_id]) - log_total, top)
