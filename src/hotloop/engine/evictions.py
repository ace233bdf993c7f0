"""When prefixes were given up and for whom, as long as that is remembered: so that a miss can be explained."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

from hotloop.core.retention import Eviction
from hotloop.engine.node import TreeNode, path

MAX_EVICTIONS = 4096


class Evictions:
    """By the prefix that ends with the first block given up: the raw bytes of its tokens, in parts, and its salt."""

    def __init__(self) -> None:
        self._evictions: OrderedDict[bytes, Eviction] = OrderedDict()

    def find(self, salt: bytes, parts: Iterable[bytes]) -> Eviction | None:
        return self._evictions.get(_digest(salt, parts))

    def remember(self, leaf: TreeNode, end: int, eviction: Eviction) -> None:
        """What the first `end` bytes of a leaf's key end with was given up."""
        top, *nodes = reversed([*path(leaf)])
        assert top.parent is not None
        keys = [node.key for node in (top, *nodes)]
        self._evictions[_digest(top.parent.key, [*keys[:-1], leaf.key[:end]])] = eviction
        if len(self._evictions) > MAX_EVICTIONS:
            self._evictions.popitem(last=False)


def _digest(salt: bytes, parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(salt, digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()
