"""KV of layers with a sliding window, which see the last tokens only: which blocks still have it.

A block has one number whatever the layer. Layers with a window have memory of their own, smaller than that of the
others, where a block has a slot, or none any more:

    tokens  [ shared head ............. | prompt ................... | answer ........ ]
    blocks  . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . .
    slots   - - - - - - - - - - - 3 4 5 - - - - - - - - - - - - 7 8 9 - - - - - - 0 1 2      -: dropped

A request uses the slots that its next tokens see. A prefix can be gone on from where the blocks before have slots, a
window of them; whoever has to compute what the tree has without slots leaves his own there. Slots stay as long as
nobody needs them; then those in the middle of edges go first, since sessions go on and prompts part at ends, and ends
by what `Retention` says. They stay here when their block goes to host memory.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hotloop.core.request import Request
from hotloop.core.retention import Eviction
from hotloop.engine.kvcache.full_attention import FullAttentionCache, OffloadedPrefix
from hotloop.engine.kvcache.node import TreeNode, path
from hotloop.engine.kvcache.radix import RadixTree
from hotloop.engine.kvcache.retention import Rank

SPARE = 2  # blocks before a window that an end keeps as well: the next prompt may leave it a little earlier
_VICTIMS = 8  # this share of all slots goes at a time: to look for one is to look at all


@dataclass(slots=True, eq=False)
class _Run:
    """A request, and the blocks whose slots it uses: all from the first on."""

    first: int = 0
    block_ids: list[int] = field(default_factory=list)


class SlidingWindowCache(FullAttentionCache):
    """For models with layers that have a window: gives slots to requests and to the tree."""

    def __init__(self, tree: RadixTree, block_size: int, *, keeps: bool) -> None:
        super().__init__(tree, block_size, keeps=keeps)
        self._slots = tree.windows
        self._lead = -(-tree.windows.size // block_size)  # blocks that a window spans at most, but for one
        self._max_chunk = max(1, (self._slots.pool.num_blocks - self._lead - SPARE) // 2) * block_size
        self._runs: dict[str, _Run] = {}
        self._eviction: Eviction | None = None

    @property
    def slot_of(self) -> "array[int]":
        return self._slots.slot_of

    def peek(self, request: Request) -> list[int]:
        """As far as the last place that can be gone on from."""
        block_ids = super().peek(request)
        return block_ids[: self._num_usable(block_ids)]

    def match(self, request: Request) -> list[int]:
        block_ids = super().match(request)
        return block_ids[: self._num_usable(block_ids)]

    def peek_offloaded(self, request: Request) -> OffloadedPrefix | None:
        offloaded = super().peek_offloaded(request)
        if offloaded is None:
            return None
        num_usable = self._num_usable([*offloaded.known, *(~host_id for host_id in offloaded.host_ids)])
        host_ids = offloaded.host_ids[: max(0, num_usable - len(offloaded.known))]
        return OffloadedPrefix(offloaded.known, host_ids, len(host_ids)) if host_ids else None

    def eviction(self, request: Request) -> Eviction | None:
        num_known = len(super().peek(request)) * self._block_size
        return self._eviction if num_known > request.num_computed else super().eviction(request)

    def has_room(self, num_running: int) -> bool:
        """Whether so many can decode at a time."""
        return num_running == 1 or num_running * (self._lead + SPARE) <= self._slots.pool.num_blocks

    def begin(self, request: Request, waiting: Iterable[Request]) -> bool:
        self._runs[request.id] = _Run()
        return True

    def allocate(self, request: Request, count: int) -> list[int] | None:
        """Blocks with a slot each, or none at all."""
        block_ids = super().allocate(request, count)
        if not block_ids:
            return block_ids
        num_uncomputed = count - self._slots.pool.num_free
        if num_uncomputed > 0:
            self._evict(num_uncomputed, request.id)
        if not self._slots.allocate(block_ids):
            self.tree.pool.release(block_ids)
            return None
        self._runs[request.id].block_ids += block_ids
        return block_ids

    def resume(self, request: Request) -> None:
        """A request has the tree's blocks: it uses the slots of the last."""
        run = self._runs[request.id]
        first = self._first(request.num_computed)
        block_ids = request.block_ids[first:].tolist()
        self._slots.use(block_ids)
        self._slots.release(run.block_ids)
        run.first, run.block_ids = first, block_ids

    def settle(self, request: Request) -> None:
        """More of it is computed, and in the tree: what its next tokens do not see it uses no longer."""
        run = self._runs[request.id]
        for i, (mine, now) in enumerate(zip(run.block_ids, request.block_ids[run.first :], strict=True)):
            if mine != now:
                self._slots.hand_over(mine, now)
                run.block_ids[i] = now
        first = max(run.first, self._first(request.num_settled))
        self._slots.release(run.block_ids[: first - run.first])
        del run.block_ids[: first - run.first]
        run.first = first

    def end(self, request: Request, *, is_valid: bool = True) -> None:
        run = self._runs.pop(request.id, None)
        if run:
            self._slots.release(run.block_ids)

    def cut(self, request: Request, count: int) -> int:
        """So many of the next tokens, or fewer, up to the end of a block: two chunks in flight have slots."""
        if count <= self._max_chunk:
            return count
        return self._max_chunk - request.num_computed % self._block_size

    def check(self, running: Iterable[Request]) -> None:
        requests = {request.id: request for request in running}
        assert self._runs.keys() == requests.keys()
        users = [0] * self._slots.pool.num_blocks
        for name, run in self._runs.items():
            assert run.block_ids == requests[name].block_ids[run.first :].tolist()
            for block_id in run.block_ids:
                users[self._slots.slot(block_id)] += 1
        self._slots.check(users)

    def _first(self, position: int) -> int:
        """The first block that the token there sees."""
        return max(0, position - self._slots.size + 1) // self._block_size

    def _num_usable(self, names: Sequence[int]) -> int:
        """The most of these blocks, from the first on, that the next token after them can do with."""
        num_usable = len(names)
        for i in range(len(names) - 1, -1, -1):
            if i < self._first(num_usable * self._block_size):
                break
            if self._slots.slot(names[i]) < 0:
                num_usable = i
        return num_usable

    def _evict(self, num_wanted: int, beneficiary: str) -> None:
        """Drop at least so many, if so many are idle."""
        num_free = self._slots.pool.num_free + max(num_wanted, self._slots.pool.num_blocks // _VICTIMS)
        kept, nodes = self._lead + SPARE, [*self.tree.nodes()]
        self._eviction = Eviction(self.tree.retention.now, beneficiary)
        for node in sorted(nodes, key=lambda node: node.last_used):
            if self._slots.pool.num_free >= num_free:
                return
            self._slots.drop_idle(node.names[:-kept])
        for node in sorted(nodes, key=self._worth):
            if self._slots.pool.num_free >= num_free:
                return
            self._slots.drop_idle(node.names)

    def _worth(self, node: TreeNode) -> Rank:
        """Of the end of a node, and of what is so short behind it that it needs this one's slots as well."""
        depth = sum(len(above.block_ids) for above in path(node)) * self._block_size
        own = self.tree.retention.rank(node.hold, node.used_at, node.last_used, depth)
        short = (child for child in node.children.values() if len(child.block_ids) < self._lead)
        return max([own, *map(self._worth, short)])
