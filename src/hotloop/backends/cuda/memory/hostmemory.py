"""KV blocks and states in pinned host memory, and their way there and back beside the steps: four streams of their own.

    out   gather ─> [slot|slot|...] ─> leave      kernel, then one copy for each run of blocks
    in    arrive ─> [slot|slot|...] ─> scatter    copies, then a kernel

A block of the KV cache lies in as many pieces as there are layers, each in its own tensor; in host memory it is one
piece. Between the two it passes through a slot of device memory. So a step that needs the room of blocks on their way
out waits for the kernel only, which takes what the device's memory takes, and not for the bus.

Who waits for whom is known by block: a copy waits for the last step that used its blocks, not for all steps in flight,
and a step waits for the copies of its own blocks. Without CUDA all of it happens at once, in the order of the calls.

Recurrent states of hybrids go the same way, but that they are gathered on the stream of the steps: a slot is free for
the next step at once, and to bring one back waits for all steps in flight, since one of them may have used its slot.
"""

import logging
import mmap
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import cycle
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.backends.cuda.failure import first_line, hardware
from hotloop.backends.cuda.layers.kernels import copy_blocks
from hotloop.backends.cuda.layers.mixing.deltas import DeltaNet
from hotloop.backends.cuda.memory.staging import Event, Staging
from hotloop.core.config import EngineConfig, parse_bytes
from hotloop.models.memory import available_bytes, gib

log = logging.getLogger(__name__)

SLOT_BYTES = 64 << 20
NUM_OUT, NUM_IN = 12, 4  # slots; what a long step needs room for should find some
RING_BYTES = (NUM_OUT + NUM_IN) * SLOT_BYTES
NUM_STATES_OUT, NUM_STATES_IN = 4, 1  # that pass through device memory of their own
AUTO_SHARE = 0.5  # of what the machine has free

Stream: TypeAlias = torch.cuda.Stream | None


def has_host_memory(config: EngineConfig) -> bool:
    """Whether it is asked for. Several GPUs have none: each rank would need one of its own."""
    return config.host_kv != "off" and config.prefix_cache and config.gpus == 1


def wanted_bytes(config: EngineConfig, kv_bytes: int, *, is_cuda: bool) -> int:
    """How much host memory the KV of so many bytes on the device gets beside it."""
    if not has_host_memory(config):
        return 0
    if config.host_kv == "auto":
        return min(kv_bytes, int(AUTO_SHARE * available_bytes())) if is_cuda else 0
    return parse_bytes(config.host_kv)


def ring_bytes(state_bytes: int) -> int:
    """What the device has for copies under way."""
    return RING_BYTES + (NUM_STATES_OUT + NUM_STATES_IN) * state_bytes


def open_host_memory(kv: torch.Tensor, config: EngineConfig, deltas: DeltaNet | None = None) -> "CudaHostMemory | None":
    """As it was asked for, in as many blocks for each state as on the device; if it cannot be allocated, the log
    says so, and it goes on without.
    """
    device_bytes = kv.nbytes + (4 * deltas.num_slots * deltas.state_items if deltas else 0)
    num_bytes = wanted_bytes(config, device_bytes, is_cuda=kv.is_cuda)
    num_blocks = num_bytes * kv.shape[2] // device_bytes
    num_states = max(1, num_bytes * deltas.num_slots // device_bytes) if deltas else 0
    if not num_blocks:
        return None
    began_at = time.monotonic()
    try:
        memory = CudaHostMemory(kv, num_blocks, deltas, num_states)
    except (MemoryError, RuntimeError) as error:
        log.warning("no host memory for KV, so what the GPU evicts is recomputed: %s", error)
        return None
    log.info("%s of host memory for KV, pinned in %.1f s", gib(num_bytes), time.monotonic() - began_at)
    return memory


class CudaHostMemory:
    """Beside the KV cache [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim] and the states of hybrids."""

    def __init__(self, kv: torch.Tensor, num_blocks: int, deltas: DeltaNet | None = None, num_states: int = 0) -> None:
        self.num_blocks, self.num_states = num_blocks, num_states
        self.block_bytes = kv.nbytes // kv.shape[2]
        self._kv = kv
        self._pinned = PinnedBytes(num_blocks * self.block_bytes, is_cuda=kv.is_cuda)
        self._blocks = self._pinned.data.view(kv.dtype).view(num_blocks, *kv.shape[:2], *kv.shape[3:])
        self._staging = Staging(kv.device)
        self._slot_blocks = max(1, min(SLOT_BYTES, kv.nbytes // 256) // self.block_bytes)
        self._out, self._in = self._ring(NUM_OUT), self._ring(NUM_IN)
        self._gathering, self._scattering = (self._stream(priority=-1) for _ in range(2))
        self._leaving, self._arriving = (self._stream() for _ in range(2))
        self._steps, self._gathers = Fences(kv.shape[2]), Fences(kv.shape[2])
        self._writes = Fences(num_blocks)
        self._deltas = deltas
        if deltas:
            self._pinned_states = PinnedBytes(4 * num_states * deltas.state_items, is_cuda=kv.is_cuda)
            self._states = self._pinned_states.data.view(torch.float32).view(num_states, deltas.state_items)
            self._states_out, self._states_in = self._state_ring(NUM_STATES_OUT), self._state_ring(NUM_STATES_IN)
            self._state_left: Event | None = None

    @contextmanager
    def step(self, block_ids: NDArray[np.int32]) -> Iterator[None]:
        """What is enqueued meanwhile uses these blocks, once they are copied; later copies of them wait for it."""
        _wait(self._current(), self._gathers.last(block_ids))
        yield
        self._steps.mark(block_ids, self._record())

    def offload(self, block_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        with hardware():
            ids = np.array(block_ids, np.int32)
            _wait(self._gathering, self._steps.last(ids))
            with _on(self._gathering):
                [on_device] = self._staging.upload([ids])
            for begin, end in self._chunks(len(ids)):
                slot = next(self._out)
                with _on(self._gathering):
                    _wait(self._gathering, slot.free)
                    copy_blocks(self._kv, on_device[begin:end], slot.blocks[: end - begin], is_out=True)
                    gathered = self._record()
                with _on(self._leaving):
                    _wait(self._leaving, gathered)
                    for i, host_id, count in _runs(host_ids[begin:end]):
                        self._blocks[host_id : host_id + count].copy_(slot.blocks[i : i + count], non_blocking=True)
                    slot.free = self._record()
                self._gathers.mark(ids[begin:end], gathered)
                self._writes.mark(np.array(host_ids[begin:end]), slot.free)

    def offload_state(self, slot: int, host_slot: int) -> None:
        assert self._deltas is not None
        with hardware():
            room = next(self._states_out)
            _wait(self._current(), room.free)
            self._deltas.read(slot, room.blocks)
            gathered = self._record()
            with _on(self._leaving):
                _wait(self._leaving, gathered)
                self._states[host_slot].copy_(room.blocks, non_blocking=True)
                room.free = self._state_left = self._record()

    def restore(
        self, host_ids: Sequence[int], block_ids: Sequence[int], states: tuple[int, int] | None = None
    ) -> "CudaRestore":
        with hardware():
            ids = np.array(block_ids, np.int32)
            _wait(self._arriving, self._writes.last(np.array(host_ids)))
            _wait(self._scattering, self._steps.last(ids))
            with _on(self._arriving):
                begun = self._record(has_time=True)
            with _on(self._scattering):
                [on_device] = self._staging.upload([ids])
            for begin, end in self._chunks(len(ids)):
                slot = next(self._in)
                with _on(self._arriving):
                    _wait(self._arriving, slot.free)
                    for i, host_id, count in _runs(host_ids[begin:end]):
                        slot.blocks[i : i + count].copy_(self._blocks[host_id : host_id + count], non_blocking=True)
                    arrived = self._record()
                with _on(self._scattering):
                    _wait(self._scattering, arrived)
                    _wait(self._scattering, self._gathers.last(ids[begin:end]))  # what was there leaves meanwhile
                    copy_blocks(self._kv, on_device[begin:end], slot.blocks[: end - begin], is_out=False)
                    slot.free = self._record()
            num_bytes = len(ids) * self.block_bytes
            if states:
                num_bytes += self._restore_state(*states)
            with _on(self._scattering):
                ended = self._record(has_time=True)
            return CudaRestore(num_bytes, begun, ended)

    def _restore_state(self, host_slot: int, slot: int) -> int:
        assert self._deltas is not None
        room, launched = next(self._states_in), self._record()
        with _on(self._arriving):
            _wait(self._arriving, room.free)
            _wait(self._arriving, self._state_left)
            room.blocks.copy_(self._states[host_slot], non_blocking=True)
            arrived = self._record()
        with _on(self._scattering):
            _wait(self._scattering, arrived)
            _wait(self._scattering, launched)
            self._deltas.write(slot, room.blocks)
            room.free = self._record()
        return 4 * self._deltas.state_items

    def close(self) -> None:
        """Nothing is copied any more."""
        self._pinned.close()
        if self._deltas:
            self._pinned_states.close()

    def _ring(self, num_slots: int) -> "Iterator[_Slot]":
        shape = (self._slot_blocks, *self._blocks.shape[1:])
        return cycle(
            [_Slot(torch.empty(shape, dtype=self._kv.dtype, device=self._kv.device)) for _ in range(num_slots)]
        )

    def _state_ring(self, num_slots: int) -> "Iterator[_Slot]":
        assert self._deltas is not None
        items = self._deltas.state_items
        return cycle([_Slot(torch.empty(items, device=self._kv.device)) for _ in range(num_slots)])

    def _chunks(self, count: int) -> Iterator[tuple[int, int]]:
        for begin in range(0, count, self._slot_blocks):
            yield begin, min(begin + self._slot_blocks, count)

    def _current(self) -> Stream:
        return torch.cuda.current_stream() if self._kv.is_cuda else None

    def _stream(self, priority: int = 0) -> Stream:
        return torch.cuda.Stream(self._kv.device, priority=priority) if self._kv.is_cuda else None

    def _record(self, *, has_time: bool = False) -> Event:
        event = self._staging.event(has_time=has_time)
        event.record()
        return event


@dataclass(slots=True)
class CudaRestore:
    """Blocks on their way to the device."""

    num_bytes: int
    begun: Event
    ended: Event

    @property
    def is_done(self) -> bool:
        try:
            return self.ended.query()
        except RuntimeError:  # `wait` says more
            return True

    def wait(self) -> float:
        with hardware():
            self.ended.synchronize()
            return self.begun.elapsed_time(self.ended) / 1000


class Fences:
    """After which event nobody uses a block any more, for those whose last use may not be over. The events are of one
    stream, in its order.
    """

    def __init__(self, num_blocks: int) -> None:
        self._tickets = np.zeros(num_blocks, np.int64)
        self._pending: deque[tuple[int, Event]] = deque()
        self._last = 0

    def mark(self, block_ids: NDArray[np.integer], event: Event) -> None:
        self._last += 1
        self._tickets[block_ids] = self._last
        self._pending.append((self._last, event))

    def last(self, block_ids: NDArray[np.integer]) -> Event | None:
        """Whoever has waited for that has waited for all uses of these blocks."""
        while self._pending and self._pending[0][1].query():
            self._pending.popleft()
        if not self._pending:
            return None
        newest = self._tickets[block_ids].max(initial=0)
        return next((event for ticket, event in reversed(self._pending) if ticket <= newest), None)


@dataclass(slots=True)
class _Slot:
    """Device memory that some blocks, or a state, pass through."""

    blocks: torch.Tensor
    free: Event | None = None
    """When what passed through it last has left."""


def _runs(host_ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Where a run of neighbours begins in the list, its first, and how many they are."""
    begin = 0
    for i in range(1, len(host_ids) + 1):
        if i == len(host_ids) or host_ids[i] != host_ids[i - 1] + 1:
            yield begin, host_ids[begin], i - begin
            begin = i


def _on(stream: Stream) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream else nullcontext()


def _wait(stream: Stream, event: Event | None) -> None:
    if stream and isinstance(event, torch.cuda.Event):
        stream.wait_event(event)


class PinnedBytes:
    """Host memory that the GPU copies from and to by itself: pages of our own, for PyTorch's pinned memory comes in
    powers of two. Raises MemoryError with a reason if they cannot be allocated.
    """

    def __init__(self, num_bytes: int, *, is_cuda: bool) -> None:
        free_bytes = available_bytes()
        if num_bytes > free_bytes:  # the kernel would rather end the process than refuse a page
            raise MemoryError(f"{gib(num_bytes)} are wanted, {gib(free_bytes)} are free")
        try:
            pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError) as error:
            raise MemoryError(first_line(error)) from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)  # 512 times fewer pages to pin
        self._at_end: Callable[[], object] | None = None
        self.data = torch.frombuffer(pages, dtype=torch.uint8)
        if is_cuda:
            self.data.zero_()  # all cores together bring the pages quicker than CUDA alone
            _register(self.data)
            self._at_end = weakref.finalize(self, torch.cuda.cudart().cudaHostUnregister, self.data.data_ptr())

    def close(self) -> None:
        """Nothing is copied any more. Pages that are given back while CUDA knows them could never be pinned again."""
        if self._at_end:
            self._at_end()


def _register(data: torch.Tensor) -> None:
    status = torch.cuda.cudart().cudaHostRegister(data.data_ptr(), len(data), 0)
    if int(status) != 0:
        with suppress(RuntimeError):  # CUDA tells every error twice, the second time to whoever asks next
            torch.zeros(1, device="cuda")
        raise MemoryError(f"CUDA pins no {gib(len(data))} (cudaHostRegister: {status})")
