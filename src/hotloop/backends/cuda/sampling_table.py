"""From the rows of a sampling to arrays on the device, and from its logits to tokens.

What a token depends on is the row: its logits, its request's parameters, and a seed made of the request's and of the
token's position. So it is the same however the batch is made up.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from cachetools import FIFOCache
from numpy.typing import NDArray

from hotloop.backends.backend import SampleRow, Sampling
from hotloop.backends.cuda.memory.staging import to_host
from hotloop.backends.cuda.sampling import adjust, apply_masks, choose
from hotloop.backends.sampler import mix, mix_all
from hotloop.core.request import Request, TokenLogprob

_FORBIDDEN = -1e30
_MAX_REQUESTS = 4096  # that a table knows before it forgets all of them
_MAX_CACHED = 256  # requests whose tokens to change are remembered
Upload = Callable[[Sequence[NDArray[np.generic]]], list[torch.Tensor]]
Column = NDArray[np.generic]

_PARAMS = np.dtype(
    [
        ("temperature", np.float32),  # 0: the likeliest
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("has_cuts", np.bool_),
        ("seed", np.uint64),  # mixed
        ("num_prompt", np.int64),
        ("min_tokens", np.int64),
        ("is_changed", np.bool_),  # whether its logits are changed at every token, or by tokens of its own
        ("num_top", np.int32),  # logprobs; -1: none
    ]
)


class SamplingTable:
    """The parameters of requests as arrays, a line each, so that a step looks nothing up in Python that is plain."""

    def __init__(self, max_running: int) -> None:
        self._params = np.zeros(_MAX_REQUESTS + max_running, _PARAMS)
        self._lines: dict[int, int] = {}  # of requests, by their numbers
        self._prompts: FIFOCache[int, NDArray[np.int32]] = FIFOCache(_MAX_CACHED)
        self._biases: FIFOCache[int, tuple[Column, ...]] = FIFOCache(_MAX_CACHED)
        self._eos: tuple[frozenset[int], NDArray[np.int32]] = (frozenset(), np.empty(0, np.int32))

    def rows(self, sampling: Sampling) -> "SamplingRows":
        if len(self._lines) >= _MAX_REQUESTS:
            self._lines.clear()
        known = self._lines
        lines = [known.get(row.request.number, -1) for row in sampling.rows]
        if min(lines) < 0:
            lines = [self._line(row.request) for row in sampling.rows]
        positions = np.array([row.position for row in sampling.rows], np.int64)
        return SamplingRows(sampling, self._params[lines], positions, self)

    def _line(self, request: Request) -> int:
        line = self._lines.get(request.number)
        if line is not None:
            return line
        params = request.sampling
        line = self._lines[request.number] = len(self._lines)
        is_random = not params.is_greedy
        self._params[line] = (
            params.temperature if is_random else 0.0,
            min(params.top_k, np.iinfo(np.int32).max),
            params.top_p,
            params.min_p,
            is_random and bool(params.top_k or params.top_p < 1 or params.min_p),
            mix(request.seed),
            request.num_prompt,
            params.min_tokens,
            params.has_penalties or bool(params.logit_bias) or bool(params.min_tokens and params.stop_token_ids),
            -1 if params.logprobs is None else params.logprobs,
        )
        return line

    def ends(self, eos_ids: frozenset[int]) -> NDArray[np.int32]:
        if self._eos[0] is not eos_ids:
            self._eos = eos_ids, np.array(sorted(eos_ids), np.int32)
        return self._eos[1]

    def biases(self, request: Request) -> tuple[Column, ...]:
        """What `_changes` says of one without penalties: the same for each of its tokens."""
        if request.number not in self._biases:
            self._biases[request.number] = _changes(SampleRow(request, request.num_prompt), (), self)
        return self._biases[request.number]

    def prompt_tokens(self, request: Request) -> NDArray[np.int32]:
        """Each token of its prompt once."""
        if request.number not in self._prompts:
            self._prompts[request.number] = np.unique(np.array(request.token_ids[: request.num_prompt], np.int32))
        return self._prompts[request.number]


class SamplingRows(NamedTuple):
    """The rows of a step with their requests' parameters."""

    sampling: Sampling
    params: NDArray[np.void]  # [rows] of `_PARAMS`
    positions: NDArray[np.int64]
    table: SamplingTable

    @property
    def num_tops(self) -> dict[int, int]:
        """Of the rows whose log-probabilities are asked for."""
        num_tops = self.params["num_top"]
        return {row: int(num_tops[row]) for row in np.flatnonzero(num_tops >= 0).tolist()}

    @property
    def seeds(self) -> NDArray[np.int64]:
        """Of requests and positions, as signed numbers of 63 bits."""
        return (mix_all(self.params["seed"] + self.positions.astype(np.uint64)) >> np.uint64(1)).astype(np.int64)

    def changes(self) -> list[tuple[Column, ...]]:
        """Rows, tokens, the repetition penalty of each and what is added to it: penalties, biases and forbidden ends.
        Each (row, token) comes once.
        """
        params, eos_ids = self.params, self.sampling.eos_ids
        is_short = self.positions - params["num_prompt"] < params["min_tokens"]
        changes: list[tuple[Column, ...]] = []
        plain = np.flatnonzero(is_short & ~params["is_changed"]).astype(np.int32)
        if len(plain) and eos_ids:
            ends = self.table.ends(eos_ids)
            rows, tokens = np.repeat(plain, len(ends)), np.tile(ends, len(plain))
            changes.append((rows, tokens, np.ones(len(rows), np.float32), np.full(len(rows), _FORBIDDEN, np.float32)))
        for row in np.flatnonzero(params["is_changed"]).tolist():
            request = self.sampling.rows[row].request
            if not is_short[row] and not request.sampling.has_penalties:
                of_row = self.table.biases(request)
            else:
                ends_of = eos_ids | request.sampling.stop_token_ids if is_short[row] else ()
                of_row = _changes(self.sampling.rows[row], ends_of, self.table)
            changes.append((np.full(len(of_row[0]), row, np.int32), *of_row))
        return changes


def choose_tokens(logits: torch.Tensor, rows: SamplingRows, out: torch.Tensor, upload: Upload) -> None:
    """Write the token of each row to `out`; -1 where there is none. Changes the logits."""
    changes = rows.changes()
    if changes:
        adjust(logits, *upload([np.concatenate(column) for column in zip(*changes, strict=True)]))
    masks = list(rows.sampling.masks())
    if masks:
        indexes = np.array([index for index, _ in masks], np.int32)
        words = np.zeros((len(masks), -(-logits.shape[1] // 32)), np.int32)
        for i, (_, mask) in enumerate(masks):
            words[i].view(np.uint8)[: len(mask)] = mask
        apply_masks(logits, *upload([indexes, words]))
    params = rows.params
    is_random, has_cuts = bool(params["temperature"].any()), bool(params["has_cuts"].any())
    temperature = top_k = top_p = min_p = seeds = out  # read by nobody if no row is drawn or cut
    if is_random:
        names = ("temperature", "top_k", "top_p", "min_p")
        temperature, top_k, top_p, min_p, seeds = upload([*(params[name] for name in names), rows.seeds])
    choose(logits, temperature, top_k, top_p, min_p, seeds, out, is_random=is_random, has_cuts=has_cuts)


def _changes(row: SampleRow, ends: Iterable[int], table: SamplingTable) -> tuple[Column, ...]:
    """Tokens, the repetition penalty of each and what is added to it. Repetition counts the prompt too; presence and
    frequency the output only.
    """
    params = row.request.sampling
    output: NDArray[Any] = np.empty(0, np.int32)
    counts = seen = output
    if params.has_penalties:
        output, counts = np.unique(row.token_ids(row.request.num_prompt), return_counts=True)
        seen = output
        if params.repetition_penalty != 1:
            seen = np.union1d(table.prompt_tokens(row.request), output)
    biases = dict(params.logit_bias) | dict.fromkeys(ends, _FORBIDDEN)
    biased = np.array([*biases], np.int32)
    tokens = np.union1d(seen, biased)
    repetition = np.ones(len(tokens), np.float32)
    repetition[np.searchsorted(tokens, seen)] = params.repetition_penalty
    addend = np.zeros(len(tokens), np.float32)
    addend[np.searchsorted(tokens, output)] -= counts * params.frequency_penalty + params.presence_penalty
    addend[np.searchsorted(tokens, biased)] += np.array([*biases.values()], np.float32)
    return tokens, repetition, addend


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
        """`chosen` [logit rows] are the tokens of all rows; -1 where there is none."""
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
