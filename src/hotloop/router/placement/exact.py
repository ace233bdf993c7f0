"""What a replica holds for certain, as it publishes it: which prompts, down to the block. Bytes and integers only.

    name  = hash(name of what comes before, tokens of this run)      a run is a block, or as many as make 16 tokens

Engines name blocks by hashes of their own making; these names make replicas of any kind comparable, and a prompt is
hashed once for all that cut it alike. Invariant: a replica counts as holding a run only if it said so and has not taken
it back. What it said before anybody listened is unknown until it says everything again (`complete`).
"""

from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from hotloop.core.structs import compiled

MIN_RUN_TOKENS = 16
"""Some engines have blocks of one token: too many to be looked up one by one."""
MAX_BLOCKS = 1 << 19
"""Of one replica: some 150 MB."""
MAX_PLACES = 8

_TOKEN_BYTES = array("i").itemsize
_NAME_BYTES = 8


@compiled
class _Block(msgspec.Struct, gc=False):
    """A block as its engine knows it: the last whole run up to its end, and the tokens after that run. Not tracked by
    the garbage collector, which would stop the router for as long as it takes to look at all of them."""

    name: bytes
    rest: bytes
    places: tuple[str, ...]
    """Where the engine has it: its own memory, or one that it reads back from."""


_ROOT = _Block(b"", b"", ())


class HeldBlocks:
    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self.clear()

    def clear(self) -> None:
        self.is_complete = False
        self.blocks: dict[Hashable, _Block] = {}
        self._runs: set[bytes] = set()
        self._block_bytes = self._run_bytes = 0

    def complete(self) -> None:
        """What is known is now all that the replica holds, if there was room for it here."""
        self.is_complete = len(self.blocks) < self._max_blocks

    def stored(
        self,
        hashes: Sequence[Hashable],
        token_ids: Sequence[int],
        *,
        block_size: int,
        parent: Hashable | None = None,
        place: str = "",
    ) -> None:
        """The replica has these blocks, one after the other, behind one it had before."""
        if len(token_ids) < len(hashes) * block_size or block_size < 1:  # known blocks, now in another place as well
            for known in filter(None, map(self.blocks.get, hashes)):
                _add_place(known, place)
            return
        above = _ROOT if parent is None else self.blocks.get(parent)
        if above is None or not self._is_cut_alike(block_size):
            return
        data, size = array("i", token_ids).tobytes(), self._block_bytes
        for i, block_hash in enumerate(hashes):
            block = self.blocks.get(block_hash)
            if block is None:
                if len(self.blocks) >= self._max_blocks:
                    self.is_complete = False
                    return
                block = self.blocks[block_hash] = self._follow(above, data[i * size : (i + 1) * size])
            _add_place(block, place)
            above = block

    def removed(self, hashes: Iterable[Hashable], place: str = "") -> None:
        for block_hash in hashes:
            block = self.blocks.get(block_hash)
            if block and place in block.places:
                block.places = tuple(other for other in block.places if other != place)
                if not block.places:
                    del self.blocks[block_hash]
                    if not block.rest:
                        self._runs.discard(block.name)

    def num_matched(self, data: bytes, names_by_size: defaultdict[int, list[bytes]]) -> int:
        """How many leading tokens of a prompt need no prefill: all but the last, at most. `names_by_size` are the names
        of the prompt's runs, as far as anybody has needed them."""
        size, names = self._run_bytes, names_by_size[self._run_bytes]
        num_runs = max(0, len(data) - _TOKEN_BYTES) // size if size else 0
        for i in range(num_runs):
            if i == len(names):
                names.append(_name(names[-1] if names else b"", data[i * size : (i + 1) * size]))
            if names[i] not in self._runs:
                return i * size // _TOKEN_BYTES
        return num_runs * size // _TOKEN_BYTES

    def check(self) -> None:
        assert len(self.blocks) <= self._max_blocks
        assert self._runs <= {block.name for block in self.blocks.values() if not block.rest}
        assert all(block.places and len(block.rest) < self._run_bytes for block in self.blocks.values())

    def _is_cut_alike(self, block_size: int) -> bool:
        """A replica has blocks of one size, the first we hear of; what little comes in others is not remembered."""
        if not self.blocks:
            self._block_bytes = block_size * _TOKEN_BYTES
            self._run_bytes = self._block_bytes * -(-MIN_RUN_TOKENS // block_size)
        return self._block_bytes == block_size * _TOKEN_BYTES

    def _follow(self, above: _Block, tokens: bytes) -> _Block:
        """The block of these tokens behind another; the replica holds the run that it completes, if it does."""
        rest = above.rest + tokens
        if len(rest) < self._run_bytes:
            return _Block(above.name, rest, ())
        run = _name(above.name, rest)
        self._runs.add(run)
        return _Block(run, b"", ())


def match(replicas: Mapping[str, HeldBlocks], token_ids: Sequence[int]) -> dict[str, int]:
    """How many leading tokens of a prompt each replica has cached. One of which not everything is known is left out
    where nothing was found; what is found is all there is, since engines give up the end of a prefix first."""
    data, names_by_size = array("i", token_ids).tobytes(), defaultdict[int, list[bytes]](list)
    found = {name: held.num_matched(data, names_by_size) for name, held in replicas.items()}
    return {name: num_tokens for name, num_tokens in found.items() if num_tokens or replicas[name].is_complete}


def _add_place(block: _Block, place: str) -> None:
    if place not in block.places and len(block.places) < MAX_PLACES:
        block.places = _with(block.places, place)


@lru_cache(maxsize=256)
def _with(places: tuple[str, ...], place: str) -> tuple[str, ...]:
    """One tuple for all blocks that are in the same places."""
    return (*places, place)


def _name(above: bytes, tokens: bytes) -> bytes:
    return blake2b(above + tokens, digest_size=_NAME_BYTES).digest()
