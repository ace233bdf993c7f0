"""What was used last is kept, up to a total cost. Knows nothing of what it keeps; whoever shares one brings a lock."""

from collections.abc import Hashable
from contextlib import suppress
from operator import itemgetter
from typing import TypeVar

from cachetools import LRUCache

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

_ENTRY_COST = 16  # what an entry costs beside its item, so that empty ones are not free


class LruCache(LRUCache[Key, tuple[Item, int]]):
    """Items by key, each with a cost; the one that was not asked for the longest makes room."""

    def __init__(self, max_cost: int, max_items: int | None = None) -> None:
        super().__init__(max_cost, itemgetter(1))
        self._max_items = max_items

    def find(self, key: Key) -> Item | None:
        try:
            return self[key][0]
        except KeyError:
            return None

    def put(self, key: Key, item: Item, cost: int) -> None:
        """Keep an item, in place of what had its key, unless it costs more than all may."""
        self.pop(key, None)
        with suppress(ValueError):
            self[key] = item, cost + _ENTRY_COST
        if self._max_items and len(self) > self._max_items:
            self.popitem()
