"""A backend without a model, for tests and for measuring everything that is not the model.

Its "model" is a pure function of the tokens it can see in its KV: the next token is a hash of the sequence's last few
tokens, read back from the blocks. A wrong block table, a stale block or a skipped token therefore changes the output.

What is offloaded to host memory comes back some time later, if `is_late` says so, and is read and written only then:
whoever touches either end of such a copy too early is found out, and so is who forgets it.

With a depth of two it behaves as a device does: batches are computed some time after they were launched, in order, the
tokens are chosen under the masks that were handed over, and a row may be a token of the batch before.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Allowed, Batch, Chosen, Flight, HostMemory, Mask, Sampling
from hotloop.backends.host import NOT_NUMBERS, HostChosen, HostCopy, HostFlight
from hotloop.backends.sampler import is_allowed
from hotloop.core.errors import BackendError, HotloopError


class NullBackend:
    """Remembers token ids instead of keys and values."""

    WINDOW = 64
    LIKELIEST = 10.0  # its logit; all others have less than 1
    step_tokens = 512

    def __init__(
        self,
        *,
        block_size: int = 32,
        num_blocks: int = 1024,
        vocab_size: int = 1000,
        max_context: int = 1 << 20,
        depth: int = 1,
        num_host_blocks: int = 0,
        on_run: Callable[[Batch], None] | None = None,
        is_late: Callable[[], bool] = lambda: True,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.depth = depth
        self.block_bytes = block_size * np.dtype(np.int64).itemsize
        self.kv_layout = f"null {block_size}"
        self._on_run = on_run
        self.is_late = is_late
        """Whether a batch, with a depth of two, is computed only when somebody needs it; and whether a copy is."""
        self._queue: deque[_DeviceFlight] = deque()
        self._chosen_ids: list[int] = []  # of the batch that was computed last
        self.error: BackendError | None = None  # that nobody has heard of yet
        self._kv = np.full((num_blocks, block_size), -1, np.int64)
        self._host = NullHostMemory(self, num_host_blocks) if num_host_blocks else None
        self.host_memory: HostMemory | None = self._host
        self._noise = np.random.default_rng(0).random(vocab_size, np.float32)  # logits as uneven as a model's
        self._logits = np.zeros((0, vocab_size), np.float32)
        self._likeliest: list[int] = []

    def launch(self, batch: Batch) -> Flight:
        if self.depth == 1:
            return HostFlight(lambda: self.run(batch))
        self.catch_up(self.depth - 1)
        flight = _DeviceFlight(batch, self)
        self._queue.append(flight)
        self._fail_queue()
        return flight

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [wanted, vocabulary], valid until the next call."""
        if self._on_run:
            self._on_run(batch)
        if self._host:
            self._host.arrive()
        tables = np.split(batch.block_ids, batch.block_begins[1:-1])
        token_ids = self._token_ids(batch)
        for i, table in enumerate(tables):
            begin, end = batch.begins[i], batch.begins[i + 1]
            positions = batch.positions[begin:end]
            self._kv[table[positions // self.block_size], positions % self.block_size] = token_ids[begin:end]
        return self._point_at([*self._next_tokens(batch, tables)])

    def read_blocks(self, block_ids: Sequence[int]) -> HostCopy:
        self.catch_up()
        copy: NDArray[np.int64] = self._kv[np.array(block_ids)]
        return HostCopy(copy.view(np.uint8).reshape(-1).data)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        self.catch_up()
        self.put(block_ids, data)

    def put(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Write at once, whatever else is under way."""
        self._kv[np.array(block_ids)] = np.frombuffer(data, np.int64).reshape(-1, self.block_size)

    def close(self) -> None:
        self._kv = self._kv[:0]

    def catch_up(self, num_left: int = 0) -> None:
        """Compute what was launched until so many are left; a device in a hurry leaves none."""
        while self._queue and (len(self._queue) > num_left or not self.is_late()):
            flight = self._queue.popleft()
            self._chosen_ids = flight.compute()
            self.error = flight.error
            self._fail_queue()

    def _fail_queue(self) -> None:
        """Until somebody hears of a failure, whatever is launched after it fails with it."""
        while self.error and self._queue:
            self._queue.popleft().error = self.error

    def _token_ids(self, batch: Batch) -> NDArray[np.int64]:
        if batch.sources is None:
            return batch.token_ids
        chosen_ids = np.array([*self._chosen_ids, -1])
        return np.where(batch.sources >= 0, chosen_ids[batch.sources], batch.token_ids)

    def _next_tokens(self, batch: Batch, tables: list[NDArray[np.int32]]) -> Iterator[int]:
        owners = np.searchsorted(batch.begins, batch.wanted, side="right") - 1
        for wanted, owner in zip(batch.wanted, owners, strict=True):
            position = int(batch.positions[wanted])
            seen = np.arange(max(0, position - self.WINDOW + 1), position + 1)
            tokens = self._kv[tables[owner][seen // self.block_size], seen % self.block_size]
            assert tokens.min() >= 0, "a token was read before it was computed"
            yield self._next_token(tokens, seen)

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


class NullHostMemory:
    """Host memory of a backend without a model."""

    def __init__(self, backend: NullBackend, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.backend = backend
        self.blocks = np.zeros((num_blocks, backend.block_bytes), np.uint8)
        self._coming: list[NullRestore] = []

    def offload(self, block_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        data = np.frombuffer(self.backend.read_blocks(block_ids).wait(), np.uint8)
        self.blocks[np.array(host_ids)] = data.reshape(len(host_ids), -1)

    def restore(self, host_ids: Sequence[int], block_ids: Sequence[int]) -> "NullRestore":
        copy = NullRestore(self, host_ids, block_ids)  # others may arrive meanwhile
        self._coming.append(copy)
        return copy

    def arrive(self) -> None:
        """Some copies are made, perhaps."""
        for copy in self._coming:
            if not self.backend.is_late():
                copy.arrive()
        self._coming = [copy for copy in self._coming if not copy.is_over]


class NullRestore:
    """Copies some time, or when it has to."""

    def __init__(self, host: NullHostMemory, host_ids: Sequence[int], block_ids: Sequence[int]) -> None:
        self.num_bytes = len(block_ids) * host.backend.block_bytes
        self._host = host
        self._host_ids, self._block_ids = host_ids, block_ids
        self._num_asked = 0
        self.is_over = False
        host.backend.write_blocks(block_ids, memoryview(b"\xff" * self.num_bytes))

    @property
    def is_done(self) -> bool:
        self._num_asked += 1
        if self._num_asked > 8 or not self._host.backend.is_late():
            self.arrive()
        return self.is_over

    def wait(self) -> float:
        self.arrive()
        return 1e-9

    def arrive(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._host.backend.put(self._block_ids, self._host.blocks[np.array(self._host_ids)].data)


class _DeviceFlight:
    """A batch in the queue of a device: its tokens are chosen when it is computed, not when they are asked for."""

    def __init__(self, batch: Batch, backend: NullBackend) -> None:
        self._batch = batch
        self._backend = backend
        self._sampling = Sampling(())
        self._masks: dict[int, Mask] = {}
        self._chosen: _DeviceChosen | None = None
        self.error: BackendError | None = None

    def sample(self, sampling: Sampling) -> None:
        assert len(sampling.rows) == len(self._batch.wanted)
        self._sampling = sampling
        self._masks = dict(sampling.masks())

    def compute(self) -> list[int]:
        """Run it; the tokens chosen, for the batch after it."""
        try:
            logits = self._backend.run(self._batch).copy()
        except BackendError as error:
            self.error = error
            return []
        self._chosen = _DeviceChosen(logits, self._sampling, self._masks)
        return [choice if isinstance(choice, int) else 0 for choice in self._chosen.choices]

    def wait(self) -> Chosen:
        if self._chosen is None and self.error is None:
            self._backend.catch_up()
        if self.error:
            self._backend.error = None
            raise self.error
        assert self._chosen is not None
        return self._chosen


class _DeviceChosen(HostChosen):
    def __init__(self, logits: NDArray[np.float32], sampling: Sampling, masks: Mapping[int, Mask]) -> None:
        super().__init__(logits, sampling, 0.0)
        self.choices = [self._choose(row, masks.get(row)) for row in range(len(logits))]

    def token(self, row: int, allowed: Allowed | None = None) -> int:
        choice = self.choices[row]
        if not isinstance(choice, int):
            raise choice
        return choice

    def _choose(self, row: int, mask: Mask | None) -> int | HotloopError:
        if mask is not None and not mask.any():  # the row after a draft that ends the answer
            return BackendError(NOT_NUMBERS)
        try:
            return super().token(row, None if mask is None else _Masked(mask))
        except HotloopError as error:
            return error


class _Masked:
    """A mask that was handed over, as a grammar."""

    error: str | None = None

    def __init__(self, mask: Mask) -> None:
        self._mask = mask

    def allows(self, token_id: int) -> bool:
        return is_allowed(self._mask, token_id)

    def mask(self) -> Mask:
        return self._mask
