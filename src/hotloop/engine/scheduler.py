"""Who computes what in the next step. Integers only: no tensor, no text, no clock of its own.

One rule: a request's computed tokens catch up with its tokens. `advance` moves the counts when a step is launched,
`settle` shares what it computed once the values are there; between the two a request may be launched again if it does
not need them. A step first gives every request that has read its prompt what it lacks, a token or a few forced ones (so
decoding never starves), then fills its token budget with chunks of whoever lacks more: a share for those who lack least
(so short prompts do not wait for long ones), the rest in order of arrival; with small ones, where somebody more urgent
waits for the step (`Courtesy`). Before it computes anything a request follows the prefix tree as far as it goes, so
that of many with the same prompt one reads it and the others adopt its blocks, even while it is still reading.

Those who come back to a prefix that was kept for them go first, and newcomers do not take the room of those who are
still away, unless it is time to (`Retention.may_break`): else all would read everything again at every turn.

Why it never stands still: the most urgent of the running never gives way, whoever fits the pool alone can finish, and
whoever is next waits for those who are away a limited time.
"""

from array import array
from collections import deque
from collections.abc import Collection
from operator import attrgetter

from hotloop.core.config import EngineConfig
from hotloop.core.request import FinishReason, Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.blocks import BlockPool
from hotloop.engine.changes import Changes, Emptied
from hotloop.engine.courtesy import Courtesy
from hotloop.engine.fairness import Fairness, urgency
from hotloop.engine.radix import RadixTree
from hotloop.engine.retention import Retention
from hotloop.engine.step import Plan, Slice, Step

MAX_PUT_OFF = 4
SHORT_SHARE = 5  # one part in so many of a step goes to those who lack least, while somebody else could fill it
MAX_SHORT = 16  # so many of the queue are looked at for that
SETTLE_S = 0.5
WAIT_S = 60.0


class Scheduler:
    """Owns the waiting, the running, and the blocks they use."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        block_size: int,
        num_blocks: int,
        step_tokens: int = 512,
        changes: Changes | None = None,
    ) -> None:
        self.config = config
        self.max_step_tokens = config.max_step_tokens or step_tokens
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.retention = Retention(int(config.pinned_share * num_blocks), is_on=config.retention)
        self._changes = changes
        self.tree = RadixTree(self.pool, block_size, self.retention, changes)
        self.fairness = Fairness()
        self.courtesy = Courtesy(block_size)
        self.waiting: dict[str, Request] = {}
        self.running: dict[str, Request] = {}
        self.num_preemptions = 0
        self._flying: deque[Step] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def turnover_s(self) -> float:
        """How long it takes, lately, to read as many tokens as the pool holds."""
        return self.retention.token_s * self.pool.num_blocks * self.block_size

    def add(self, request: Request) -> None:
        """Let a request wait for its turn."""
        assert self._num_blocks_for(request.num_tokens) <= self.pool.num_blocks, "it could never run"
        request.is_awaited = self.tree.is_awaited(request.token_ids, request.salt)
        if request.is_awaited:  # nor is its prefix given up while it waits for a place
            hold = Hold(HoldKind.AWAY, self.retention.now + WAIT_S, WAIT_S, rank=request.priority)
            self.tree.hold(request.token_ids, hold, request.salt)
        self.waiting[request.id] = request

    def schedule(self, now: float) -> Step:
        """The next step; empty if there is nothing to do, or somebody needs the values of a step in flight for it."""
        if self._flying and any(each.num_pending and not each.can_overlap for each in self.running.values()):
            return Step()
        self.fairness.now = self.retention.now = now
        self.courtesy.begin(
            (each.rank for each in self.running.values()), now, self.retention.token_s, len(self._flying)
        )
        plan = Plan()
        behind = []
        for request in list(self.running.values()):
            if request.num_pending and request.is_about_to_end:
                continue
            missing = request.num_missing
            if missing > (self.block_size if request.num_computed >= len(request.prompt_ids) else 1):
                behind.append(request)
            elif request.id in self.running:  # it may have given way to one before it
                self._grant(plan, request, missing)
        num_granted = sum(part.num_tokens for part in plan.slices.values())
        budget = max(self.block_size, self.max_step_tokens - num_granted)
        queue = self._queue(behind)
        share = max(self.block_size, budget // SHORT_SHARE)
        for request in self._short(queue, budget):
            num_tokens = self._serve(plan, request, min(share, budget))
            share, budget = share - num_tokens, budget - num_tokens
        for request in queue:
            if request.id not in plan.slices:
                budget -= self._serve(plan, request, budget)
        return Step(list(plan.slices.values()), plan.prefixes)

    def extend(self, part: Slice, draft_ids: list[int], kinds: list[int | None]) -> None:
        """Let a slice compute guesses as well, as far as there are blocks: nobody gives way for a guess."""
        request = part.request
        num_missing = self._num_blocks_for(part.end + len(draft_ids)) - len(request.block_ids)
        if num_missing > 0 and (block_ids := self._allocate(num_missing, request)):
            request.block_ids.extend(block_ids)
        room = len(request.block_ids) * self.block_size - part.end
        part.draft_ids, part.kinds = draft_ids[:room], kinds[:room]

    def advance(self, step: Step) -> None:
        """The step was launched."""
        self._flying.append(step)
        num_rows = 0
        for part in step.slices:
            request = part.request
            if request.session_id:
                self.fairness.charge(request, part.num_tokens)
            request.num_computed = part.end
            part.epoch = request.num_preemptions
            if part.wants_token:
                request.num_pending += 1
                request.pending_row = part.first_row = num_rows
                num_rows += 1 + len(part.draft_ids)

    def settle(self, step: Step, now: float, took_s: float) -> None:
        """The step was computed, and the requests have the tokens that were chosen after it."""
        assert self._flying.popleft() is step
        self.retention.now = now
        num_tokens, least = step.num_tokens, min(self.max_step_tokens, 1024) // 2
        if num_tokens > least and took_s > 0:  # it did little else than read prompts
            self.retention.learn(num_tokens, took_s)
        for part in step.slices:
            request = part.request
            request.num_pending -= part.wants_token
            if part.has_failed or not part.is_kept:
                continue
            request.num_computed += part.num_accepted
            request.num_settled = max(request.num_settled, part.end + part.num_accepted)
            if request.num_settled // self.block_size > part.begin // self.block_size:
                self._share(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Take a request out, wherever it is; nobody takes its place in the tree before its caller could ask for it."""
        request.finish_reason = reason
        request.num_read = request.num_settled
        self._release(request)
        if reason is FinishReason.STOP:
            hold = Hold(HoldKind.AWAY, self.retention.now + SETTLE_S, rank=request.rank)
            self.tree.hold(request.token_ids, hold, request.salt)
        elif request.is_awaited and request.id in self.waiting:  # nothing is kept for one who is not waiting any more
            self.tree.match(request.token_ids, request.salt)
        del (self.running if request.id in self.running else self.waiting)[request.id]

    def fail(self, request: Request) -> None:
        """Take out a request whose computation came to nothing, and what it computed, unless others use that."""
        self.finish(request, FinishReason.ERROR)
        self.tree.forget(request.token_ids, request.salt)

    def reset(self, step: Step | None = None) -> list[Request]:
        """Trust nothing that was computed, after a failed step. Returns the requests that are lost: those who ran or,
        if none did, those who wait, so that what fails for ever does not fail for ever; and who was in that step.
        """
        lost = self.running or self.waiting
        requests = list(lost.values())
        lost.clear()
        given_way = {part.request.id for part in step.slices} if step else set()
        requests += [self.waiting.pop(request_id) for request_id in given_way & self.waiting.keys()]
        for request in requests:
            request.block_ids, request.finish_reason = array("i"), FinishReason.ERROR
        for request in self.waiting.values():
            request.num_pending = 0
        self._flying.clear()
        num_evicted = self.tree.num_evicted
        self.pool = BlockPool(self.pool.num_blocks)
        self.tree = RadixTree(self.pool, self.block_size, self.retention, self._changes)
        if self._changes:
            self._changes.add(Emptied())
        self.tree.num_evicted = num_evicted
        return requests

    def check(self) -> None:
        self.pool.check()
        self.tree.check()
        users: dict[int, int] = {}
        for request in self.running.values():
            assert request.id not in self.waiting
            assert request.num_settled <= request.num_computed < request.num_tokens + request.num_pending
            assert request.num_pending <= len(self._flying)
            assert len(request.block_ids) * self.block_size >= request.num_computed
            for block_id in request.block_ids:
                users[block_id] = users.get(block_id, 0) + 1
        assert all(not request.block_ids for request in self.waiting.values())
        for block_id in range(self.pool.num_blocks):
            assert self.pool.num_users(block_id) == users.get(block_id, 0)
        assert self.tree.num_blocks == sum(map(self.pool.is_kept, range(self.pool.num_blocks)))

    def _queue(self, behind: list[Request]) -> list[Request]:
        """Who lacks more than a token, and who may join: by class, and in it those first who run already."""
        joining = self.fairness.order(self.waiting.values(), self.running.values()) if self.waiting else []
        return sorted([*sorted(behind, key=urgency), *joining], key=attrgetter("rank"))

    def _short(self, queue: list[Request], budget: int) -> list[Request]:
        """Those of the first class that lack least, if the first in the queue alone could fill the step."""
        if len(queue) < 2 or queue[0].num_missing <= budget or not self._can_join(queue):
            return []
        first = queue[0]
        wanted = first.token_ids[: first.num_computed + self.block_size]  # who wants that as well waits and follows
        others = (each for each in queue[1:MAX_SHORT] if each.rank == first.rank)
        others = (each for each in others if each.salt != first.salt or each.token_ids[: len(wanted)] != wanted)
        lacking = {each: self._num_lacking(each) for each in others}
        return sorted(lacking, key=lacking.__getitem__)

    def _can_join(self, queue: list[Request]) -> bool:
        """Whether the first of the waiting has room, so that none behind it takes it away."""
        first = next((each for each in queue if each.id in self.waiting), None)
        return first is None or self._fits(first, self._peek(first), self.running.values())

    def _num_lacking(self, request: Request) -> int:
        """What a request has to compute, as far as the tree can tell."""
        num_known = 0 if request.id in self.running else len(self._peek(request)) * self.block_size
        return request.num_missing - num_known

    def _peek(self, request: Request) -> list[int]:
        """The blocks the tree has for one who waits; the last token is always left to compute, for its logits."""
        return self.tree.peek(request.token_ids[: request.num_tokens - 1], request.salt)

    def _serve(self, plan: Plan, request: Request, budget: int) -> int:
        """Let a request compute as much as it may; returns what it took of the budget."""
        room = int(min(budget, self.courtesy.room(request.rank)))
        if room <= 0 or not (request.id in self.running or self._admit(plan, request)):
            return 0
        num_tokens = self._advance(plan, request, room)
        self.courtesy.see(request.rank)
        self.courtesy.take(request.rank, num_tokens)
        return num_tokens

    def _advance(self, plan: Plan, request: Request, budget: int) -> int:
        """Compute as much of a request as the budget allows; returns what it took of it."""
        self._adopt(request, self._known_blocks(request))
        missing = request.num_missing
        prefix = self._next_block(request) if missing > self.block_size else b""
        if prefix and self._is_read_by_another(plan, prefix):
            return 0
        count = min(missing, budget)
        if count < missing:  # chunks end where blocks end, so that the next one can be followed or shared
            count -= (request.num_computed + count) % self.block_size
        if count <= 0 or not self._grant(plan, request, count):
            return 0
        plan.prefixes.add(prefix)
        return count

    def _grant(self, plan: Plan, request: Request, count: int) -> bool:
        """Find blocks for the next tokens, if need be at the cost of the least urgent; False if it gave way itself."""
        begin = request.num_computed
        end = begin + count
        num_missing = self._num_blocks_for(end) - len(request.block_ids)
        while num_missing > 0:
            block_ids = self._allocate(num_missing, request)
            if block_ids is not None:
                request.block_ids.extend(block_ids)
                break
            victim = max(self.running.values(), key=urgency)
            self._preempt(plan, victim)
            if victim is request:
                return False
        plan.slices[request.id] = Slice(request, begin, end, end == request.num_tokens + request.num_pending)
        return True

    def _allocate(self, count: int, request: Request) -> list[int] | None:
        if count > self.pool.num_free:
            self.tree.evict(count - self.pool.num_free, request.id)
        return self.pool.allocate(count)

    def _admit(self, plan: Plan, request: Request) -> bool:
        """Let one who waits run, if there is room."""
        if plan.is_closed or request.num_pending or (not request.is_awaited and plan.num_put_off == MAX_PUT_OFF):
            return False
        known = self._peek(request)
        staying = [other for other in self.running.values() if other.rank <= request.rank]
        if not self._fits(request, known, staying):
            plan.is_closed = True
            return False
        if not request.is_awaited and self._is_put_off(request, known, staying):
            plan.num_put_off += 1
            return False
        while not self._fits(request, known, self.running.values()):
            self._preempt(plan, max(self.running.values(), key=urgency))
        self._adopt(request, self._known_blocks(request))
        self.running[request.id] = self.waiting.pop(request.id)
        if request.first_scheduled_at is None:
            request.first_scheduled_at = self.fairness.now
            request.eviction = self.tree.eviction(request.token_ids, request.num_computed, request.salt)
        return True

    def _is_put_off(self, request: Request, known: list[int], others: Collection[Request]) -> bool:
        """Whether a newcomer waits, for it would take the room of those who are away; not if there is nothing to do."""
        if not self.running:
            return False
        num_awaited = self.tree.num_awaited(request.rank, request.token_ids, request.salt)
        if not num_awaited or self._fits(request, known, others, num_awaited):
            return False
        return not self.retention.may_break(request.num_tokens - len(known) * self.block_size)

    def _fits(self, request: Request, known: list[int], others: Collection[Request], num_spared: int = 0) -> bool:
        """Whether all its tokens fit beside these others: what they use, have still to read, and a block more each;
        and beside so many blocks that nobody uses.
        """
        if len(others) >= self.config.max_running:
            return False
        num_new = self._num_blocks_for(request.num_tokens) - len(known)
        num_promised = sum(1 + self._num_blocks_for(other.num_tokens) - len(other.block_ids) for other in others)
        return self._num_held(known, others) + num_promised + num_new + num_spared <= self.pool.num_blocks

    def _num_held(self, known: list[int], others: Collection[Request]) -> int:
        """How many blocks these others use, known ones included; of all who run the pool has the count."""
        if len(others) == len(self.running):
            return self.pool.num_used + sum(self.pool.num_users(block_id) == 0 for block_id in known)
        return len(set(known).union(*(other.block_ids for other in others)))

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _known_blocks(self, request: Request) -> list[int]:
        """What the tree has of a request's tokens; the last token is always left to compute, for its logits."""
        if not self.config.prefix_cache or request.num_computed % self.block_size:
            return []
        return self.tree.match(request.token_ids[: request.num_tokens - 1], request.salt, request.session_id)

    def _adopt(self, request: Request, known: list[int]) -> None:
        """Use blocks of the tree beyond what this request has computed."""
        num_own = request.num_computed // self.block_size
        adopted = known[num_own:]
        if not adopted:
            return
        self.pool.release(request.block_ids[num_own:])  # of drafts that came to nothing
        del request.block_ids[num_own:]
        self.pool.use(adopted)
        request.block_ids.extend(adopted)
        request.num_computed = request.num_settled = len(request.block_ids) * self.block_size
        if not request.num_preemptions:  # of the prompt, that is: what is forced after it may be known as well
            request.num_cached = min(request.num_cached + len(adopted) * self.block_size, request.num_prompt)

    def _next_block(self, request: Request) -> bytes:
        """The block this request needs next, with all before it; nothing if others could not use it."""
        if not self.config.prefix_cache or request.num_computed % self.block_size:
            return b""
        return request.salt.encode() + request.token_ids[: request.num_computed + self.block_size].tobytes()

    def _is_read_by_another(self, plan: Plan, prefix: bytes) -> bool:
        """Whether this step or one in flight computes a block already: then whoever needs it waits and follows."""
        return prefix in plan.prefixes or any(prefix in step.prefixes for step in self._flying)

    def _share(self, request: Request) -> None:
        """Put the request's full blocks into the tree; where the tree had them already, use those instead."""
        if not self.config.prefix_cache:
            return
        num_full = request.num_settled // self.block_size
        own = request.block_ids[:num_full].tolist()
        tokens = request.token_ids[: num_full * self.block_size]
        shared = self.tree.insert(tokens, own, request.salt, request.session_id)
        if shared == own:
            return
        for i, (mine, theirs) in enumerate(zip(own, shared, strict=True)):
            if mine != theirs:
                self.pool.use([theirs])
                self.pool.release([mine])
                request.block_ids[i] = theirs

    def _preempt(self, plan: Plan, request: Request) -> None:
        """Back to waiting. What it computed is in the tree, so coming back is cheap unless all the room is needed."""
        plan.slices.pop(request.id, None)
        plan.is_closed = True
        del self.running[request.id]
        self._release(request)
        request.num_preemptions += 1
        request.waiting_since = self.fairness.now
        request.is_awaited = True
        self.num_preemptions += 1
        self.waiting[request.id] = request

    def _release(self, request: Request) -> None:
        self.pool.release(request.block_ids)
        request.block_ids = array("i")
        request.num_computed = request.num_settled = 0
