"""From a row of logits to a token. A token depends on the row, the request and its position, never on the batch.

Randomness is addressed, not streamed: the number drawn for a position is a hash of (seed, position), so a request that
was preempted, batched differently or verified as a draft draws the same number again.
"""

import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import RequestError
from hotloop.core.request import Request, SamplingParams, TokenLogprob
from hotloop.engine.grammar.matcher import Matcher, apply_mask

Row = NDArray[np.float32]

_FORBIDDEN = np.float32(-1e30)  # finite, so that a row of nothing else still is a distribution
_BLOCK = 256
_MANY_LOGITS = 1 << 21  # from here on a core alone waits for memory
_num_cores = os.cpu_count() or 1
_helpers = ThreadPoolExecutor(_num_cores, thread_name_prefix="hotloop-sampler")


@dataclass(slots=True)
class Sampled:
    """A chosen token, with its logprobs where they were asked for."""

    token_id: int
    logprob: TokenLogprob | None = None
    is_forced: bool = False
    """Whether it was certain without a look at any logits."""


class Rows:
    """The logits of a step, looked through once, by all cores if there are many."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        likeliest = _argmax(logits)
        # The largest of a row with a NaN is NaN.
        self.is_sound: list[bool] = np.isfinite(logits[np.arange(len(logits)), likeliest]).tolist()
        self.likeliest: list[int] = likeliest.tolist()
        self.logits = logits


class Sampler:
    """Chooses one token from a row. Holds nothing but the ids that end a turn."""

    def __init__(self, eos_ids: Iterable[int]) -> None:
        self._eos_ids = frozenset(eos_ids)

    def sample(self, rows: Rows, index: int, request: Request, matcher: Matcher | None = None) -> Sampled:
        """The request's next token, from this row and among those the matcher allows.

        Raises RequestError if the matcher fails.
        """
        params = request.sampling
        likeliest = rows.likeliest[index]
        if _is_plain_greedy(request) and (matcher is None or matcher.allows(likeliest)):
            return Sampled(likeliest)
        raw: Row = rows.logits[index]
        row = self._shape(raw, request)
        if matcher is not None:
            row = row.copy() if row is raw else row
            apply_mask(row, matcher.mask())
            if matcher.error:
                raise RequestError(f"the grammar failed: {matcher.error}", param="grammar")
        if params.is_greedy:
            token_id = int(row.argmax())
        else:
            token_id = choose(row, params, uniform(request.seed, request.num_tokens))
        return self.given(rows, index, request, token_id)

    def given(self, rows: Rows, index: int, request: Request, token_id: int) -> Sampled:
        """A token that is certain already, as if it had been chosen from this row."""
        return Sampled(token_id, _logprob(rows.logits[index], token_id, request.sampling.logprobs))

    def _shape(self, raw: Row, request: Request) -> Row:
        """Penalties, biases and forbidden ends, on a copy if there are any."""
        params = request.sampling
        is_too_short = request.num_output < params.min_tokens
        if not (params.has_penalties or params.logit_bias or is_too_short):
            return raw
        row = raw.copy()
        if params.has_penalties:
            _penalise(row, request)
        for token_id, bias in params.logit_bias.items():
            row[token_id] += bias
        if is_too_short:
            row[list(self._eos_ids | params.stop_token_ids)] = _FORBIDDEN
        return row


def _argmax(logits: NDArray[np.float32]) -> NDArray[np.intp]:
    """The likeliest token of each row; many rows are looked through by all cores."""
    parts = np.array_split(logits, _num_cores) if logits.size >= _MANY_LOGITS else [logits]
    find = _helpers.map if len(parts) > 1 else map
    return np.concatenate([*find(lambda rows: rows.argmax(-1), parts)])


def choose(row: Row, params: SamplingParams, draw: float) -> int:
    """The token at `draw` (in [0, 1)) of the distribution the parameters leave of this row."""
    candidates = np.argpartition(row, -params.top_k)[-params.top_k :] if 0 < params.top_k < len(row) else None
    kept = row if candidates is None else row[candidates]
    weights: Row = kept - kept.max()
    weights *= np.float32(1 / params.temperature)
    np.exp(weights, out=weights)  # in place: a fresh row costs more than the arithmetic
    if params.min_p > 0:
        weights[weights < params.min_p] = 0  # the likeliest weighs exactly 1
    if params.top_p < 1:
        weights = _cut_tail(weights, params.top_p)
    index = _pick(weights, draw)
    return index if candidates is None else int(candidates[index])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for this seed and position: two rounds of splitmix64."""
    mixed = _mix(_mix(seed & _MASK) + position)
    return (mixed >> 11) / (1 << 53)


_MASK = (1 << 64) - 1


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _is_plain_greedy(request: Request) -> bool:
    params = request.sampling
    return (
        params.is_greedy
        and params.logprobs is None
        and not params.has_penalties
        and not params.logit_bias
        and request.num_output >= params.min_tokens
    )


def _penalise(row: Row, request: Request) -> None:
    """Repetition counts the prompt too, as its inventors and others do; presence and frequency the output only."""
    params = request.sampling
    if params.repetition_penalty != 1:
        seen = np.array(request.token_ids, np.int32)
        values = row[seen]
        row[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if request.num_output:
        output, counts = np.unique(np.array(request.output_ids, np.int32), return_counts=True)
        row[output] -= (counts * params.frequency_penalty + params.presence_penalty).astype(np.float32)


def _cut_tail(weights: Row, top_p: float) -> Row:
    """Keep the fewest likeliest tokens whose share reaches top_p, and those that weigh the same as the last of them.

    All tokens below an even share of what may be cut weigh less than that together, so only the others need sorting.
    """
    total = float(weights.sum(dtype=np.float64))
    head = np.sort(weights[weights >= (1 - top_p) * total / len(weights)])[::-1]
    num_below = int(np.searchsorted(np.cumsum(head, dtype=np.float64), top_p * total))
    least = head[min(num_below, len(head) - 1)]
    return np.where(weights >= least, weights, np.float32(0))


def _pick(weights: Row, draw: float) -> int:
    """Where the running sum passes `draw` of the whole: its block first, so that few are summed in order."""
    num_blocks = len(weights) // _BLOCK
    whole, rest = weights[: num_blocks * _BLOCK], weights[num_blocks * _BLOCK :]
    sums = np.append(np.einsum("ij->i", whole.reshape(num_blocks, _BLOCK)), rest.sum())
    cumulative = np.cumsum(sums, dtype=np.float64)
    target = draw * cumulative[-1]
    block = _first_above(cumulative, target)
    begin = block * _BLOCK
    before = cumulative[block - 1] if block else 0.0
    return begin + _first_above(np.cumsum(weights[begin : begin + _BLOCK], dtype=np.float64), target - before)


def _first_above(cumulative: NDArray[np.float64], target: float) -> int:
    """The first running sum above the target; rounding never leads past the last index that has a weight."""
    return int(np.searchsorted(cumulative, min(target, np.nextafter(cumulative[-1], 0)), side="right"))


def _logprob(raw: Row, token_id: int, num_top: int | None) -> TokenLogprob | None:
    """From the model's own distribution: before temperature, penalties and cuts."""
    if num_top is None:
        return None
    shifted = raw - raw.max()
    log_total = math.log(np.exp(shifted).sum(dtype=np.float64))
    top: tuple[tuple[int, float], ...] = ()
    num_top = min(num_top, len(raw))
    if num_top:
        best = np.argpartition(shifted, -num_top)[-num_top:]
        best = best[np.argsort(-shifted[best], kind="stable")]
        top = tuple((i, float(shifted[i]) - log_total) for i in best.tolist())
    return TokenLogprob(token_id, float(shifted[token_id]) - log_total, top)
