"""The prefix tree: which token sequences have their KV in which blocks. Integers and bytes only.

    root ──[sys sys sys sys]── node ──[user a]── leaf
                                 └────[user b]── leaf ══[in host memory]══ leaf

An edge carries whole blocks, as the raw bytes of their token ids, of one session or of several. Invariants: siblings
differ in their first block; what the tree keeps is computed; a request that uses a block uses all before it, so a leaf
can be given up from its end as far as its blocks are idle (`Retention` says which first). Prefixes under different
salts share nothing. What the device has no room for goes to host memory, if something there is worth less: an edge is
in one memory or the other, and what is below an edge in host memory is there too.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from hotloop.core.retention import Eviction, Hold, HoldKind
from hotloop.engine.kvcache.blocks import BlockPool, HostCache
from hotloop.engine.kvcache.changes import Change, Emptied, Evicted, KeptBlocks, Moved
from hotloop.engine.kvcache.eviction import EvictionOrder, Evictions
from hotloop.engine.kvcache.node import TreeNode, check_node, join, num_common, split, subtree, trace
from hotloop.engine.kvcache.retention import Rank, Retention
from hotloop.engine.kvcache.slots import StateSlots, WindowSlots

_TOKEN_BYTES = array("i").itemsize
_MIN_MOVED = 32  # blocks: a copy to host memory of few costs as much as one of some more


class RadixTree:
    """Prefixes shared by all requests. It keeps blocks in the pool beside their users and takes none from them."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        retention: Retention | None = None,
        changes: list[Change] | None = None,
        host: HostCache | None = None,
        states: StateSlots | None = None,
        windows: WindowSlots | None = None,
    ) -> None:
        self.pool = pool
        self.windows = windows or WindowSlots()
        self.states = states or StateSlots()  # of hybrid models
        self.host_pool = BlockPool(host.num_blocks if host else 0)
        self._host = host
        self._changes = changes
        self._block_size = block_size
        self._block_bytes = block_size * _TOKEN_BYTES
        self._roots: dict[str, TreeNode] = {}
        self._clock = 0
        self.evictions = Evictions()
        self.retention = retention or Retention(0)
        self.order = EvictionOrder(self.retention, block_size, has_states=bool(self.states.pool.num_blocks))
        self.num_owned = Counter[str | None]()  # blocks of the device by session; None: several have used them
        self.num_evicted = 0  # blocks that were given up for room, wherever they were
        self.num_offloaded = 0

    def emptied(self) -> "RadixTree":
        """A tree and pools like these, as they were in the beginning; what was counted goes on."""
        pool = BlockPool(self.pool.num_blocks)
        slots = self.states.emptied(), self.windows.emptied()
        tree = RadixTree(pool, self._block_size, self.retention, self._changes, self._host, *slots)
        tree.num_evicted, tree.num_offloaded = self.num_evicted, self.num_offloaded
        if self._changes is not None:
            self._changes.append(Emptied())
        return tree

    def match(self, token_ids: "array[int]", salt: str = "", session: str | None = None) -> list[int]:
        """The device's blocks of the longest known prefix; the caller uses them before anything else happens."""
        found: list[int] = []
        for node in self.walk(token_ids.tobytes(), salt, session):
            if not node.is_offloaded:
                found += node.block_ids
        return found

    def peek(self, token_ids: "array[int]", salt: str = "", *, is_offloaded: bool = False) -> list[int]:
        """As `match`, but nothing counts as used; or the blocks in host memory with which that prefix goes on."""
        nodes = [(node, num) for node, num in self.trace(token_ids, salt) if node.is_offloaded == is_offloaded]
        return [block_id for node, num in nodes for block_id in node.block_ids[:num]]

    def trace(self, token_ids: "array[int]", salt: str = "") -> Iterator[tuple[TreeNode, int]]:
        """Each node along the tokens, and how many of its blocks they have; nothing is marked or split."""
        return trace(self._roots.get(salt), token_ids.tobytes(), self._block_bytes)

    def has_held_prefix(self, token_ids: "array[int]", salt: str = "") -> bool:
        """Whether this prefix goes on where one that is held through a tool gap ends."""
        nodes = (node for node, num_common in self.trace(token_ids, salt) if num_common == len(node.block_ids))
        return any(self.retention.kind(node.hold) is HoldKind.TOOL_GAP for node in nodes)

    def hold(self, token_ids: "array[int]", hold: Hold, salt: str = "") -> None:
        """Tell when the known part of this prefix is wanted again."""
        if self.retention.is_on and (nodes := [*self.walk(token_ids.tobytes(), salt)]):
            self.order.hold(nodes[-1], hold)

    def eviction(self, token_ids: "array[int]", num_known: int, salt: str = "") -> Eviction | None:
        """If and when the block after the first `num_known` tokens was given up, as far as is remembered."""
        end = num_known + self._block_size
        return self.evictions.find(salt.encode(), [token_ids[:end].tobytes()]) if len(token_ids) >= end else None

    def insert(self, token_ids: "array[int]", block_ids: list[int], salt: str = "", session: str = "") -> list[int]:
        """Remember that these whole blocks hold these tokens; returns the blocks the tree now has for them: its own
        where it knew them already, so that the caller's are superfluous. New ones replace those in host memory.
        """
        assert len(token_ids) * _TOKEN_BYTES == len(block_ids) * self._block_bytes
        key = token_ids.tobytes()
        known: list[int] = []
        node = self._roots.get(salt)
        for node in self.walk(key, salt, session):
            if node.is_offloaded:
                self._bring_back(node, block_ids[len(known) : len(known) + len(node.block_ids)])
            known += node.block_ids
        new_ids = block_ids[len(known) :]
        if new_ids:
            node = node or self._roots.setdefault(salt, TreeNode(None, salt.encode(), [], 0))
            new_key = key[len(known) * self._block_bytes :]
            if self._changes is not None and not salt:
                self._changes.append(KeptBlocks(node.last_name, new_key, new_ids))
            self._append(node, new_key, new_ids, session)
        return known + new_ids

    def share(self, token_ids: "array[int]", block_ids: "array[int]", salt: str = "", session: str = "") -> None:
        """Insert the blocks a user has of these tokens; where the tree had them already, it uses those instead."""
        own = block_ids[: len(token_ids) // self._block_size].tolist()
        shared = self.insert(token_ids, own, salt, session)
        if shared == own:
            return
        for i, (mine, theirs) in enumerate(zip(own, shared, strict=True)):
            if mine != theirs:
                self.pool.use([theirs])
                self.pool.release([mine])
                block_ids[i] = theirs

    def forget(self, token_ids: "array[int]", salt: str = "") -> None:
        """Give up whatever builds on the first block along these tokens that no request uses: all of it is idle."""
        for node in self.walk(token_ids.tobytes(), salt):
            num_used = len(node.block_ids) - self.num_idle(node)
            if num_used < len(node.block_ids):
                if num_used:
                    split(node, num_used, self._block_bytes)
                self._cut(node)
                return

    def release(self, session: str) -> None:
        """Free what only this session has, but for what a request uses or a client has pinned."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            if node.session == session and self._is_free_to_go(node):
                self._cut(node)
            elif node.session in (session, None):  # below what is another's alone all is that one's
                stack.extend(node.children.values())

    def allocate(
        self, count: int, beneficiary: str = "", *, most: Rank | None = None, num_spare: int = 0
    ) -> list[int] | None:
        """New blocks of the device, with a user each; if too few are free, so many and `num_spare` more are evicted."""
        if count > self.pool.num_free:
            self.evict(count - self.pool.num_free + num_spare, beneficiary, most)
        return self.pool.allocate(count)

    def evict(self, num_wanted: int, beneficiary: str = "", most: Rank | None = None) -> int:
        """Free at least that many blocks of the device, those least worth keeping first and none worth more than
        `most`; what they hold goes to host memory if it is worth that. Returns how many could be freed.
        """
        rest: list[TreeNode] = []
        self.order.expire()
        num_left = num_wanted = max(num_wanted, min(_MIN_MOVED, self.host_pool.num_blocks // 64))
        while num_left and (node := self.order.pop(most)):
            num_left -= self._evict_tail(node, num_left, beneficiary)
            rest.append(node)
        for node in rest:
            self.order.push(node)
        return num_wanted - num_left

    def kept(self) -> Iterator[KeptBlocks]:
        """All that is kept without a salt, each edge after the one above it."""
        root = self._roots.get("")
        for node in subtree(root) if root else ():
            if node.parent:
                yield KeptBlocks(node.parent.last_name, node.key, node.names)

    def check(self) -> None:
        nodes = [*self.nodes()]
        for node in nodes:
            check_node(node, self._block_bytes)
            assert all(self._pool_of(node).is_kept[block_id] for block_id in node.block_ids)
            self._check_users(node)
        names = [name for node in nodes for name in node.names]
        assert len(names) == len(set(names)), "a block is in the tree twice"
        self.windows.check_kept(names)
        assert sum(name >= 0 for name in names) == self.pool.num_kept
        assert sum(name < 0 for name in names) == self.host_pool.num_kept
        assert self.num_owned == Counter(node.session for node in nodes for name in node.names if name >= 0)
        self.order.check(nodes)
        self.states.check(nodes)
        assert all(root.children for root in self._roots.values())

    def walk(self, key: bytes, salt: str, session: str | None = None) -> Iterator[TreeNode]:
        """Each node along the key, marked as used now; an edge the key leaves midway is split, and its rest ages on."""
        root = self._roots.get(salt)
        if root is None:
            return
        self._clock += 1
        size = self._block_bytes
        node, begin = root, 0
        while child := node.children.get(key[begin : begin + size]):
            if not key.startswith(child.key, begin):
                child = split(child, num_common(child.key, key, begin, size), size)
            child.last_used, child.used_at = self._clock, self.retention.now
            if session is not None and session != child.session:
                self._own(child, -len(child.block_ids))
                child.session = None
                self._own(child, len(child.block_ids))
            if child.hold:
                self.order.set_hold(child, self.retention.after_use(child.hold))
            self.order.push(child)
            yield child
            node, begin = child, begin + len(child.key)

    def _pool_of(self, node: TreeNode) -> BlockPool:
        return self.host_pool if node.is_offloaded else self.pool

    def _check_users(self, node: TreeNode) -> None:
        """Who uses a block uses all before it in the same memory."""
        above = node.parent.block_ids[-1:] if node.parent and node.parent.is_offloaded == node.is_offloaded else []
        is_used = [self._pool_of(node).num_users[block_id] > 0 for block_id in above + node.block_ids]
        assert is_used == sorted(is_used, reverse=True), "an idle block comes before one that is in use"

    def num_idle(self, node: TreeNode) -> int:
        """Who uses a block uses all before it, so the idle ones are the last. None are idle before what is being copied
        from host memory, though it may be others who have brought those back since the copy began.
        """
        if any(self._pool_of(child).num_users[child.block_ids[0]] for child in node.children.values()):
            return 0
        num_users = self._pool_of(node).num_users
        return len(node.block_ids) - bisect_left(node.block_ids, True, key=lambda block_id: not num_users[block_id])

    def _is_free_to_go(self, top: TreeNode) -> bool:
        held = (node.hold for node in subtree(top) if node.hold)
        is_pinned = any(self.retention.kind(hold) is HoldKind.PINNED for hold in held)
        return not is_pinned and self.num_idle(top) == len(top.block_ids)

    def _append(self, parent: TreeNode, key: bytes, block_ids: list[int], session: str) -> None:
        """New blocks after `parent`, whose edge grows if it is a leaf of the same session with nothing at its end."""
        self.pool.keep(block_ids)
        self.windows.keep(block_ids)
        if parent.parent and parent.session == session and not (parent.children or parent.hold or parent.state):
            parent.key += key
            parent.block_ids += block_ids
            self._own(parent, len(block_ids))
            return
        leaf = TreeNode(parent, key, list(block_ids), self._clock, self.retention.now, session)
        parent.children[key[: self._block_bytes]] = leaf
        self._own(leaf, len(block_ids))
        self.order.push(leaf)

    def _evict_tail(self, leaf: TreeNode, num_wanted: int, beneficiary: str) -> int:
        """Free at most that many blocks from the end of a leaf, as long as no request uses them; returns how many.

        [ ............ | moved to host memory | given up ]
                       ^ keep
        """
        num_freed = min(num_wanted, self.num_idle(leaf))
        keep = len(leaf.block_ids) - num_freed
        assert leaf.queued is not None
        num_moved = self._make_room(num_freed, leaf.queued, beneficiary)
        if leaf.state and num_moved < num_freed:
            num_moved = 0  # without the state at their end nobody goes on from them
        self._trim(leaf, keep + num_moved, beneficiary)
        if num_moved:
            self._move_out(leaf, keep)
        return num_freed

    def _make_room(self, num_wanted: int, most: Rank, beneficiary: str) -> int:
        """Give up what is in host memory and worth no more than that; returns how many blocks there are then."""
        pool = self.host_pool
        if most[0] == HoldKind.FINISHED:
            return 0
        rest: list[TreeNode] = []
        while (num_uncomputed := max(0, num_wanted - pool.num_free)) and (leaf := self.order.pop_offloaded(most)):
            num_given_up = min(num_uncomputed, self.num_idle(leaf))
            rest.append(leaf)
            self._trim(leaf, len(leaf.block_ids) - num_given_up, beneficiary)
        for leaf in rest:
            self.order.push(leaf)
        return min(num_wanted, pool.num_free)

    def _move_out(self, node: TreeNode, keep: int) -> None:
        """Move a leaf of the device to host memory, where there is room for it; but for its first so many blocks."""
        if keep:
            split(node, keep, self._block_bytes)
        host_ids = self.host_pool.allocate(len(node.block_ids))
        assert host_ids is not None and node.parent is not None and self._host is not None
        host_ids.sort()  # in a row, they are copied at once
        self._host.offload(node.block_ids, host_ids)
        self.num_offloaded += len(host_ids)
        self.host_pool.keep(host_ids)
        self.host_pool.release(host_ids)
        self._replace(node, host_ids)
        if not join(node, self._block_bytes):
            self.order.push(node)
        self.order.push(node.parent)

    def _bring_back(self, node: TreeNode, block_ids: list[int]) -> None:
        """What a node has in host memory is in these blocks of the device as well: have it there."""
        self.pool.keep(block_ids)
        self._replace(node, list(block_ids))
        self.order.push(node)

    def _replace(self, node: TreeNode, block_ids: list[int]) -> None:
        """Have a node's blocks in the other memory, where these hold the same."""
        names = node.names
        self._own(node, -len(block_ids))
        self._pool_of(node).drop(node.block_ids)
        node.block_ids, node.is_offloaded = block_ids, not node.is_offloaded
        self._own(node, len(block_ids))
        self.windows.move(names, node.names)
        if self._changes is not None:
            self._changes.append(Moved(names, node.names))

    def _trim(self, leaf: TreeNode, keep: int, beneficiary: str) -> None:
        """Give up all but the first blocks of a leaf, and what goes on from there in host memory."""
        given_up = leaf.block_ids[keep:]
        if not given_up:
            return
        for child in [*leaf.children.values()]:
            self._cut(child)
        self.evictions.remember(leaf, (keep + 1) * self._block_bytes, Eviction(self.retention.now, beneficiary))
        self.num_evicted += len(given_up)
        self._drop(leaf, given_up)
        del leaf.block_ids[keep:]
        if not keep:
            self._remove(leaf)
            return
        leaf.key = leaf.key[: keep * self._block_bytes]
        if leaf.hold and leaf.hold.kind is HoldKind.TOOL_GAP:
            self.order.set_hold(leaf, None)  # better one session recomputes all of it than many a little

    def _remove(self, leaf: TreeNode) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.key[: self._block_bytes]]
        self.order.set_hold(leaf, None)
        if not parent.parent and not parent.children:
            del self._roots[parent.key.decode()]
        else:
            self.order.push(parent)

    def _cut(self, top: TreeNode) -> None:
        for node in list(subtree(top)):
            self._drop(node, node.block_ids)
            node.block_ids = []  # for the queue of leaves, which may still know it
            self.order.set_hold(node, None)
        self._remove(top)

    def _own(self, node: TreeNode, num_more: int) -> None:
        """So many more blocks are of that node's session, if they are on the device."""
        if node.is_offloaded:
            return
        self.num_owned[node.session] += num_more
        if not self.num_owned[node.session]:
            del self.num_owned[node.session]

    def _drop(self, node: TreeNode, block_ids: list[int]) -> None:
        self.states.drop(node)
        self._own(node, -len(block_ids))
        self._pool_of(node).drop(block_ids)
        names = [~each for each in block_ids] if node.is_offloaded else block_ids
        self.windows.drop(names)
        if self._changes is not None:
            self._changes.append(Evicted(names))

    def nodes(self) -> Iterator[TreeNode]:
        for root in self._roots.values():
            for child in root.children.values():
                yield from subtree(child)
