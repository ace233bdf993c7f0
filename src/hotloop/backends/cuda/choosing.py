"""From the rows of a sampling to arrays on the device, and from its logits to tokens.

What a token depends on is the row: its logits, its request's parameters, and a seed made of the request's and of the
token's position. So it is the same however the batch is made up.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.backends.backend import SampleRow, Sampling
from hotloop.backends.cuda.memory.staging import to_host
from hotloop.backends.cuda.sampling import adjust, apply_masks, choose
from hotloop.backends.sampler import address
from hotloop.core.request import TokenLogprob

_FORBIDDEN = -1e30
Upload = Callable[[Sequence[NDArray[np.generic]]], list[torch.Tensor]]


def choose_tokens(logits: torch.Tensor, sampling: Sampling, out: torch.Tensor, upload: Upload) -> None:
    """Write the token of each row to `out`; -1 where there is none. Changes the logits."""
    rows = sampling.rows
    _adjust(logits, sampling, upload)
    masks = list(sampling.masks())
    if masks:
        indexes = np.array([index for index, _ in masks], np.int32)
        words = np.zeros((len(masks), -(-logits.shape[1] // 32)), np.int32)
        for i, (_, mask) in enumerate(masks):
            words[i].view(np.uint8)[: len(mask)] = mask
        apply_masks(logits, *upload([indexes, words]))
    params = [row.request.sampling for row in rows]
    random = [each for each in params if not each.is_greedy]
    has_cuts = any(each.top_k or each.top_p < 1 or each.min_p for each in random)
    temperature = top_k = top_p = min_p = seeds = out  # read by nobody if no row is drawn or cut
    if random:
        temperature, top_k, top_p, min_p, seeds = upload(
            [
                np.array([0.0 if each.is_greedy else each.temperature for each in params], np.float32),
                np.array([min(each.top_k, logits.shape[1]) for each in params], np.int32),
                np.array([each.top_p for each in params], np.float32),
                np.array([each.min_p for each in params], np.float32),
                np.array([_seed(row) for row in rows], np.int64),
            ]
        )
    choose(logits, temperature, top_k, top_p, min_p, seeds, out, is_random=bool(random), has_cuts=has_cuts)


def _adjust(logits: torch.Tensor, sampling: Sampling, upload: Upload) -> None:
    """Penalties, biases and forbidden ends: each (row, token) comes once, with all that is to be done to it."""
    changes = []
    for index, row in enumerate(sampling.rows):
        params = row.request.sampling
        if params.has_penalties or params.logit_bias or row.num_output < params.min_tokens:
            tokens, repetition, addend = _changes(row, sampling.eos_ids)
            changes.append((np.full(len(tokens), index, np.int32), tokens, repetition, addend))
    if changes:
        adjust(logits, *upload([np.concatenate(column) for column in zip(*changes, strict=True)]))


def _changes(row: SampleRow, eos_ids: frozenset[int]) -> tuple[NDArray[np.generic], ...]:
    """Tokens, the repetition penalty of each and what is added to it. Repetition counts the prompt too; presence and
    frequency the output only.
    """
    params = row.request.sampling
    seen = row.token_ids() if params.has_penalties else np.empty(0, np.int32)
    biases = dict(params.logit_bias)
    if row.num_output < params.min_tokens:
        biases |= dict.fromkeys(eos_ids | params.stop_token_ids, _FORBIDDEN)
    biased = np.array([*biases], np.int32)
    output, counts = np.unique(seen[row.request.num_prompt :], return_counts=True)
    tokens = np.union1d(seen, biased)
    repetition = np.ones(len(tokens), np.float32)
    repetition[np.searchsorted(tokens, seen)] = params.repetition_penalty
    addend = np.zeros(len(tokens), np.float32)
    addend[np.searchsorted(tokens, output)] -= counts * params.frequency_penalty + params.presence_penalty
    addend[np.searchsorted(tokens, biased)] += np.array([*biases.values()], np.float32)
    return tokens, repetition, addend


def _seed(row: SampleRow) -> int:
    """Of the request and the position, as a signed number of 63 bits."""
    return address(row.request.seed, row.position) >> 1


class Logprobs:
    """Log-probabilities of the model's own distribution, for the rows that ask for them: made before anything changes
    the logits, measured once tokens are chosen.

    They travel with the tokens, so nobody waits for the device a second time. Only the token that a grammar put in the
    place of the chosen one has to be looked up.
    """

    def __init__(self, logits: torch.Tensor, num_tops: Mapping[int, int], upload: Upload) -> None:
        self._places = {row: i for i, row in enumerate(num_tops)}
        self._num_top = min(max(num_tops.values()), logits.shape[1])
        [self._rows] = upload([np.array([*num_tops], np.int32)])
        self._logits = logits.index_select(0, self._rows)

    def measure(self, chosen: torch.Tensor) -> None:
        """`chosen` [wanted] are the tokens of all rows; -1 where there is none."""
        self._totals = torch.logsumexp(self._logits, 1, keepdim=True)
        token_ids = chosen.index_select(0, self._rows).clamp(min=0).long()[:, None]
        top_logits, top_ids = self._logits.topk(self._num_top)
        logs = torch.cat((self._logits.gather(1, token_ids), top_logits), 1) - self._totals
        self._ids = to_host(torch.cat((token_ids, top_ids), 1))
        self._logs = to_host(logs)

    def of(self, row: int, token_id: int, num_top: int) -> TokenLogprob:
        """Once the step has ended."""
        place = self._places[row]
        (chosen_id, *top_ids), (log, *logs) = self._ids[place].tolist(), self._logs[place].tolist()
        if token_id != chosen_id:
            log = float(self._logits[place, token_id] - self._totals[place, 0])
        return TokenLogprob(token_id, log, tuple(zip(top_ids[:num_top], logs[:num_top], strict=True)))
