"""Recurrent states of hybrid models: where each request's state is, and which states are kept for later requests.

A layer of linear attention carries a state from token to token instead of KV, and a sequence can go on only from where
a state was saved. A slot holds the state of all such layers at one place. A step reads one slot and writes one: the
same, or another where the state it began with stays as a checkpoint, or until it is known whether a draft was right: if
not, its request goes back there and computes what was right once more. So nothing is copied for a step.

    tokens  [ shared head ....... | prompt ............. | answer ..................... | still to compute ]
    slots   0 begins here         3 tree                 7 tree            5 last block 2 its own

Places in a prompt where others go on, its own end and the end of its answer become checkpoints of the tree: a prefix is
known as far as its deepest one. Blocks beyond the deepest checkpoint below them serve nobody and go first; where one in
the middle is given up, the blocks stay for those behind it. All places are ends of blocks, and chunks end there.

A checkpoint that has to make room goes to host memory, if something there is worth less, and comes back with the blocks
before it (`HostTier`): a state is in one memory or the other, wherever its blocks are.
"""

from array import array
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from itertools import accumulate, islice, takewhile

from hotloop.core.request import Request
from hotloop.core.retention import Eviction, HoldKind
from hotloop.engine.kvcache.full_attention import FullAttentionCache, OffloadedPrefix
from hotloop.engine.kvcache.node import Checkpoint, TreeNode, num_common, path
from hotloop.engine.kvcache.radix import RadixTree
from hotloop.engine.kvcache.retention import Rank
from hotloop.engine.step import Slice

ANSWER_LEAD = 8  # tokens at most with which a template opens an answer; the next prompt may open it otherwise
MAX_COMPARED = 32  # so many of the waiting are looked at for what they have in common with one who begins

EMPTY = -1  # read from there, a state is that of no tokens


@dataclass(slots=True, eq=False)
class _Run:
    """A request with a slot of its own."""

    request: Request
    slot: int
    source: int | None = None  # a checkpoint of the tree that its next step reads
    before: int | None = None  # its own slot before the drafts that are in flight
    places: list[int] = field(default_factory=list)  # where it will leave a checkpoint, in order
    left: list[tuple[int, int]] = field(default_factory=list)  # (place, slot) of states that are not in the tree yet
    leaders: "list[tuple[_Run, int]]" = field(default_factory=list)  # who began before it, and how much is common


class StateCache(FullAttentionCache):
    """For hybrid models: gives slots to requests and to the tree."""

    def __init__(self, tree: RadixTree, block_size: int, *, keeps: bool) -> None:
        super().__init__(tree, block_size, keeps=keeps)
        self.pool = tree.states.pool
        self.num_evicted = 0
        self._block_bytes = block_size * array("i").itemsize
        self._runs: dict[str, _Run] = {}
        self._num_victims = max(1, self.pool.num_blocks // 32)  # that go at a time: to look for one is to look at all

    def arrive(self, request: Request) -> None:
        """Whoever computes what a newcomer needs as well leaves a checkpoint where they part."""
        for run in self._runs.values():
            if run.request.num_computed < run.request.num_prompt - 1:  # one that decodes is past all of it
                self._add_place(run, self._num_common(run.request, request))

    def peek(self, request: Request) -> list[int]:
        """As far as the deepest checkpoint along its tokens."""
        nodes = self._known(request)
        return [block_id for node in nodes for block_id in node.block_ids]

    def match(self, request: Request) -> list[int]:
        key = request.token_ids[: request.num_tokens - 1].tobytes()
        nodes = _up_to_state([*self.tree.walk(key, request.salt, request.session)])
        return [block_id for node in nodes for block_id in node.block_ids]

    def peek_offloaded(self, request: Request) -> OffloadedPrefix | None:
        """Up to the deepest checkpoint, unless all of that is on the device."""
        slots, host_pool = self.tree.states, self.tree.host_pool
        if all(pool.num_free == pool.num_blocks for pool in (slots.host_pool, host_pool)):
            return None
        nodes = self._along(request, request.num_tokens - 1)
        while nodes and nodes[-1].state is None:
            nodes.pop()
        found = _up_to_state(nodes)
        if nodes == found:
            return None
        known, host_ids = (
            [block_id for node in nodes if node.is_offloaded == each for block_id in node.block_ids]
            for each in (False, True)
        )
        num_found = sum(len(node.block_ids) for node in found)
        return OffloadedPrefix(known, host_ids, len(known) + len(host_ids) - num_found, nodes[-1].state)

    def begin(self, request: Request, waiting: Iterable[Request]) -> bool:
        """Give a request a slot, if there is one, and plan where it leaves checkpoints."""
        nodes = self._known(request)
        known = [node.state.slot for node in nodes[-1:] if node.state]
        self.pool.use(known)
        slot = self.allocate_slot(request)
        self.pool.release(known)
        slot = self.allocate_slot(request, is_needed=True) if slot is None else slot
        if slot is None:
            return False
        run = _Run(request, slot)
        if self._keeps:
            ahead = [each for each in self._runs.values() if each.places]
            run.leaders = [(each, self._num_common(each.request, request)) for each in ahead]
            others = [each for each in islice(waiting, MAX_COMPARED) if each is not request]
            num_in_tree = sum(num for _, num in self.tree.trace(request.token_ids, request.salt)) * self._block_size
            ends = [request.num_prompt - ANSWER_LEAD, *request.resume_at, num_in_tree]
            for place in (*ends, *(self._num_common(request, other) for other in others)):
                self._add_place(run, place)
        self._runs[request.id] = run
        return True

    def resume(self, request: Request) -> None:
        """A request has the tree's blocks up to a checkpoint: it goes on from there."""
        run = self._runs[request.id]
        node = self._known(request, request.num_computed)[-1]
        assert node.state is not None
        self._release(run)
        run.source = node.state.slot
        self.pool.use([run.source])
        node.state.used_at = self.tree.retention.now

    def begin_copy(self, request: Request, state: Checkpoint) -> int | None:
        slots = self.tree.states
        slots.pool_of(state).use([state.slot])
        slot = self.allocate_slot(request) if state.is_offloaded else state.slot
        if slot is None:
            slots.host_pool.release([state.slot])
        else:
            slots.copying.append(slot)
        return slot

    def end_copy(self, state: Checkpoint, slot: int, *, is_there: bool) -> None:
        """The tree may have given the state up meanwhile, with the blocks before it."""
        slots = self.tree.states
        slots.copying.remove(slot)
        if state.is_offloaded:
            slots.host_pool.release([state.slot])
            if is_there and slots.host_pool.is_kept[state.slot]:
                slots.bring_back(state, slot, self.tree.retention.now)
        self.pool.release([slot])

    def put(self, request: Request, place: int, write: Callable[[int], None]) -> bool:
        slot = self.allocate_slot(request)
        if slot is None:
            return False
        write(slot)
        self._keep(request, place, slot)
        self.pool.release([slot])
        return True

    def is_coming(self, request: Request, prefix: bytes, computed: Iterable[Container[bytes]]) -> bool:
        """Whether one that began before it, and is no less urgent, will leave a checkpoint that it can go on from."""
        run = self._runs[request.id]
        return any(
            request.num_computed < place <= num_common
            for other, num_common in run.leaders
            if other.request.rank <= request.rank
            for place in other.places
        )

    def cut(self, request: Request, count: int) -> int:
        """So many of the next tokens, or fewer: up to where a state is to be left, and to where its last block ends."""
        if not self._keeps:
            return count
        last = (request.num_tokens - 1) // self._block_size * self._block_size
        ends = [place - request.num_computed for place in (*self._runs[request.id].places, last)]
        return min([count, *(num for num in ends if num > 0)])

    def assign(self, slices: Iterable[Slice]) -> None:
        """Say which slots a step reads and writes."""
        for part in slices:
            part.slots = self._assign(self._runs[part.request.id], part.begin)

    def launch(self, slices: Iterable[Slice]) -> None:
        """The step is on its way: what it reads may be given to somebody else."""
        for part in slices:
            self._forget_source(self._runs[part.request.id])

    def branch(self, part: Slice) -> bool:
        """The state in front of drafts is kept. One that has something to catch up with does that first."""
        run = self._runs[part.request.id]
        if part.slots != (run.slot, run.slot) or part.num_tokens > 1:
            return False
        slot = self.allocate_slot(part.request)
        if slot is None:
            return False
        run.before, run.slot = run.slot, slot
        part.slots = run.before, slot
        return True

    def accept(self, part: Slice) -> bool:
        """If a draft was wrong, its request is back where the slice began, and has its tokens to compute again."""
        run = self._runs[part.request.id]
        if run.before is None:
            return True
        is_right = part.num_accepted == len(part.draft_ids)
        if not is_right:
            run.slot, run.before = run.before, run.slot
            part.request.num_computed = part.begin
        self.pool.release([run.before])
        run.before = None
        return is_right

    def settle(self, request: Request) -> None:
        """More of it is computed, and in the tree: checkpoints go there, and of the others the last is kept."""
        run = self._runs[request.id]
        done = [each for each in run.left if each[0] <= request.num_settled]
        for place, slot in done:
            if place in run.places:
                self._save(request, place, slot, is_prompt=True)
            elif place < done[-1][0]:
                self.pool.release([slot])
            else:
                continue
            run.left.remove((place, slot))
        run.places = [place for place in run.places if place >= request.num_settled]

    def end(self, request: Request, *, is_valid: bool = True) -> None:
        """A request gives up its blocks; the last state it has left, if that is sound, is a checkpoint."""
        run = self._runs.pop(request.id, None)
        if run is None:
            return
        # In flight, it is not sound; not written yet, it is where the tree has one.
        run.left.append((request.num_computed, run.slot))
        num_sound = min(request.num_settled, request.num_tokens) if is_valid else 0
        usable = [each for each in run.left if 0 < each[0] <= num_sound and each[0] % self._block_size == 0]
        if usable:
            run.left.remove(usable[-1])
            self._save(request, *usable[-1])
        self._release(run)
        run.places.clear()

    def check(self, running: Iterable[Request]) -> None:
        assert self._runs.keys() == {request.id for request in running}
        users = [self.tree.states.copying.count(slot) for slot in range(self.pool.num_blocks)]
        for run in self._runs.values():
            own = [run.slot, *(slot for _, slot in run.left), *([] if run.before is None else [run.before])]
            assert all(not self.pool.is_kept[slot] for slot in own), "a request writes to a checkpoint"
            assert run.places == sorted(set(run.places))
            for slot in own + ([] if run.source is None else [run.source]):
                users[slot] += 1
        self.pool.check(dict(enumerate(users)))

    def _assign(self, run: _Run, begin: int) -> tuple[int, int]:
        if run.source is not None:
            return run.source, run.slot
        if begin == 0:
            return EMPTY, run.slot
        read = run.slot
        if self._keeps and begin % self._block_size == 0:
            slot = self.allocate_slot(run.request)
            if slot is not None:
                run.left.append((begin, read))
                run.slot = slot
        return read, run.slot

    def _known(self, request: Request, num_tokens: int | None = None) -> list[TreeNode]:
        """The nodes up to the deepest checkpoint along its tokens."""
        return _up_to_state(self._along(request, request.num_tokens - 1 if num_tokens is None else num_tokens))

    def _along(self, request: Request, num_tokens: int) -> list[TreeNode]:
        """The nodes that its first so many tokens have all of, in either memory."""
        along = self.tree.trace(request.token_ids[:num_tokens], request.salt)
        return [node for node, num in along if num == len(node.block_ids)]

    def _num_common(self, one: Request, other: Request) -> int:
        """How many tokens two have in common, in whole blocks, and but for the last of either."""
        if one.salt != other.salt:
            return 0
        keys = [each.token_ids[: each.num_tokens - 1].tobytes() for each in (one, other)]
        return num_common(keys[0], keys[1], 0, self._block_bytes) * self._block_size

    def _add_place(self, run: _Run, place: int) -> None:
        place = min(place, run.request.num_prompt - 1) // self._block_size * self._block_size
        if self._keeps and place > run.request.num_computed and place not in run.places:
            run.places = sorted([*run.places, place])

    def _save(self, request: Request, place: int, slot: int, *, is_prompt: bool = False) -> None:
        """Have the tree keep a state that a request has left, and tell of it. A session whose next prompt has come that
        far does not go back to the places before it that are its own.
        """
        nodes = self._keep(request, place, slot)
        if nodes and self.tree.states.on_keep:
            above = nodes[:-1]
            ends = accumulate(len(each.block_ids) * self._block_size for each in above)
            own = [end for each, end in zip(above, ends, strict=True) if is_prompt and each.session is not None]
            self.tree.states.on_keep(request, place, slot, own)
        self.pool.release([slot])

    def _keep(self, request: Request, place: int, slot: int) -> list[TreeNode]:
        """Have the tree keep a state, unless it has one there on the device; the nodes up to it."""
        nodes = [*self.tree.walk(request.token_ids[:place].tobytes(), request.salt)]
        is_there = sum(len(node.block_ids) for node in nodes) * self._block_size == place
        state = nodes[-1].state if is_there else None
        if is_there and (state is None or (state.is_offloaded and self.tree.states.is_idle(state))):
            self.tree.states.keep(nodes[-1], slot, self.tree.retention.now)
            self.tree.order.requeue(nodes[-1])
            return nodes
        return []

    def _release(self, run: _Run) -> None:
        self.pool.release(slot for _, slot in run.left)
        run.left.clear()
        if run.before is not None:
            self.pool.release([run.before])
            run.before = None
        self._forget_source(run)

    def _forget_source(self, run: _Run) -> None:
        if run.source is not None:
            self.pool.release([run.source])
            run.source = None

    def allocate_slot(self, request: Request, *, is_needed: bool = False) -> int | None:
        """A slot, if need be that of the checkpoint least worth keeping, or of what a running request has left."""
        if not self.pool.num_free:
            self._evict(request.id)
        if not self.pool.num_free and is_needed:
            other = next((run for run in self._runs.values() if run.left), None)
            if other:
                self.pool.release([other.left.pop(0)[1]])
        slots = self.pool.allocate(1)
        return slots[0] if slots else None

    def _evict(self, beneficiary: str) -> None:
        """Make room on the device: what is least worth there goes to host memory, if something there is worth less."""
        slots = self.tree.states
        idle = [(node, node.state) for node in self.tree.nodes() if node.state and slots.is_idle(node.state)]
        ranks = {node: self._rank(node) for node, _ in idle}
        offloaded, own = ([node for node, state in idle if state.is_offloaded == each] for each in (True, False))
        victims = nsmallest(self._num_victims, own, key=ranks.__getitem__)
        worthy = [node for node in victims if self.tree.retention.kind(node.hold) > HoldKind.FINISHED]
        room = slots.host_pool.num_free + len(offloaded)
        stays = {*nlargest(room, offloaded + worthy, key=ranks.__getitem__)}
        for node in offloaded + victims:
            if node not in stays:
                self._give_up(node, beneficiary)
        for node in victims:
            if node.state:
                slots.move_out(node.state)

    def _give_up(self, node: TreeNode, beneficiary: str) -> None:
        first = self._serves(node)[-1]
        self.tree.evictions.remember(first, self._block_bytes, Eviction(self.tree.retention.now, beneficiary))
        self.tree.states.drop(node)
        self.tree.order.requeue(node)
        self.num_evicted += 1

    def _rank(self, node: TreeNode) -> Rank:
        """By what is known of its prefix, or else the chance that somebody goes on from there, and what it saves: all
        tokens since the one before it. A session goes on from its end: what it has before that goes first, unless it
        shares it.
        """
        assert node.state is not None
        retention = self.tree.retention
        if node.session is not None and node.children and not retention.kind(node.hold) > HoldKind.ORDINARY:
            return HoldKind.FINISHED, 0, 0.0, node.last_used
        depth, num_saved = (
            sum(len(each.block_ids) for each in nodes) * self._block_size for nodes in (path(node), self._serves(node))
        )
        return retention.rank(node.hold, node.state.used_at, node.last_used, depth, num_tokens=num_saved)

    def _serves(self, node: TreeNode) -> list[TreeNode]:
        """What would have to be computed again without a node's state: all since the one before it, the last first."""
        return [node, *takewhile(lambda each: not each.state, islice(path(node), 1, None))]


def _up_to_state(nodes: list[TreeNode]) -> list[TreeNode]:
    """Of nodes one below the other, those up to the last that is on the device with its state."""
    nodes = [node for node in nodes if not node.is_offloaded]
    while nodes and (nodes[-1].state is None or nodes[-1].state.is_offloaded):
        nodes.pop()
    return nodes
