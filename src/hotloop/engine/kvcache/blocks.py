"""The pool of KV blocks: who uses which, counted. Plain integers; the memory itself belongs to the backend.

A block has users (the requests that compute with it) and may be kept (by the prefix tree, for later requests).
Invariant: it is free exactly when it has no user and is not kept; idle, and then it may be given up, when it is kept
and has no user.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Protocol

from hotloop.core.request import Request


class BlockPool:
    """Hands out block ids and counts their users."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_idle = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self.num_users = [0] * num_blocks
        self.is_kept = [False] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - self.num_idle

    @property
    def num_kept(self) -> int:
        return sum(self.is_kept)

    def allocate(self, count: int) -> list[int] | None:
        """That many blocks, with one user each; None if there are not enough."""
        if count > len(self._free):
            return None
        if count == 0:
            return []
        block_ids = self._free[-count:]
        del self._free[-count:]
        for block_id in block_ids:
            self.num_users[block_id] = 1
        return block_ids

    def use(self, block_ids: Iterable[int]) -> None:
        """One more user for blocks that are kept or used already."""
        users = self.num_users
        for block_id in block_ids:
            if users[block_id] == 0:
                assert self.is_kept[block_id], "a free block cannot be shared"
                self.num_idle -= 1
            users[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        users = self.num_users
        for block_id in block_ids:
            assert users[block_id] > 0, "a block without users cannot be released"
            users[block_id] -= 1
            if users[block_id] == 0:
                if self.is_kept[block_id]:
                    self.num_idle += 1
                else:
                    self._free.append(block_id)

    def keep(self, block_ids: Iterable[int]) -> None:
        """Keep blocks beyond their users."""
        for block_id in block_ids:
            assert self.num_users[block_id] > 0 and not self.is_kept[block_id], "only a used block, and only once"
            self.is_kept[block_id] = True

    def drop(self, block_ids: Iterable[int]) -> None:
        """Keep blocks no longer; those without users are free at once."""
        for block_id in block_ids:
            assert self.is_kept[block_id]
            self.is_kept[block_id] = False
            if self.num_users[block_id] == 0:
                self.num_idle -= 1
                self._free.append(block_id)

    def check(self, users: Mapping[int, int] | None = None) -> None:
        """All that is counted agrees; and with how many users each block has, if that is known."""
        used = {*compress(range(self.num_blocks), self.num_users)}
        kept = {*compress(range(self.num_blocks), self.is_kept)}
        free = {*self._free}
        assert min(self.num_users, default=0) >= 0
        if users is not None:
            expected = {block_id: num for block_id, num in users.items() if num}
            assert expected == {block_id: self.num_users[block_id] for block_id in used}
        assert len(self._free) == len(free), "a block is free twice"
        assert free == {*range(self.num_blocks)} - used - kept, "a block is free and not free, or lost"
        assert len(kept - used) == self.num_idle


class HostCache(Protocol):
    """Where blocks and states go that leave the device, as far as integers tell; see `HostMemory`."""

    num_blocks: int
    num_states: int

    def offload(self, block_ids: Sequence[int], host_ids: Sequence[int]) -> None: ...
    def offload_state(self, slot: int, host_slot: int) -> None: ...


class Fetcher(Protocol):
    """Brings blocks back from host memory; see `HostTier`."""

    def is_coming(self, request: Request) -> bool: ...
    def fetch(self, request: Request) -> bool: ...
