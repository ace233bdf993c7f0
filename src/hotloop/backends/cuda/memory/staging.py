"""Small arrays on their way to the device: pinned, one copy a call, in the order of the stream.

A pinned buffer is used again only when its last copy has been made. Without CUDA the same calls copy at once, so that
everything above can be tested on a CPU.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 16
_NUM_BUFFERS = 8
_FIRST_BYTES = 1 << 20


class _Event:
    """Stands in for a CUDA event where nothing runs behind anybody's back."""

    def record(self) -> None: ...
    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...
    def elapsed_time(self, end: "_Event") -> float:
        return 0.0


Event: TypeAlias = torch.cuda.Event | _Event


class Staging:
    """A ring of pinned buffers that grow as needed."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        self._device = device
        self._buffers = [self._allocate(_FIRST_BYTES) for _ in range(_NUM_BUFFERS)]
        self._copied = [self.event(has_time=False) for _ in range(_NUM_BUFFERS)]
        self._turn = 0

    def event(self, *, has_time: bool = True) -> Event:
        return torch.cuda.Event(enable_timing=has_time) if self.is_cuda else _Event()

    def copy_to(self, target: torch.Tensor, array: NDArray[np.int32]) -> None:
        """Overwrite the beginning of a tensor."""
        host, turn = self._next(array.nbytes)
        host[: array.nbytes].numpy()[:] = array.view(np.uint8)
        target[: len(array)].view(torch.uint8).copy_(host[: array.nbytes], non_blocking=True)
        self._copied[turn].record()

    def upload(self, arrays: Sequence[NDArray[np.generic]]) -> list[torch.Tensor]:
        """These arrays on the device, by one copy."""
        begins = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]).tolist()
        host, turn = self._next(begins[-1])
        for begin, array in zip(begins, arrays, strict=False):
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            host[begin : begin + array.nbytes].numpy()[:] = flat
        device = torch.empty(begins[-1], dtype=torch.uint8, device=self._device)
        device.copy_(host[: begins[-1]], non_blocking=True)
        self._copied[turn].record()
        return [
            device[begin : begin + array.nbytes].view(_torch_dtype(array.dtype)).view(array.shape)
            for begin, array in zip(begins, arrays, strict=False)
        ]

    def _next(self, num_bytes: int) -> tuple[torch.Tensor, int]:
        turn = self._turn = (self._turn + 1) % _NUM_BUFFERS
        self._copied[turn].synchronize()
        if len(self._buffers[turn]) < num_bytes:
            self._buffers[turn] = self._allocate(2 * num_bytes)
        return self._buffers[turn], turn

    def _allocate(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self.is_cuda)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """On the host once the stream gets that far."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)


def _torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
