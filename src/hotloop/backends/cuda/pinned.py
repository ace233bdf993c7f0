"""A large piece of host memory that the GPU copies from and to by itself.

PyTorch's own pinned memory comes in powers of two: of 60 GB it would take 64, of 70 it would take 128.
"""

import mmap
import weakref
from contextlib import suppress

import torch

from hotloop.backends.cuda.failure import first_line
from hotloop.models.memory import available_bytes, gib


class PinnedBytes:
    """Pages of our own, made known to CUDA. Raises MemoryError with a reason if they cannot be had."""

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
        self.data = torch.frombuffer(pages, dtype=torch.uint8)
        if is_cuda:
            self.data.zero_()  # all cores together bring the pages quicker than CUDA alone
            _register(self.data)
        self._at_end = weakref.finalize(self, _unregister, self.data.data_ptr()) if is_cuda else None

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


def _unregister(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)
