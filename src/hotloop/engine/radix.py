"""The prefix tree: which token sequences have their KV in which blocks. Integers and bytes only.

Each edge carries whole blocks, as the raw bytes of their token ids: a long common run is compared by one memcmp.

    root ──[sys sys sys sys]── node ──[user a]── leaf
                                 └────[user b]── leaf

Invariants: siblings differ in their first block; what the tree keeps is computed, never about to be; a request that
uses a block uses all before it. So a leaf can be given up from its end as far as its blocks are idle; which leaf goes
first is for `Retention` to say. Prefixes under different salts share nothing. An edge is of one session, or of several.
"""

import heapq
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count, takewhile

from hotloop.core.retention import Eviction, Hold, HoldKind
from hotloop.engine.blocks import BlockPool
from hotloop.engine.changes import Changes, GivenUp, Kept
from hotloop.engine.evictions import Evictions
from hotloop.engine.node import Node, last_id, path, root_of, subtree
from hotloop.engine.retention import Rank, Retention

_TOKEN_BYTES = array("i").itemsize


class RadixTree:
    """Prefixes shared by all requests. It takes blocks from nobody: it keeps them in the pool beside their users."""

    def __init__(
        self, pool: BlockPool, block_size: int, retention: Retention | None = None, changes: Changes | None = None
    ) -> None:
        self._pool = pool
        self._changes = changes
        self._block_size = block_size
        self._block_bytes = block_size * _TOKEN_BYTES
        self._roots: dict[str, Node] = {}
        self._clock = 0
        self._num_nodes = 0
        self._leaves: list[tuple[Rank, int, Node]] = []
        self._expiring: list[tuple[float, int, Node]] = []
        self._pinned: set[Node] = set()
        self._away: set[Node] = set()
        self._tickets = count()
        self._evictions = Evictions()
        self.retention = retention or Retention(0)
        self.num_blocks = 0
        self.num_owned = Counter[str | None]()
        """Blocks by session; None are those that several sessions have used."""
        self.num_evicted = 0

    def match(self, token_ids: "array[int]", salt: str = "", session: str | None = None) -> list[int]:
        """The blocks of the longest known prefix, in order. The caller uses them before anything else happens, for that
        session if it says so.
        """
        return [block_id for node in self._walk(token_ids.tobytes(), salt, session) for block_id in node.block_ids]

    def peek(self, token_ids: "array[int]", salt: str = "") -> list[int]:
        """As `match`, but nothing counts as used."""
        trace = self._trace(token_ids.tobytes(), salt)
        return [block_id for node, num_common in trace for block_id in node.block_ids[:num_common]]

    def is_awaited(self, token_ids: "array[int]", salt: str = "") -> bool:
        """Whether this prefix goes on where one that is kept for somebody ends."""
        nodes = (
            node for node, num_common in self._trace(token_ids.tobytes(), salt) if num_common == len(node.block_ids)
        )
        return any(node.hold and node in self._away and self.retention.now < node.hold.until for node in nodes)

    def num_awaited(self, rank: int, token_ids: "array[int]", salt: str = "") -> int:
        """How many idle blocks are kept for those who are away, if of that class or more urgent; but for the blocks of
        this prefix.
        """
        self._expire()
        nodes: set[Node] = set()
        for away in self._away:
            if away.hold and away.hold.rank <= rank:
                nodes.update(takewhile(lambda node: node not in nodes, path(away)))
        known = ((node, num) for node, num in self._trace(token_ids.tobytes(), salt) if node in nodes)
        num_known = sum(self._num_idle(node.block_ids[:num_common]) for node, num_common in known)
        return sum(self._num_idle(node.block_ids) for node in nodes) - num_known

    def hold(self, token_ids: "array[int]", hold: Hold, salt: str = "") -> None:
        """Tell when the known part of this prefix is wanted again."""
        if not self.retention.is_on:
            return
        nodes = [*self._walk(token_ids.tobytes(), salt)]
        if not nodes or not self._can_hold(nodes[-1], hold):
            return
        node = nodes[-1]
        self._set_hold(node, hold)
        self._watch(node)
        self._expire()

    def eviction(self, token_ids: "array[int]", num_known: int, salt: str = "") -> Eviction | None:
        """If and when the block after the first `num_known` tokens was given up, as far as is remembered."""
        end = num_known + self._block_size
        if len(token_ids) < end:
            return None
        return self._evictions.find(salt.encode(), [token_ids[:end].tobytes()])

    def insert(self, token_ids: "array[int]", block_ids: list[int], salt: str = "", session: str = "") -> list[int]:
        """Remember that these whole blocks hold these tokens; returns the blocks the tree now has for them.

        Where the tree knew a block already, its own block is kept and the caller's copy is superfluous: the two lists
        differ there. New blocks are kept from now on.
        """
        assert len(token_ids) * _TOKEN_BYTES == len(block_ids) * self._block_bytes
        key = token_ids.tobytes()
        known: list[int] = []
        node = self._roots.get(salt)
        for node in self._walk(key, salt, session):
            known += node.block_ids
        new_ids = block_ids[len(known) :]
        if new_ids:
            node = node or self._roots.setdefault(salt, Node(None, salt.encode(), [], 0))
            new_key = key[len(known) * self._block_bytes :]
            if self._changes and not salt:
                self._changes.add(Kept(last_id(node), new_key, new_ids))
            self._append(node, new_key, new_ids, session)
        return known + new_ids

    def forget(self, token_ids: "array[int]", salt: str = "") -> None:
        """Give up whatever builds on the first block along these tokens that nobody uses: all of it is idle."""
        for node in self._walk(token_ids.tobytes(), salt):
            num_used = sum(self._pool.num_users(block_id) > 0 for block_id in node.block_ids)
            if num_used < len(node.block_ids):
                if num_used:
                    self._split(node, num_used)
                self._cut(node)
                return

    def evict(self, num_wanted: int, beneficiary: str = "") -> int:
        """Give up at least that many blocks, those least worth keeping first; returns how many could be freed."""
        freed = 0
        in_use: list[Node] = []
        self._expire()
        while freed < num_wanted and self._leaves:
            rank, _, node = heapq.heappop(self._leaves)
            if node.children or not node.block_ids or node.queued != rank:
                continue
            freed += self._trim(node, num_wanted - freed, beneficiary)
            if not node.block_ids:
                self._remove(node)
            elif freed < num_wanted:
                in_use.append(node)
            else:
                self._remember_leaf(node)
        for node in in_use:
            self._remember_leaf(node)
        self.num_evicted += freed
        return freed

    def kept(self) -> Iterator[Kept]:
        """All that is kept without a salt, each edge after the one above it."""
        root = self._roots.get("")
        for node in subtree(root) if root else ():
            if node.parent:
                yield Kept(last_id(node.parent), node.key, list(node.block_ids))

    def num_along(self, prefixes: Iterable[tuple["array[int]", str]]) -> Counter[str | None]:
        """How many blocks these prefixes, each with its salt, have here together, by whose they are."""
        reached: dict[Node, int] = {}
        for token_ids, salt in prefixes:
            for node, num_common in self._trace(token_ids.tobytes(), salt):
                reached[node] = max(reached.get(node, 0), num_common)
        found = Counter[str | None]()
        for node, num_blocks in reached.items():
            found[node.session] += num_blocks
        return found

    def check(self) -> None:
        num_blocks = num_nodes = 0
        seen: set[int] = set()
        for node in self._nodes():
            num_nodes += 1
            num_blocks += len(node.block_ids)
            assert node.parent is not None
            assert len(node.key) == len(node.block_ids) * self._block_bytes > 0
            assert node.parent.children[node.key[: self._block_bytes]] is node
            assert node.parent.parent is None or node.parent.last_used >= node.last_used
            assert all(self._pool.is_kept(block_id) for block_id in node.block_ids)
            assert seen.isdisjoint(node.block_ids), "a block is in the tree twice"
            seen.update(node.block_ids)
        assert (num_blocks, num_nodes) == (self.num_blocks, self._num_nodes)
        assert self.num_owned == Counter(node.session for node in self._nodes() for _ in node.block_ids)
        known = {id(node) for rank, _, node in self._leaves if rank == node.queued}
        assert all(node.children or id(node) in known for node in self._nodes()), "a leaf cannot be evicted"
        assert self._pinned == {node for node in self._nodes() if node.hold and node.hold.kind is HoldKind.PINNED}
        assert self._away == {node for node in self._nodes() if node.hold and node.hold.kind is HoldKind.AWAY}
        assert all(root.children for root in self._roots.values())

    def _walk(self, key: bytes, salt: str, session: str | None = None) -> Iterator[Node]:
        """Each node along the key, marked as used now; an edge the key leaves midway is split, and its rest ages on."""
        root = self._roots.get(salt)
        if root is None:
            return
        self._clock += 1
        size = self._block_bytes
        node, begin = root, 0
        while child := node.children.get(key[begin : begin + size]):
            if not key.startswith(child.key, begin):
                child = self._split(child, self._num_common(child.key, key, begin))
            child.last_used, child.used_at = self._clock, self.retention.now
            if session is not None and session != child.session and child.session is not None:
                self._own(child, -len(child.block_ids))
                child.session = None
                self._own(child, len(child.block_ids))
            if child.hold:
                self._set_hold(child, self.retention.after_use(child.hold))
            if not child.children:
                self._remember_leaf(child)
            yield child
            node, begin = child, begin + len(child.key)

    def _trace(self, key: bytes, salt: str) -> Iterator[tuple[Node, int]]:
        """Each node along the key, and how many of its blocks the key has; nothing is marked or split."""
        node, begin = self._roots.get(salt), 0
        while node and (child := node.children.get(key[begin : begin + self._block_bytes])):
            if not key.startswith(child.key, begin):
                yield child, self._num_common(child.key, key, begin)
                return
            yield child, len(child.block_ids)
            node, begin = child, begin + len(child.key)

    def _num_idle(self, block_ids: list[int]) -> int:
        """Who uses a block uses all before it, so the idle ones of an edge are its last."""
        return len(block_ids) - bisect_left(block_ids, True, key=lambda block_id: not self._pool.num_users(block_id))

    def _num_common(self, edge: bytes, key: bytes, begin: int) -> int:
        """How many whole blocks of `edge`, though not all of them, stand at `key[begin:]`."""
        size = self._block_bytes
        low, high = 1, min(len(edge), len(key) - begin) // size  # the first block is known to match
        while low < high:
            middle = (low + high + 1) // 2
            if key.startswith(edge[: middle * size], begin):
                low = middle
            else:
                high = middle - 1
        return low

    def _append(self, parent: Node, key: bytes, block_ids: list[int], session: str) -> None:
        """New blocks after `parent`: its own edge grows if it is of the same session and nothing hangs below it and
        holds it, else there is a new leaf.
        """
        self._pool.keep(block_ids)
        self.num_blocks += len(block_ids)
        if parent.parent and not parent.children and not parent.hold and parent.session == session:
            parent.key += key
            parent.block_ids += block_ids
            self._own(parent, len(block_ids))
            return
        leaf = Node(parent, key, list(block_ids), self._clock, self.retention.now, session)
        parent.children[key[: self._block_bytes]] = leaf
        self._own(leaf, len(block_ids))
        self._num_nodes += 1
        self._remember_leaf(leaf)

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Divide an edge after that many blocks; returns the upper half, which takes the old place in the tree."""
        assert node.parent is not None
        size = num_blocks * self._block_bytes
        upper = Node(
            node.parent, node.key[:size], node.block_ids[:num_blocks], node.last_used, node.used_at, node.session
        )
        node.parent.children[node.key[: self._block_bytes]] = upper
        node.parent, node.key, node.block_ids = upper, node.key[size:], node.block_ids[num_blocks:]
        upper.children[node.key[: self._block_bytes]] = node
        self._num_nodes += 1
        return upper

    def _trim(self, leaf: Node, num_wanted: int, beneficiary: str) -> int:
        """Give up at most that many blocks from the end of a leaf, as long as nobody uses them."""
        keep = len(leaf.block_ids)
        least = max(0, keep - num_wanted)
        while keep > least and self._pool.num_users(leaf.block_ids[keep - 1]) == 0:
            keep -= 1
        freed = leaf.block_ids[keep:]
        if freed:
            self._remember_eviction(leaf, keep, beneficiary)
        self._drop(leaf, freed)
        del leaf.block_ids[keep:]
        if keep:
            leaf.key = leaf.key[: keep * self._block_bytes]
        if freed and leaf in self._away:  # better one who has to read all of it again than many who read a little
            self._set_hold(leaf, None)
        return len(freed)

    def _remove(self, leaf: Node) -> None:
        assert leaf.parent is not None
        del leaf.parent.children[leaf.key[: self._block_bytes]]
        self._set_hold(leaf, None)
        self._num_nodes -= 1
        if leaf.parent.children:
            return
        if leaf.parent.parent:
            self._remember_leaf(leaf.parent)
        else:
            del self._roots[leaf.parent.key.decode()]

    def _cut(self, top: Node) -> None:
        """Give up a node and all below it."""
        for node in list(subtree(top)):
            self._drop(node, node.block_ids)
            node.block_ids = []  # for the queue of leaves, which may still know it
            self._set_hold(node, None)
            self._num_nodes -= node is not top
        self._remove(top)

    def _own(self, node: Node, num_more: int) -> None:
        """So many more blocks are of that node's session."""
        self.num_owned[node.session] += num_more
        if not self.num_owned[node.session]:
            del self.num_owned[node.session]

    def _drop(self, node: Node, block_ids: list[int]) -> None:
        self._own(node, -len(block_ids))
        self._pool.drop(block_ids)
        self.num_blocks -= len(block_ids)
        if self._changes and block_ids:
            self._changes.add(GivenUp(block_ids))

    def _remember_leaf(self, leaf: Node) -> None:
        """Queue a leaf for eviction. Entries are stale once their leaf is ranked anew; too many, and all are remade."""
        leaf.queued = self._rank(leaf)
        heapq.heappush(self._leaves, (leaf.queued, next(self._tickets), leaf))
        if len(self._leaves) > 2 * self._num_nodes + 64:
            leaves = [node for node in self._nodes() if not node.children]
            for node in leaves:
                node.queued = self._rank(node)
            self._leaves = [(node.queued, next(self._tickets), node) for node in leaves if node.queued]
            heapq.heapify(self._leaves)

    def _rank(self, leaf: Node) -> Rank:
        depth = sum(len(node.block_ids) for node in path(leaf)) * self._block_size
        return self.retention.rank(leaf.hold, leaf.used_at, leaf.last_used, depth)

    def _can_hold(self, node: Node, hold: Hold) -> bool:
        if hold.kind is not HoldKind.PINNED:
            return node.hold is None or node.hold.kind is not HoldKind.PINNED
        num_pinned = sum(len(pinned.block_ids) for pinned in self._pinned if pinned is not node)
        return num_pinned + len(node.block_ids) <= self.retention.max_pinned

    def _set_hold(self, node: Node, hold: Hold | None) -> None:
        node.hold = hold
        for kind, nodes in ((HoldKind.PINNED, self._pinned), (HoldKind.AWAY, self._away)):
            if hold and hold.kind is kind:
                nodes.add(node)
            else:
                nodes.discard(node)
        if node.block_ids and not node.children:
            self._remember_leaf(node)

    def _expire(self) -> None:
        """Holds whose time is up mean nothing any more."""
        while self._expiring and self._expiring[0][0] <= self.retention.now:
            at, _, node = heapq.heappop(self._expiring)
            if at != node.looked_at:
                continue
            node.looked_at = None
            expires_at = self.retention.expires_at(node.hold) if node.hold else None
            if expires_at is not None and expires_at <= self.retention.now:
                self._set_hold(node, None)
            else:  # it was used meanwhile
                self._watch(node)

    def _watch(self, node: Node) -> None:
        """See to it that its hold expires. Who is to be looked at before that need not be queued again."""
        expires_at = self.retention.expires_at(node.hold) if node.hold else None
        if expires_at is not None and (node.looked_at is None or expires_at < node.looked_at):
            node.looked_at = expires_at
            heapq.heappush(self._expiring, (expires_at, next(self._tickets), node))

    def _remember_eviction(self, leaf: Node, num_kept: int, beneficiary: str) -> None:
        """Under the prefix that ends with the first block given up."""
        first = leaf.key[: (num_kept + 1) * self._block_bytes]
        above = [node.key for node in path(leaf)][1:]
        eviction = Eviction(self.retention.now, beneficiary)
        self._evictions.remember(root_of(leaf).key, [*reversed(above), first], eviction)

    def _nodes(self) -> Iterator[Node]:
        for root in self._roots.values():
            for child in root.children.values():
                yield from subtree(child)
