"""Finds the session of a request that names none: a prompt that continues an earlier one is of the same session.

An earlier prompt is remembered by its length, in whole blocks, and a digest. The least recently used is forgotten.
"""

import hashlib
from collections import Counter, OrderedDict

from hotloop.core.request import Request

MAX_LINES = 4096
PREFIX = "\0"  # what the made-up names of sessions begin with, and no header can

_Key = tuple[int, bytes]


class SessionIndex:
    """Names of sessions by the prompts they may go on from."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._names: OrderedDict[_Key, str] = OrderedDict()
        self._num_of_length = Counter[int]()

    def find(self, request: Request) -> str | None:
        """The session that has the longest of the earlier prompts with which this one begins; it is forgotten."""
        found: _Key | None = None
        data = memoryview(request.token_ids)
        digest, begin = hashlib.blake2b(request.salt.encode(), digest_size=16), 0
        for length in sorted(each for each in self._num_of_length if each <= len(data)):
            digest.update(data[begin:length])
            begin = length
            if (length, digest.digest()) in self._names:
                found = length, digest.digest()
        return self._forget(found) if found else None

    def remember(self, request: Request, name: str) -> None:
        """A prompt that may be gone on from, if it is long enough to be told from others."""
        length = request.num_prompt // self._block_size * self._block_size
        if not length:
            return
        digest = hashlib.blake2b(request.salt.encode(), digest_size=16)
        digest.update(memoryview(request.token_ids)[:length])
        key = length, digest.digest()
        if key in self._names:
            self._forget(key)
        self._names[key] = name
        self._num_of_length[length] += 1
        if len(self._names) > MAX_LINES:
            self._forget(next(iter(self._names)))

    def check(self) -> None:
        assert len(self._names) <= MAX_LINES
        assert self._num_of_length == Counter(length for length, _ in self._names)

    def _forget(self, key: _Key) -> str:
        self._num_of_length[key[0]] -= 1
        if not self._num_of_length[key[0]]:
            del self._num_of_length[key[0]]
        return self._names.pop(key)
