"""What changes in the prefix tree, for subscribers outside. Integers and bytes only.

A block is named by its number in the pool, as long as the tree keeps it; block n of host memory by -1 - n.
"""

from collections.abc import Sequence
from typing import NamedTuple


class KeptBlocks(NamedTuple):
    """The tree keeps these blocks, one after the other, behind `parent_id`; `key` is the raw bytes of their tokens."""

    parent_id: int | None
    key: bytes
    block_ids: Sequence[int]


class Evicted(NamedTuple):
    """The tree keeps these blocks no longer."""

    block_ids: Sequence[int]


class Moved(NamedTuple):
    """The tree keeps what was in these blocks, in these others: it went to host memory, or came back."""

    block_ids: Sequence[int]
    new_ids: Sequence[int]


class Emptied(NamedTuple):
    """The tree keeps nothing."""


Change = KeptBlocks | Evicted | Moved | Emptied
