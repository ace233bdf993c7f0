"""Makes a batch (arrays) of a step (integers): the only module that knows both."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch
from hotloop.engine.step import Slice, Step

_UNKNOWN = array("i", [0]).tobytes()


def make_batch(step: Step, block_size: int, slot_of: "array[int] | None" = None) -> Batch:
    """Tokens whose values are not known yet are named by the row of the step before that chooses them."""
    slices = step.slices
    lengths = [part.end - part.begin + len(part.draft_ids) for part in slices]
    ends = [part.end + len(part.draft_ids) for part in slices]
    tables = [part.request.block_ids[: -(-end // block_size)] for part, end in zip(slices, ends, strict=True)]
    past_lens = np.array([part.begin for part in slices], np.int32)
    query_starts = _starts(lengths)
    pending = [i for i, part in enumerate(slices) if part.end > len(part.request.token_ids)]
    is_known = len(pending) < query_starts[-1]  # whether any of the tokens is
    token_ids = _join(map(_token_bytes, slices)).astype(np.int64) if is_known else np.zeros(query_starts[-1], np.int64)
    block_ids = _join(tables)
    return Batch(
        token_ids=token_ids,
        positions=np.arange(query_starts[-1], dtype=np.int64) + np.repeat(past_lens - query_starts[:-1], lengths),
        past_lens=past_lens,
        query_starts=query_starts,
        block_ids=block_ids,
        block_begins=_starts(map(len, tables)),
        logit_rows=_logit_rows(slices, query_starts),
        sources=_sources(slices, pending, query_starts),
        states=np.array([part.slots for part in slices], np.int32) if slices[0].slots else None,
        window_ids=None if slot_of is None else np.maximum(np.frombuffer(slot_of, np.int32)[block_ids], 0),
    )


def _token_bytes(part: Slice) -> bytes:
    token_ids = part.request.token_ids
    computed = token_ids[part.begin : part.end].tobytes()
    if part.end > len(token_ids):
        return computed + _UNKNOWN
    return computed + array("i", part.draft_ids).tobytes() if part.draft_ids else computed


def _sources(
    slices: Sequence[Slice], pending: Sequence[int], query_starts: NDArray[np.int32]
) -> NDArray[np.int32] | None:
    """Where the last token of a slice comes from, if its request does not have it."""
    if not pending:
        return None
    sources = np.full(query_starts[-1], -1, np.int32)
    sources[query_starts[1:][pending] - 1] = [slices[i].request.pending_row for i in pending]
    return sources


def _logit_rows(slices: Sequence[Slice], query_starts: NDArray[np.int32]) -> NDArray[np.int64]:
    """The rows after which a token is chosen: a level slice's last token, and each of its drafts."""
    level = [i for i, part in enumerate(slices) if part.wants_token]
    if len(level) == query_starts[-1]:  # all compute one token, and have it chosen
        return query_starts[1:].astype(np.int64) - 1
    counts = np.array([1 + len(slices[i].draft_ids) for i in level], np.int64)
    ends = query_starts[1:][level].astype(np.int64)
    if len(counts) == counts.sum():
        return ends - 1
    return np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)


def _starts(lengths: Iterable[int]) -> NDArray[np.int32]:
    return np.array([*accumulate(lengths, initial=0)], np.int32)


def _join(parts: "Iterable[bytes | array[int]]") -> NDArray[np.int32]:
    return np.frombuffer(b"".join(parts), np.int32)
