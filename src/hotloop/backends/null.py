"""A backend without a model, for tests and for measuring everything that is not the model.

Its "model" is a pure function of the tokens it can see in its KV: the next token is a hash of the sequence's last few
tokens, read back from the blocks. A wrong block table, a stale block or a skipped token therefore changes the output.
With `num_window_blocks` it reads them from memory of its own, as layers with a window do.
With `num_states` it is a hybrid: the hash of all tokens in order, carried from step to step, changes the output too.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Batch, Flight, HostMemory
from hotloop.backends.host import HostCopy, HostFlight


class NullBackend:
    """Remembers token ids instead of keys and values."""

    WINDOW = 64
    LIKELIEST = 10.0  # its logit; all others have less than 1
    step_tokens = 512
    max_running = 64
    step_sizes: Sequence[int] = ()
    max_solo_prefill = math.inf
    depth = 1
    host_memory: HostMemory | None = None

    def __init__(
        self,
        *,
        block_size: int = 32,
        num_blocks: int = 1024,
        vocab_size: int = 1000,
        max_context: int = 1 << 20,
        num_states: int = 0,
        num_window_blocks: int = 0,
        on_run: Callable[[Batch], None] | None = None,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.block_bytes = block_size * np.dtype(np.int64).itemsize
        self.num_states = num_states
        self.state_bytes = 2 * np.dtype(np.int64).itemsize
        self.num_window_blocks, self.window = num_window_blocks, self.WINDOW
        self._window_kv = np.full((num_window_blocks, block_size), -1, np.int64)
        self._states = np.full((num_states, 2), -1, np.int64)  # how many tokens, and their hash
        self.kv_layout = f"null {block_size}"
        self._on_run = on_run
        self._kv = np.full((num_blocks, block_size), -1, np.int64)
        self._noise = np.random.default_rng(0).random(vocab_size, np.float32)  # logits as uneven as a model's
        self._logits = np.zeros((0, vocab_size), np.float32)
        self._likeliest: list[int] = []

    def launch(self, batch: Batch) -> Flight:
        return HostFlight(lambda: self.run(batch))

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [logits, vocabulary], valid until the next call."""
        if self._on_run:
            self._on_run(batch)
        tables = np.split(batch.block_ids, batch.block_begins[1:-1])
        self._write(self._kv, tables, batch)
        kv = self._kv
        if batch.window_ids is not None:
            kv, tables = self._window_kv, np.split(batch.window_ids, batch.block_begins[1:-1])
            self._write(kv, tables, batch)
        hashes = self._carry(batch) if batch.states is not None else 0
        return self._point_at(
            [*(np.array([*self._next_tokens(batch, kv, tables)], np.int64) + hashes) % self.vocab_size]
        )

    def read_blocks(self, block_ids: Sequence[int]) -> HostCopy:
        copy: NDArray[np.int64] = self._kv[np.array(block_ids, np.int64)]
        return HostCopy(copy.view(np.uint8).reshape(-1).data)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        self._kv[np.array(block_ids, np.int64)] = np.frombuffer(data, np.int64).reshape(-1, self.block_size)

    def read_state(self, slot: int) -> HostCopy:
        return HostCopy(self._states[slot].copy().view(np.uint8).data)

    def write_state(self, slot: int, data: memoryview) -> None:
        self._states[slot] = np.frombuffer(data, np.int64)

    def close(self) -> None:
        self._kv = self._kv[:0]

    def _carry(self, batch: Batch) -> NDArray[np.int64]:
        """Read a state for each sequence, go on from it, and leave it; the hashes after the wanted tokens."""
        assert batch.states is not None
        hashes = np.zeros(len(batch.token_ids), np.int64)
        before = [(0, 0) if read < 0 else tuple(self._states[read].tolist()) for read in batch.states[:, 0]]
        for i, (num_tokens, value) in enumerate(before):
            assert num_tokens == batch.past_lens[i], "a state was read where it was not saved"
            begin, end = batch.query_starts[i], batch.query_starts[i + 1]
            for row in range(begin, end):
                value = hashes[row] = (value * 31 + int(batch.token_ids[row]) + 1) % 1_000_003
            self._states[batch.states[i, 1]] = num_tokens + end - begin, value
        return hashes[batch.logit_rows]

    def _write(self, kv: NDArray[np.int64], tables: list[NDArray[np.int32]], batch: Batch) -> None:
        for i, table in enumerate(tables):
            begin, end = batch.query_starts[i], batch.query_starts[i + 1]
            positions = batch.positions[begin:end]
            kv[table[positions // self.block_size], positions % self.block_size] = batch.token_ids[begin:end]

    def _next_tokens(self, batch: Batch, kv: NDArray[np.int64], tables: list[NDArray[np.int32]]) -> Iterator[int]:
        owners = np.searchsorted(batch.query_starts, batch.logit_rows, side="right") - 1
        for row, owner in zip(batch.logit_rows, owners, strict=True):
            end = int(batch.positions[row]) + 1
            begin = max(0, end - self.WINDOW)
            first_block = begin // self.block_size
            blocks = kv[tables[owner][first_block : -(-end // self.block_size)]]
            tokens = blocks.reshape(-1)[begin - first_block * self.block_size : end - first_block * self.block_size]
            assert tokens.min() >= 0, "a token was read before it was computed"
            yield self._next_token(tokens, np.arange(begin, end))

    def _next_token(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        return int(np.dot(token_ids, positions * 31 + 7) % self.vocab_size)

    def _point_at(self, token_ids: list[int]) -> NDArray[np.float32]:
        """Logits whose likeliest tokens are these; only what changed since last time is written."""
        for row, token_id in enumerate(self._likeliest):
            self._logits[row, token_id] = self._noise[token_id]
        if len(self._logits) < len(token_ids):
            self._logits = np.tile(self._noise, (len(token_ids), 1))
        for row, token_id in enumerate(token_ids):
            self._logits[row, token_id] = self.LIKELIEST
        self._likeliest = token_ids
        return self._logits[: len(token_ids)]
