"""What each replica holds for certain, as it publishes it: which prompts, down to the block. Bytes and integers only.

Engines name blocks by hashes of their own making. Here a block is named by its tokens and all before them, so replicas
of any kind can be compared, and a prompt is hashed once for all that cut it alike:

    name  = hash(name of what comes before, tokens of this run)      a run is a block, or as many as make 16 tokens

Invariant: a replica counts as holding a run only if it said so and has not taken it back. What it said before anybody
listened is unknown until it says everything again (`complete`).
"""

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

MIN_RUN_TOKENS = 16
"""Some engines have blocks of one token: too many to be looked up one by one."""
MAX_BLOCKS = 1 << 20
"""How many blocks of one replica are remembered."""

_TOKEN_BYTES = array("i").itemsize
_NAME_BYTES = 8


@dataclass(slots=True)
class _Block:
    """A block as its engine knows it: the last whole run up to its end, and the tokens after that run."""

    name: bytes
    rest: bytes
    places: tuple[str, ...]
    """Where the engine has it: its own memory, or one that it reads back from."""


_ROOT = _Block(b"", b"", ())


@dataclass(slots=True)
class _Shelf:
    """What one replica holds. `bit` stands for the replica in the sets of holders."""

    bit: int
    is_complete: bool = False
    run_bytes: int = 0
    block_bytes: int = 0
    blocks: dict[Hashable, _Block] = field(default_factory=dict)


class ExactIndex:
    """Who holds which run of tokens."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._shelves: dict[str, _Shelf] = {}
        self._holders: dict[bytes, int] = {}

    def add_replica(self, name: str) -> None:
        """A replica of which nothing is known yet."""
        assert name not in self._shelves
        used = sum(shelf.bit for shelf in self._shelves.values())
        self._shelves[name] = _Shelf(bit=~used & (used + 1))  # the lowest that nobody has

    def remove_replica(self, name: str) -> None:
        self.clear(name)
        del self._shelves[name]

    def clear(self, name: str) -> None:
        """Forget what a replica holds."""
        shelf = self._shelves[name]
        for block in shelf.blocks.values():
            self._let_go(shelf, block)
        self._shelves[name] = _Shelf(shelf.bit)

    def complete(self, name: str) -> None:
        """What is known of a replica is now all that it holds, if there was room for it here."""
        shelf = self._shelves[name]
        shelf.is_complete = len(shelf.blocks) < self._max_blocks

    def stored(
        self,
        name: str,
        hashes: Sequence[Hashable],
        token_ids: Sequence[int],
        *,
        block_size: int,
        parent: Hashable | None = None,
        place: str = "",
    ) -> None:
        """A replica has these blocks, one after the other, behind one it had before."""
        shelf = self._shelves[name]
        if len(token_ids) < len(hashes) * block_size or block_size < 1:  # it is told to be elsewhere as well
            self._note(shelf, hashes, place)
            return
        above = _ROOT if parent is None else shelf.blocks.get(parent)
        if above is None or not self._is_cut_alike(shelf, block_size):
            return
        data, size, places = array("i", token_ids).tobytes(), shelf.block_bytes, (place,)
        for i, block_hash in enumerate(hashes):
            block = shelf.blocks.get(block_hash)
            if block is None:
                if len(shelf.blocks) >= self._max_blocks:
                    shelf.is_complete = False
                    return
                block = self._follow(shelf, above, data[i * size : (i + 1) * size], places)
                shelf.blocks[block_hash] = block
            elif place not in block.places:
                block.places += places
            above = block

    def removed(self, name: str, hashes: Iterable[Hashable], place: str = "") -> None:
        """A replica has these blocks no longer, at that place."""
        shelf = self._shelves[name]
        for block_hash in hashes:
            block = shelf.blocks.get(block_hash)
            if block and place in block.places:
                block.places = tuple(other for other in block.places if other != place)
                if not block.places:
                    self._let_go(shelf, block)
                    del shelf.blocks[block_hash]

    def match(self, token_ids: Sequence[int]) -> dict[str, int]:
        """How many leading tokens of a prompt each replica need not read: all but the last, at most.

        A replica of which not everything is known is left out where nothing was found. What is found is all there is:
        engines give up the end of a prefix before its beginning, so who was seen to store one was seen to extend it.
        """
        data = array("i", token_ids).tobytes()
        found: dict[str, int] = {}
        for run_bytes in {shelf.run_bytes for shelf in self._shelves.values()}:
            found |= self._match(data, run_bytes)
        return {name: found[name] for name, shelf in self._shelves.items() if found[name] or shelf.is_complete}

    def num_blocks(self, name: str) -> int:
        return len(self._shelves[name].blocks)

    def is_complete(self, name: str) -> bool:
        """Whether all that a replica holds is known."""
        return self._shelves[name].is_complete

    def check(self) -> None:
        bits = [shelf.bit for shelf in self._shelves.values()]
        assert sum(bits) == sum(set(bits))
        assert all(bit.bit_count() == 1 for bit in bits)
        assert all(0 < mask <= sum(bits) for mask in self._holders.values())
        for shelf in self._shelves.values():
            assert len(shelf.blocks) <= self._max_blocks
            held = {block.name for block in shelf.blocks.values() if not block.rest}
            assert held >= {name for name, mask in self._holders.items() if mask & shelf.bit}
            assert all(block.places and len(block.rest) < shelf.run_bytes for block in shelf.blocks.values())

    def _match(self, data: bytes, run_bytes: int) -> dict[str, int]:
        """As `match`, for the replicas with runs of that size."""
        shelves = {name: shelf for name, shelf in self._shelves.items() if shelf.run_bytes == run_bytes}
        found = dict.fromkeys(shelves, 0)
        left, run = sum(shelf.bit for shelf in shelves.values()), b""
        num_runs = max(0, len(data) - _TOKEN_BYTES) // run_bytes if run_bytes else 0
        for i in range(num_runs):
            run = _name(run, data[i * run_bytes : (i + 1) * run_bytes])
            still = left & self._holders.get(run, 0)
            if still != left:
                found |= _ending(shelves, left ^ still, i * run_bytes // _TOKEN_BYTES)
                left = still
            if not left:
                return found
        return found | _ending(shelves, left, num_runs * run_bytes // _TOKEN_BYTES)

    def _is_cut_alike(self, shelf: _Shelf, block_size: int) -> bool:
        """A replica has blocks of one size, the first we hear of; what little comes in others is not remembered."""
        if not shelf.blocks:
            shelf.block_bytes = block_size * _TOKEN_BYTES
            shelf.run_bytes = shelf.block_bytes * -(-MIN_RUN_TOKENS // block_size)
        return shelf.block_bytes == block_size * _TOKEN_BYTES

    def _follow(self, shelf: _Shelf, above: _Block, tokens: bytes, places: tuple[str, ...]) -> _Block:
        """The block of these tokens behind another; the replica holds the run that it completes, if it does."""
        rest = above.rest + tokens
        if len(rest) < shelf.run_bytes:
            return _Block(above.name, rest, places)
        run = _name(above.name, rest)
        self._holders[run] = self._holders.get(run, 0) | shelf.bit
        return _Block(run, b"", places)

    def _let_go(self, shelf: _Shelf, block: _Block) -> None:
        if not block.rest and block.name in self._holders:
            self._holders[block.name] &= ~shelf.bit
            if not self._holders[block.name]:
                del self._holders[block.name]

    def _note(self, shelf: _Shelf, hashes: Iterable[Hashable], place: str) -> None:
        for block in filter(None, map(shelf.blocks.get, hashes)):
            if place not in block.places:
                block.places += (place,)


def _name(above: bytes, tokens: bytes) -> bytes:
    return blake2b(above + tokens, digest_size=_NAME_BYTES).digest()


def _ending(shelves: dict[str, _Shelf], mask: int, num_tokens: int) -> dict[str, int]:
    return {name: num_tokens for name, shelf in shelves.items() if shelf.bit & mask}
