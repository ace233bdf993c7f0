"""The blocks of requests: what they find in the tree and begin with, what they add to it, and what they give back.

This is for models whose KV is all they carry from token to token.
`StateCache` and `SlidingWindowCache` do the same for models that need more than this to continue a prefix.
"""

from array import array
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from hotloop.core.request import Request
from hotloop.core.retention import Eviction
from hotloop.engine.kvcache.node import Checkpoint
from hotloop.engine.kvcache.radix import RadixTree
from hotloop.engine.step import Slice


class StateStats(NamedTuple):
    """The slots of a hybrid model, those that requests use, those kept only for later ones, and states elsewhere."""

    num_slots: int = 0
    num_used: int = 0
    num_cached: int = 0
    num_offloaded: int = 0
    num_evicted: int = 0


class OffloadedPrefix(NamedTuple):
    """What a copy from host memory adds to what a request finds: blocks, for hybrids also the state at their end."""

    known: list[int]  # blocks of the device that come before
    host_ids: list[int]
    num_gained: int  # how many blocks more it goes on from
    state: Checkpoint | None = None  # in either memory


class FullAttentionCache:
    """For models whose KV is all they carry from token to token: any prefix the tree knows can be gone on from."""

    num_evicted = 0

    def __init__(self, tree: RadixTree, block_size: int, *, keeps: bool) -> None:
        self.tree = tree
        self._block_size = block_size
        self._keeps = keeps  # whether anything is kept for later requests

    @property
    def slot_of(self) -> "array[int] | None":
        """Where layers with a window have each block, if not where all layers have it; see `SlidingWindowCache`."""
        return None

    def stats(self) -> StateStats:
        pool, host_pool = self.tree.states.pool, self.tree.states.host_pool
        num_offloaded = host_pool.num_blocks - host_pool.num_free
        return StateStats(pool.num_blocks, pool.num_used, pool.num_idle, num_offloaded, self.num_evicted)

    def arrive(self, request: Request) -> None: ...
    def resume(self, request: Request) -> None: ...
    def assign(self, slices: Iterable[Slice]) -> None: ...
    def launch(self, slices: Iterable[Slice]) -> None: ...
    def settle(self, request: Request) -> None: ...
    def end(self, request: Request, *, is_valid: bool = True) -> None: ...
    def check(self, running: Iterable[Request]) -> None: ...

    def peek(self, request: Request) -> list[int]:
        """The blocks the tree has for one who waits; the last token is always left to compute, for its logits."""
        return self.tree.peek(request.token_ids[: request.num_tokens - 1], request.salt)

    def match(self, request: Request) -> list[int]:
        """As `peek`, and they count as used."""
        return self.tree.match(request.token_ids[: request.num_tokens - 1], request.salt, request.session)

    def peek_offloaded(self, request: Request) -> OffloadedPrefix | None:
        """What host memory has of it behind those blocks."""
        host_pool, token_ids = self.tree.host_pool, request.token_ids[: request.num_tokens - 1]
        if host_pool.num_free == host_pool.num_blocks:
            return None
        known, host_ids = (self.tree.peek(token_ids, request.salt, is_offloaded=each) for each in (False, True))
        return OffloadedPrefix(known, host_ids, len(host_ids)) if host_ids else None

    def num_reachable(self, request: Request) -> int:
        """How many of its blocks need not be computed, wherever they are."""
        offloaded = self.peek_offloaded(request)
        return len(self.peek(request)) + (offloaded.num_gained if offloaded else 0)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def num_new_blocks(self, request: Request, end: int) -> int:
        """How many blocks a request needs beyond its own for so many tokens."""
        return max(0, self.num_blocks_for(end) - len(request.block_ids))

    def known_blocks(self, request: Request) -> list[int]:
        """What the tree has of a request's tokens that can be gone on from."""
        if not self._keeps or request.num_computed % self._block_size:
            return []
        return self.match(request)

    def adopt(self, request: Request) -> None:
        """Use blocks of the tree beyond what this request has computed."""
        num_own = request.num_computed // self._block_size
        adopted = self.known_blocks(request)[num_own:]
        if not adopted:
            return
        self.tree.pool.release(request.block_ids[num_own:])  # of drafts that came to nothing
        del request.block_ids[num_own:]
        self.tree.pool.use(adopted)
        request.block_ids.extend(adopted)
        request.num_computed = request.num_settled = len(request.block_ids) * self._block_size
        if not request.num_preemptions:  # of the prompt, that is: what is forced after it may be known as well
            request.num_cached = min(request.num_cached + len(adopted) * self._block_size, request.num_prompt)
        self.resume(request)

    def next_block(self, request: Request) -> bytes:
        """The block this request needs next, with all before it; nothing if others could not use it."""
        if not self._keeps or request.num_computed % self._block_size:
            return b""
        return request.salt.encode() + request.token_ids[: request.num_computed + self._block_size].tobytes()

    def share(self, request: Request) -> None:
        """Add the blocks that a request has settled to the tree."""
        if self._keeps:
            num_full = request.num_settled // self._block_size * self._block_size
            self.tree.share(request.token_ids[:num_full], request.block_ids, request.salt, request.session)

    def release(self, request: Request, *, is_valid: bool = True) -> None:
        """A request is over, or gives way; what of it is in the tree stays there, idle."""
        self.end(request, is_valid=is_valid)
        self.tree.pool.release(request.block_ids)
        request.block_ids = array("i")
        request.num_computed = request.num_settled = 0

    def eviction(self, request: Request) -> Eviction | None:
        """If and when what a request has to compute next was given up."""
        return self.tree.eviction(request.token_ids, request.num_computed, request.salt)

    def has_room(self, num_running: int) -> bool:
        return True

    def begin(self, request: Request, waiting: Iterable[Request]) -> bool:
        return True

    def allocate(self, request: Request, count: int) -> list[int] | None:
        """New blocks for a request; None if there are too few."""
        return self.tree.allocate(count, request.id)

    def is_coming(self, request: Request, prefix: bytes, computed: Iterable[Container[bytes]]) -> bool:
        """Whether a request's next block, with all before it, is computed in this step or one in flight."""
        return any(prefix in prefixes for prefixes in computed)

    def begin_copy(self, request: Request, state: Checkpoint) -> int | None:
        """Use a state, and find it a slot of the device; None if there is none."""
        return None

    def end_copy(self, state: Checkpoint, slot: int, *, is_there: bool) -> None: ...

    def put(self, request: Request, place: int, write: Callable[[int], None]) -> bool:
        """Have the tree keep the state after a request's first so many tokens, once it is written into a slot."""
        return False

    def cut(self, request: Request, count: int) -> int:
        return count

    def branch(self, part: Slice) -> bool:
        """Whether a slice may have drafts: what comes of them can be taken back."""
        return True

    def accept(self, part: Slice) -> bool:
        """Whether what a slice computed goes on from its last draft that was right."""
        return True
