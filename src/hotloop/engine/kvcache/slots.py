"""Memory beside that of blocks: slots for the states of hybrid models, and for blocks of layers with a sliding window.

Plain integers; see `states` and `windows`. Of layers with a window, blocks go by their names: those in host memory have
negative numbers. Invariants: a slot that is not free is of one block; it is kept if that block is in the tree, and its
users are users of the block.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence

from hotloop.core.request import Request
from hotloop.engine.kvcache.blocks import BlockPool, HostCache
from hotloop.engine.kvcache.node import Checkpoint, TreeNode

OnKeep = Callable[[Request, int, int, Sequence[int]], None]
"""The tree keeps what this request has left at a place, in a slot; and the places that its session has passed so."""


class StateSlots:
    """Recurrent states, on the device and in host memory; the nodes of the tree keep some of them."""

    def __init__(self, num_slots: int = 0, host: HostCache | None = None) -> None:
        self.pool, self.host_pool = BlockPool(num_slots), BlockPool(host.num_states if num_slots and host else 0)
        self.copying: list[int] = []  # slots of the device that copies from host memory use
        self.num_offloaded = 0
        self.on_keep: OnKeep | None = None
        self._host = host

    def emptied(self) -> "StateSlots":
        slots = StateSlots(self.pool.num_blocks, self._host)
        slots.num_offloaded, slots.on_keep = self.num_offloaded, self.on_keep
        return slots

    def pool_of(self, state: Checkpoint) -> BlockPool:
        return self.host_pool if state.is_offloaded else self.pool

    def is_idle(self, state: Checkpoint) -> bool:
        return not self.pool_of(state).num_users[state.slot]

    def keep(self, node: TreeNode, slot: int, now: float) -> None:
        """Have a node keep the state that a request or a copy has left here, in place of one in host memory."""
        self.drop(node)
        self.pool.keep([slot])
        node.state = Checkpoint(slot, now)

    def drop(self, node: TreeNode) -> None:
        if node.state:
            self.pool_of(node.state).drop([node.state.slot])
            node.state = None

    def move_out(self, state: Checkpoint) -> None:
        """To host memory, where a slot is free."""
        host_slots = self.host_pool.allocate(1)
        assert host_slots is not None and self._host is not None
        self._host.offload_state(state.slot, host_slots[0])
        self.num_offloaded += 1
        self.host_pool.keep(host_slots)
        self.host_pool.release(host_slots)
        self.pool.drop([state.slot])
        state.slot, state.is_offloaded = host_slots[0], True

    def bring_back(self, state: Checkpoint, slot: int, now: float) -> None:
        """What is in host memory is in this slot of the device as well: have it there."""
        self.pool.keep([slot])
        self.host_pool.drop([state.slot])
        state.slot, state.is_offloaded, state.used_at = slot, False, now

    def check(self, nodes: Iterable[TreeNode]) -> None:
        """These are all nodes of the tree."""
        for is_offloaded, pool in ((False, self.pool), (True, self.host_pool)):
            slots = [node.state.slot for node in nodes if node.state and node.state.is_offloaded == is_offloaded]
            assert len(slots) == len(set(slots)) == pool.num_kept, "a state is in the tree twice, or lost"
        self.host_pool.check()


class WindowSlots:
    """Without any slots, nothing here does anything."""

    def __init__(self, num_slots: int = 0, size: int = 0, num_blocks: int = 0) -> None:
        self.size = size
        """Tokens that the largest window has."""
        self.pool = BlockPool(num_slots)
        self.slot_of = array("i", [-1]) * num_blocks
        """By the blocks of the device; -1: they have none."""
        self._offloaded: dict[int, int] = {}

    def emptied(self) -> "WindowSlots":
        return WindowSlots(self.pool.num_blocks, self.size, len(self.slot_of))

    def slot(self, name: int) -> int:
        return self.slot_of[name] if name >= 0 else self._offloaded.get(name, -1)

    def allocate(self, block_ids: Sequence[int]) -> bool:
        """A slot for each of these, with a user; or for none."""
        slots = self.pool.allocate(len(block_ids))
        for block_id, slot in zip(block_ids, slots or (), strict=slots is not None):
            assert self.slot_of[block_id] < 0
            self.slot_of[block_id] = slot
        return slots is not None

    def use(self, block_ids: Iterable[int]) -> None:
        self.pool.use(self.slot_of[block_id] for block_id in block_ids)

    def release(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.pool.release([self.slot_of[block_id]])
            self._forget(block_id)

    def keep(self, block_ids: Iterable[int]) -> None:
        """The tree has these blocks from now on."""
        if self.pool.num_blocks:
            self.pool.keep(slot for slot in map(self.slot, block_ids) if slot >= 0)

    def drop(self, names: Iterable[int]) -> None:
        """The tree gives these up, or their slots."""
        if self.pool.num_blocks:
            for name in names:
                if self.slot(name) >= 0:
                    self.pool.drop([self.slot(name)])
                    self._forget(name)

    def drop_idle(self, names: Iterable[int]) -> None:
        users = self.pool.num_users
        self.drop([name for name in names if self.slot(name) >= 0 and not users[self.slot(name)]])

    def move(self, names: Sequence[int], others: Sequence[int]) -> None:
        """The tree has the same in other blocks now. Where these have slots already, those are kept."""
        if self.pool.num_blocks:
            for name, other in zip(names, others, strict=True):
                if self.slot(other) >= 0:
                    self.drop([name])
                    self.keep([other])
                elif self.slot(name) >= 0:
                    self._set(other, self.slot(name))
                    self._set(name, -1)

    def hand_over(self, mine: int, theirs: int) -> None:
        """One who uses the slot of a block is given another, of the tree, that holds the same."""
        if self.slot(theirs) >= 0:
            self.use([theirs])
            self.release([mine])
            return
        self._set(theirs, self.slot(mine))
        self._set(mine, -1)
        self.keep([theirs])

    def check_kept(self, names: Iterable[int]) -> None:
        """These are all blocks of the tree."""
        slots = [slot for slot in map(self.slot, names) if slot >= 0] if self.pool.num_blocks else []
        assert all(self.pool.is_kept[slot] for slot in slots)
        assert len(slots) == self.pool.num_kept

    def check(self, users: Sequence[int]) -> None:
        self.pool.check(dict(enumerate(users)))
        taken = [slot for slot in (*self.slot_of, *self._offloaded.values()) if slot >= 0]
        assert len(taken) == len(set(taken)) == self.pool.num_blocks - self.pool.num_free, "a slot is lost, or shared"

    def _forget(self, name: int) -> None:
        """If nobody has it any more."""
        slot = self.slot(name)
        if not (self.pool.num_users[slot] or self.pool.is_kept[slot]):
            self._set(name, -1)

    def _set(self, name: int, slot: int) -> None:
        if name >= 0:
            self.slot_of[name] = slot
        elif slot < 0:
            self._offloaded.pop(name, None)
        else:
            self._offloaded[name] = slot
