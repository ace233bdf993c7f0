"""Batches made by hand, for tests of a backend by itself."""

import numpy as np

from hotloop.backends.backend import Batch


def batch(*parts: tuple[list[int], int, list[int]], wanted: list[int] | None = None) -> Batch:
    """Parts are (tokens, how many came before them, blocks); after every token one is wanted, unless said otherwise."""
    lengths = [len(token_ids) for token_ids, _, _ in parts]
    tables = [block_ids for _, _, block_ids in parts]
    return Batch(
        token_ids=np.concatenate([np.array(token_ids, np.int64) for token_ids, _, _ in parts]),
        positions=np.concatenate([np.arange(past, past + len(token_ids)) for token_ids, past, _ in parts]),
        past_lens=np.array([past for _, past, _ in parts], np.int32),
        query_starts=np.cumsum([0, *lengths]).astype(np.int32),
        block_ids=np.concatenate(tables).astype(np.int32),
        block_begins=np.cumsum([0, *map(len, tables)]).astype(np.int32),
        logit_rows=np.array(wanted if wanted is not None else range(sum(lengths)), np.int64),
    )
