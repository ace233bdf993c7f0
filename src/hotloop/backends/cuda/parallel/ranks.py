"""One model on several cards: the ranks that compute every step together, each with its heads and its part of the MLP.

    rank 0   | qkv | attend | o    +  | gate up | down    +  | ... | head  <- | choose
    rank 1   | qkv | attend | o    +  | gate up | down    +  | ... | head  -> |
                               sum                    sum          columns

Rank 0 is the process that has the engine; it alone sees logits and chooses tokens. Whatever is exchanged is in the
order of the stream, and a sum is captured in a CUDA graph like any kernel. A rank alone exchanges nothing.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group

from hotloop.core.errors import ConfigError
from hotloop.models.layout import share_begin

Transport = Literal["nccl", "gloo"]
"""`nccl` between cards; `gloo` through the host's memory, where there are none or they are not enough."""

TIMEOUT_S = 300.0
"""After which a rank that waits for another ends. Rank 0 waits twice as long, so that it hears of it instead."""


class Group:
    """A rank alone."""

    rank = 0
    size = 1

    def all_reduce(self, share: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place."""
        return share

    def gather_columns(self, share: torch.Tensor, num_columns: int) -> torch.Tensor:
        """On rank 0 the columns of all ranks [rows, num_columns]; the others have given theirs away."""
        return share

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Overwrite it by rank 0's, on every rank."""

    def gather(self, share: torch.Tensor) -> torch.Tensor:
        """On rank 0 the shares of all ranks, [items, ranks, ...] of [items, ...]."""
        return share

    def scatter(self, shares: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """This rank's share, of this shape, of what `gather` gave; `shares` has all of it on rank 0, else nothing."""
        return shares

    def close(self) -> None:
        """Leave the others."""


ALONE = Group()


class SharedGroup(Group):
    """One of several ranks. All of them call the same methods in the same order."""

    def __init__(self, rank: int, size: int, device: torch.device, transport: Transport, store: dist.Store) -> None:
        if dist.is_initialized():
            raise ConfigError("this process is in a group of torch.distributed already: it cannot join another")
        self.rank, self.size = rank, size
        self._transport = transport
        dist.init_process_group(
            transport,
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=TIMEOUT_S * (1 if rank else 2)),
            device_id=device if transport == "nccl" else None,
        )

    def all_reduce(self, share: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(share)
        return share

    def gather_columns(self, share: torch.Tensor, num_columns: int) -> torch.Tensor:
        if not len(share):
            return share.new_empty((0, num_columns))
        parts = self._gather(share)
        if self.rank:
            return share
        joined = share.new_empty((len(share), num_columns))
        width = share.shape[1]
        for rank, part in enumerate(parts):
            begin = share_begin(num_columns, width, rank)
            joined[:, begin : begin + width] = part
        return joined

    def broadcast(self, tensor: torch.Tensor) -> None:
        dist.broadcast(tensor, src=0)

    def gather(self, share: torch.Tensor) -> torch.Tensor:
        parts = self._gather(share)
        return share if self.rank else torch.stack(parts, dim=1)

    def scatter(self, shares: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        share, parts = shares.new_empty(shape), None
        if self.rank == 0:
            parts = [part.contiguous() for part in shares.view(shape[0], self.size, *shape[1:]).unbind(1)]
        dist.scatter(share, parts, src=0)
        return share

    def abort(self) -> None:
        """Have nobody wait for a rank that is gone. On any thread."""
        if self._transport == "nccl" and dist.is_initialized():  # gloo finds out by itself
            _abort_process_group()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def _gather(self, share: torch.Tensor) -> list[torch.Tensor]:
        """On rank 0 what each rank has, on the others nothing."""
        parts = [] if self.rank else [torch.empty_like(share) for _ in range(self.size)]
        dist.gather(share.contiguous(), parts or None, dst=0)
        return parts
