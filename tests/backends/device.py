"""A device without a model, for tests of what launches batches and copies blocks.

Batches are computed some time after they were launched, in order, the tokens are chosen under the masks that were
handed over, and with a depth of two a row may be a token of the batch before. What is offloaded to host memory comes
back some time later, if `is_late` says so, and is read and written only then: whoever touches either end of such a copy
too early is found out, and so is who forgets it.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Allowed, Batch, Flight, HostMemory, Mask, SampledTokens, Sampling
from hotloop.backends.host import NOT_NUMBERS, HostCopy, HostSampledTokens
from hotloop.backends.null import NullBackend
from hotloop.backends.sampler import is_allowed
from hotloop.core.errors import BackendError, HotloopError


class NullDevice(NullBackend):
    """With a depth of one it is a `NullBackend`, with or without host memory."""

    def __init__(
        self,
        *,
        depth: int = 1,
        num_host_blocks: int = 0,
        num_host_states: int = 0,
        is_late: Callable[[], bool] = lambda: True,
        **size: Any,
    ) -> None:
        super().__init__(**size)
        self.depth = depth
        self.is_late = is_late
        """Whether a batch, with a depth of two, is computed only when somebody needs it; and whether a copy is."""
        self._queue: deque[_DeviceFlight] = deque()
        self._chosen_ids: list[int] = []  # of the batch that was computed last
        self.error: BackendError | None = None  # that nobody has heard of yet
        self._host = NullHostMemory(self, num_host_blocks, num_host_states) if num_host_blocks else None
        self.host_memory: HostMemory | None = self._host

    def launch(self, batch: Batch) -> Flight:
        if self.depth == 1:
            return super().launch(batch)
        self.catch_up(self.depth - 1)
        flight = _DeviceFlight(batch, self)
        self._queue.append(flight)
        self._fail_queue()
        return flight

    def run(self, batch: Batch) -> NDArray[np.float32]:
        if self._host:
            self._host.arrive()
        if batch.sources is not None:
            chosen_ids = np.array([*self._chosen_ids, -1])
            known = np.where(batch.sources >= 0, chosen_ids[batch.sources], batch.token_ids)
            batch = replace(batch, token_ids=known)
        return super().run(batch)

    def read_blocks(self, block_ids: Sequence[int]) -> HostCopy:
        self.catch_up()
        return super().read_blocks(block_ids)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        self.catch_up()
        self.put(block_ids, data)

    def read_state(self, slot: int) -> HostCopy:
        self.catch_up()
        return super().read_state(slot)

    def write_state(self, slot: int, data: memoryview) -> None:
        self.catch_up()
        self.put_state(slot, data)

    def put(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Write at once, whatever else is under way."""
        super().write_blocks(block_ids, data)

    def put_state(self, slot: int, data: memoryview) -> None:
        super().write_state(slot, data)

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


class NullHostMemory:
    """Host memory of a backend without a model."""

    def __init__(self, backend: NullDevice, num_blocks: int, num_states: int) -> None:
        self.num_blocks, self.num_states = num_blocks, num_states
        self.backend = backend
        self.states = np.zeros((num_states, backend.state_bytes), np.uint8)
        self.blocks = np.zeros((num_blocks, backend.block_bytes), np.uint8)
        self._coming: list[NullRestore] = []

    def offload(self, block_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        data = np.frombuffer(self.backend.read_blocks(block_ids).wait(), np.uint8)
        self.blocks[np.array(host_ids)] = data.reshape(len(host_ids), -1)

    def offload_state(self, slot: int, host_slot: int) -> None:
        self.states[host_slot] = np.frombuffer(self.backend.read_state(slot).wait(), np.uint8)

    def restore(
        self, host_ids: Sequence[int], block_ids: Sequence[int], states: tuple[int, int] | None = None
    ) -> "NullRestore":
        copy = NullRestore(self, host_ids, block_ids, states)  # others may arrive meanwhile
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

    def __init__(
        self,
        host: NullHostMemory,
        host_ids: Sequence[int],
        block_ids: Sequence[int],
        states: tuple[int, int] | None,
    ) -> None:
        block_bytes, state_bytes = len(block_ids) * host.backend.block_bytes, host.backend.state_bytes
        self.num_bytes = block_bytes + (state_bytes if states else 0)
        self._host = host
        self._host_ids, self._block_ids, self._states = host_ids, block_ids, states
        self._num_asked = 0
        self.is_over = False
        host.backend.write_blocks(block_ids, memoryview(b"\xff" * block_bytes))
        if states:
            host.backend.write_state(states[1], memoryview(b"\xff" * state_bytes))

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
            self._host.backend.put(self._block_ids, self._host.blocks[np.array(self._host_ids, np.int64)].data)
            if self._states:
                self._host.backend.put_state(self._states[1], self._host.states[self._states[0]].data)


class _DeviceFlight:
    """A batch in the queue of a device: its tokens are chosen when it is computed, not when they are asked for."""

    def __init__(self, batch: Batch, backend: NullDevice) -> None:
        self._batch = batch
        self._backend = backend
        self._sampling = Sampling(())
        self._masks: dict[int, Mask] = {}
        self._chosen: _DeviceSampledTokens | None = None
        self.error: BackendError | None = None

    def sample(self, sampling: Sampling) -> None:
        assert len(sampling.rows) == len(self._batch.logit_rows)
        self._sampling = sampling
        self._masks = dict(sampling.masks())

    def compute(self) -> list[int]:
        """Run it; the tokens chosen, for the batch after it."""
        try:
            logits = self._backend.run(self._batch).copy()
        except BackendError as error:
            self.error = error
            return []
        self._chosen = _DeviceSampledTokens(logits, self._sampling, self._masks)
        return [choice if isinstance(choice, int) else 0 for choice in self._chosen.choices]

    def wait(self) -> SampledTokens:
        if self._chosen is None and self.error is None:
            self._backend.catch_up()
        if self.error:
            self._backend.error = None
            raise self.error
        assert self._chosen is not None
        return self._chosen


class _DeviceSampledTokens(HostSampledTokens):
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


def break_restore(memory: HostMemory, when: str) -> None:
    """Have copies from host memory fail when they begin, or when they are waited for."""
    restore = memory.restore

    def fail(*ids: object) -> Any:
        raise BackendError("the bus is broken")

    def restore_badly(*ids: Any) -> Any:
        copy = restore(*ids)
        copy.wait = fail
        return copy

    memory.restore = fail if when == "begin" else restore_badly  # type: ignore[method-assign]
