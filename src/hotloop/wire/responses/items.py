"""Items that answers have put out, by their ids, for an input that only names them.

    {"type": "item_reference", "id": "fc_..."}            any item; the type may be left out
    {"type": "reasoning", "id": "rs_...", "summary": []}  a thought without its text, as some clients return it

An item is found by its owner, and by an admin. Bounded in bytes and in number: the one not asked for longest
goes first. For any thread.
"""

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

import msgspec

from hotloop.core.errors import RequestError
from hotloop.core.lru import LruCache
from hotloop.wire.field import Field, Json

MayRead = Callable[[str], bool]
"""Whether a client may read what this owner's answers put out."""

MAX_ITEMS = 1 << 16
MAX_BYTES = 64 << 20


class UnknownItem(RequestError):
    """An item that was never put out here, was not stored, or is of others."""


class ItemStore:
    def __init__(self, max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES) -> None:
        self._items: LruCache[str, tuple[str, Json]] = LruCache(max_bytes, max_items)
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._items)

    def keep(self, items: Iterable[Json], owner: str) -> None:
        """Whoever had an id first keeps it: the ids of some engines' answers are their clients' to choose."""
        for item in items:
            cost = 200 + len(msgspec.json.encode(item))
            with self._lock:
                if (self._items.find(item["id"]) or (owner,))[0] == owner:
                    self._items.put(item["id"], (owner, item), cost)

    def drop(self, items: Iterable[Json]) -> None:
        with self._lock:
            for item in items:
                self._items.pop(item["id"], None)

    def resolve(self, body: Json, may_read: MayRead) -> Json:
        """The body with the items that its input names. Raises UnknownItem for one that cannot be done without."""
        given = body.get("input")
        if not isinstance(given, list) or not any(map(_is_named, given)):
            return body
        items = Field({"input": given}).need("input").each()
        return {**body, "input": [self._resolve(item, may_read) for item in items]}

    def _resolve(self, item: Field, may_read: MayRead) -> Any:
        if not _is_named(item.value):
            return item.value
        name = item.need("id").text()
        with self._lock:
            owner, found = self._items.find(name) or ("", None)
        found = found if may_read(owner) else None
        if not found and item.value.get("type") != "reasoning":
            why = "Items are not persisted when `store` is set to false, and the oldest make room for others"
            fix = "remove it from your input, or send the item itself"
            raise UnknownItem(f"Item with id {item.value['id']!r:.100} not found. {why}: {fix}.", param=item.place)
        return found or item.value


def _is_named(item: Any) -> bool:
    """Whether there is no more of an item than its id."""
    if not isinstance(item, dict):
        return False
    match item.get("type"):
        case "item_reference":
            return True
        case "reasoning":
            return item.get("id") is not None and not item.get("content")
        case None:
            return "id" in item and item.keys().isdisjoint(("role", "content"))
    return False
