"""What was used last is kept, up to a total cost. Knows nothing of what it keeps; whoever shares one brings a lock."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

_ENTRY_COST = 16  # what an entry costs beside its item, so that empty ones are not free


class Shelf(Generic[Key, Item]):
    """Items by key, each with a cost; the one that was not asked for the longest makes room."""

    def __init__(self, max_cost: int, max_items: int | None = None) -> None:
        self.cost = 0
        self._max_cost = max_cost
        self._max_items = max_items
        self._items: OrderedDict[Key, tuple[Item, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Key) -> Item | None:
        entry = self._items.get(key)
        if entry is None:
            return None
        self._items.move_to_end(key)
        return entry[0]

    def put(self, key: Key, item: Item, cost: int) -> None:
        """Keep an item, in place of what had its key."""
        self.drop(key)
        self._items[key] = item, cost + _ENTRY_COST
        self.cost += cost + _ENTRY_COST
        while self.cost > self._max_cost or (self._max_items and len(self._items) > self._max_items):
            self.drop(next(iter(self._items)))

    def drop(self, key: Key) -> None:
        if entry := self._items.pop(key, None):
            self.cost -= entry[1]

    def check(self) -> None:
        assert self.cost == sum(cost for _, cost in self._items.values()) <= self._max_cost
