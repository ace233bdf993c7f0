"""Who computes what in the next step. Integers only: no tensor, no text, no clock of its own.

One rule: a request's computed tokens catch up with its tokens. `advance` moves the counts when a step is launched,
`settle` shares what it computed once the values are there. A step first gives every decoding request its next token,
then prefills within `PrefillBudget`, the shortest remaining first (`PromptOrder`). Requests adopt what the prefix tree
has, so of many with the same prompt one computes it and the others follow.

It never stands still: the most urgent of the running is never preempted, a request that fits the pool alone can
finish, and where nothing runs no session waits to be admitted (`Admission`).
"""

import math
from array import array
from collections import Counter, deque
from collections.abc import Collection, Sequence
from heapq import merge
from operator import attrgetter

from hotloop.core.config import EngineConfig
from hotloop.core.request import FinishReason, Priority, Request, Wait
from hotloop.engine.kvcache.blocks import BlockPool, Fetcher, HostCache
from hotloop.engine.kvcache.changes import Change
from hotloop.engine.kvcache.full_attention import FullAttentionCache
from hotloop.engine.kvcache.radix import RadixTree
from hotloop.engine.kvcache.recurrent import StateCache
from hotloop.engine.kvcache.retention import Retention
from hotloop.engine.kvcache.sliding_window import SlidingWindowCache
from hotloop.engine.kvcache.slots import StateSlots, WindowSlots
from hotloop.engine.scheduler.fairness import Fairness, urgency
from hotloop.engine.scheduler.prefill_budget import PrefillBudget
from hotloop.engine.scheduler.prompt_order import PromptOrder
from hotloop.engine.sessions.admission import Admission
from hotloop.engine.sessions.sessions import Sessions
from hotloop.engine.step import Slice, Step, StepPlan

CHARGED = 16  # tokens of an answer that its session is charged for at a time
MAX_ORDERED = 16  # so many of the queue are put in the order of what they lack
MAX_DEFERRED = 8  # so many new sessions in a step are found not to be admitted; then no other is tried


class Scheduler:
    """Owns the waiting, the running, and the blocks they use."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        block_size: int,
        num_blocks: int,
        step_tokens: int = 512,
        max_running: int = 64,
        max_solo_prefill: float = math.inf,
        step_sizes: Sequence[int] = (),
        changes: list[Change] | None = None,
        host: HostCache | None = None,
        num_states: int = 0,
        windows: WindowSlots | None = None,
    ) -> None:
        self.config = config
        self.max_step_tokens = config.max_step_tokens or step_tokens
        self._step_sizes = step_sizes
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.retention = Retention(int(config.pinned_fraction * num_blocks), is_on=config.retention)
        states = StateSlots(num_states, host)
        self.tree = RadixTree(self.pool, block_size, self.retention, changes, host, states, windows)
        kind = StateCache if num_states else SlidingWindowCache if windows else FullAttentionCache
        self.states = kind(self.tree, block_size, keeps=config.prefix_cache)
        most = config.max_running or max_running
        self.max_running = min(most, num_states or most)
        self.host: Fetcher | None = None
        self.copying: list[list[int]] = []  # blocks that copies under way use
        self.fairness = Fairness(config)
        num_tokens = (num_blocks + self.tree.host_pool.num_blocks) * block_size
        self.admission = Admission(num_tokens, block_size, is_on=config.admission and config.prefix_cache)
        self.sessions = Sessions(self.tree, self.admission, block_size)
        self.budget = PrefillBudget(
            self.retention.token_s,
            max(block_size, self.max_step_tokens // 64),
            max_solo_prefill,
            config.class_limits,
        )
        self._order = PromptOrder(self.budget, self.max_step_tokens)
        self.waiting: dict[str, Request] = {}
        self.running: dict[str, Request] = {}
        self.num_preemptions = 0
        self._flying: deque[Step] = deque()

    @property
    def has_work(self) -> bool:
        """Whether anyone runs, or waits for nothing but its turn."""
        return bool(self.running) or not all(each.is_loading for each in self.waiting.values())

    @property
    def cache_refill_s(self) -> float:
        """How long it takes, lately, to prefill as many tokens as the cache holds, host memory included."""
        return self.retention.token_s * self.admission.num_tokens

    def compute_s(self, num_blocks: int) -> float:
        """How long it takes, lately, to prefill so many blocks."""
        return num_blocks * self.block_size * self.retention.token_s

    def limit_classes(self, config: EngineConfig) -> None:
        self.fairness.limit(config)
        self.budget.limit(config.class_limits)

    def add(self, request: Request) -> None:
        assert self.states.num_blocks_for(request.num_tokens) <= self.pool.num_blocks, "it could never run"
        request.is_serial = request.is_guided or request.sampling.has_penalties
        self.sessions.arrive(request)
        self.states.arrive(request)
        self.waiting[request.id] = request

    def schedule(self, now: float) -> Step:
        """The next step; empty if there is nothing to do, or a request needs the values of a step in flight for it."""
        running = self.running.values()
        if self._flying and any(each.num_pending and (each.is_serial or each.has_draft) for each in running):
            return Step()
        self.fairness.begin_step(now, is_busy=bool(self.running))
        self.retention.now = self.admission.now = now
        self.budget.hold(now, running, (each for each in self.waiting.values() if self._may_begin(each)))
        plan = self._plan()
        if not plan.slices and self.budget.are_held:
            self.budget.release()  # whom they were held for was not let in
            plan = self._plan()
        return self._make_step(plan)

    def extend(self, part: Slice, draft_ids: list[int], match_lengths: list[int | None]) -> None:
        """Let a slice compute guesses as well, as far as there are blocks: nothing is preempted for a draft."""
        request = part.request
        num_new_blocks = self.states.num_new_blocks(request, part.end + len(draft_ids))
        request.block_ids.extend(self.states.allocate(request, num_new_blocks) or ())
        room = len(request.block_ids) * self.block_size - part.end if self.states.branch(part) else 0
        part.draft_ids, part.match_lengths = draft_ids[:room], match_lengths[:room]

    def advance(self, step: Step) -> None:
        self._flying.append(step)
        self.states.launch(step.slices)
        num_rows = 0
        for part in step.slices:
            request = part.request
            begin, end = part.begin, part.end
            if request.root and (end - begin > 1 or end % CHARGED == 0):
                # one without counts as a session of its own, which has had nothing yet
                self.fairness.charge(request, end - begin if end - begin > 1 else CHARGED)
            request.num_computed = end
            part.epoch = request.num_preemptions
            if part.wants_token:
                request.num_pending += 1
                request.pending_row = part.first_row = num_rows
                num_rows += 1 + len(part.draft_ids)

    def settle(self, step: Step, now: float, took_s: float) -> None:
        """The step was computed, and the requests have the tokens that were chosen after it."""
        assert self._flying.popleft() is step
        self.retention.now = now
        if took_s > 0 and (num_prefilled := self.budget.learn(step.slices, took_s)):
            self.retention.learn(num_prefilled, max(0.0, took_s - self.budget.plain_s))
        for part in step.slices:
            request = part.request
            request.num_pending -= part.wants_token
            if part.error or not part.is_kept or not self.states.accept(part):
                continue
            request.num_computed += part.num_accepted
            num_settled = part.end + part.num_accepted
            if num_settled > request.num_settled:
                request.num_settled = num_settled
            if request.num_settled // self.block_size > part.begin // self.block_size:
                self.states.share(request)
                self.states.settle(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Take a request out, wherever it is; its place in the tree is not taken before its caller could ask for it."""
        request.finish_reason = reason
        request.num_computed_at_end = request.num_settled
        self.states.release(request, is_valid=reason is not FinishReason.ERROR)
        self.sessions.end(request, reason, self.cache_refill_s, is_waiting=request.id in self.waiting)
        del (self.running if request.id in self.running else self.waiting)[request.id]

    def fail(self, request: Request) -> None:
        """Take out a request whose computation came to nothing, and what it computed, unless others use that."""
        self.finish(request, FinishReason.ERROR)
        self.tree.forget(request.token_ids, request.salt)

    def reset(self, step: Step | None = None) -> list[Request]:
        """Trust nothing that was computed, after a failed step. Returns the requests that are lost: those who ran or,
        if none did, those who wait, so that what fails for ever does not fail for ever; and who was in that step.
        """
        given_way = {part.request.id for part in step.slices} if step else set()
        waiting = [
            each for each in self.waiting.values() if each.id in given_way or not (self.running or each.is_loading)
        ]
        lost = [*self.running.values(), *waiting]
        for request in lost:
            request.block_ids, request.finish_reason = array("i"), FinishReason.ERROR
            self.sessions.end(request, FinishReason.ERROR, self.cache_refill_s)
            self.waiting.pop(request.id, None)
        self.running.clear()
        for request in self.waiting.values():
            request.num_pending = 0
        self._flying.clear()
        self.tree = self.sessions.tree = self.tree.emptied()
        self.pool = self.tree.pool
        self.states = type(self.states)(self.tree, self.block_size, keeps=self.config.prefix_cache)
        return lost

    def check(self) -> None:
        self.tree.check()
        self.admission.check()
        users = Counter(block_id for block_ids in self.copying for block_id in block_ids)
        for request in self.running.values():
            assert request.id not in self.waiting
            assert request.num_settled <= request.num_computed < request.num_tokens + request.num_pending
            assert request.num_pending <= len(self._flying)
            assert len(request.block_ids) * self.block_size >= request.num_computed
            assert not request.is_loading
            users.update(request.block_ids)
        assert all(not request.block_ids for request in self.waiting.values())
        self.pool.check(users)
        self.states.check(self.running.values())

    def _may_begin(self, request: Request) -> bool:
        """Whether it waits for nothing but its turn, as far as is known."""
        return request.waits_for is Wait.TURN and request.retry_at <= self.fairness.now and not request.is_loading

    def _plan(self) -> StepPlan:
        plan = StepPlan()
        behind = self._decode(plan)
        self._expect(plan)
        queue = self._queue(behind)
        if queue:
            self._compute_prompts(plan, queue)
        else:
            self.budget.rest()
        return plan

    def _decode(self, plan: StepPlan) -> list[Request]:
        """The next token of all who decode, but for guests that are held; returns who lacks more than that."""
        behind, are_held = [], self.budget.are_held
        for request in [*self.running.values()]:
            num_tokens = len(request.token_ids) + request.num_pending
            if request.num_pending and request.is_about_to_end:
                continue
            missing = num_tokens - request.num_computed
            if missing > (self.block_size if request.num_computed >= len(request.prompt_ids) else 1):
                behind.append(request)
            elif are_held and request.rank:
                continue
            elif missing == 1 and num_tokens <= len(request.block_ids) * self.block_size and request.id in self.running:
                plan.slices[request.id] = Slice(request, request.num_computed, num_tokens, wants_token=True)
            elif request.id in self.running:  # it may have given way to one before it
                self._grant(plan, request, self.states.cut(request, missing))
        return behind

    def _compute_prompts(self, plan: StepPlan, queue: list[Request]) -> None:
        plan.num_decoding = sum([part.end - part.begin for part in plan.slices.values()])
        plan.num_left = max(self.block_size, self.max_step_tokens - plan.num_decoding)
        prompts = [each for each in queue if each.waits_for is Wait.TURN]  # others may have no place for long
        lacking = {each: self._num_uncached(each) for each in prompts[:MAX_ORDERED]}
        can_join = self._can_join(queue)
        able = {each: num for each, num in lacking.items() if can_join or each.id in self.running}
        self._begin_budget([part.request.rank for part in plan.slices.values()], len(prompts), able)
        waiting = self._less_urgent()
        num_due = sum(map(self.fairness.is_due, waiting))
        num_reserved = min(plan.num_left // 2 // self.budget.least, num_due) * self.budget.least
        plan.num_left -= num_reserved
        self._prefill(plan, queue, able)
        plan.num_left += num_reserved
        for request in waiting:
            self._expect(plan)  # with who was served before it
            if self.fairness.is_due(request) and request.id not in plan.slices:
                self._serve(plan, request, is_due=True)
        first = plan.slices.get(queue[0].id)
        self._order.settle(plan.num_prefilled, first.num_tokens if first else 0)

    def _expect(self, plan: StepPlan) -> None:
        """The next step begins when this one ends, as it is planned so far, or later."""
        if self.waiting:
            self.fairness.step_s = max(self.fairness.step_s, self.budget.step_s([*plan.slices.values()]))

    def _make_step(self, plan: StepPlan) -> Step:
        slices = list(plan.slices.values())
        self.states.assign(slices)
        return Step(slices, plan.prefixes)

    def _queue(self, behind: list[Request]) -> list[Request]:
        """Who lacks more than a token, and who may join: by class, and in it those first who run already."""
        now = self.fairness.now if self.running else math.inf
        waiting = [each for each in self.waiting.values() if each.retry_at <= now and not each.is_loading]
        joining = self.fairness.order(waiting, self.running.values()) if waiting else []
        queue = merge(sorted(behind, key=urgency), joining, key=attrgetter("arrived_at"))
        return sorted(queue, key=attrgetter("rank"))

    def _less_urgent(self) -> list[Request]:
        """Who waits in a class that gives way to another, those first who are due first. Who is due begins now, if
        there is room, whatever its class's share and whoever is before it."""
        now = self.fairness.now if self.running else math.inf
        waiting = (each for each in self.waiting.values() if each.priority and each.retry_at <= now)
        return sorted((each for each in waiting if not each.is_loading), key=self.fairness.due_at)

    def _prefill(self, plan: StepPlan, queue: list[Request], lacking: dict[Request, int]) -> None:
        first_s: list[float] = []  # what the rests of those take whose first tokens come of this step
        for i, request in enumerate(self._order.sort(queue, lacking)):
            rest_s = self.budget.rest_s(request, lacking.get(request, request.num_uncomputed))
            num_short = sum(2 * each < rest_s for each in first_s)
            if num_short and self.budget.is_worth_a_step(request, plan.num_left, num_short, len(queue) - i):
                break  # no first token waits for the prefill of one that lacks much more
            self._serve(plan, request)
            part = plan.slices.get(request.id)
            if part and part.wants_token:
                first_s.append(rest_s)

    def _begin_budget(self, decoding: list[int], num_prompts: int, lacking: dict[Request, int]) -> None:
        prefills = [(each.rank, self.budget.rest_s(each, num)) for each, num in lacking.items()]
        lead = min((each.rank for each in self.running.values()), default=len(Priority))
        self.budget.begin(self.fairness.now, decoding, prefills, num_prompts, lead)

    def _can_join(self, queue: list[Request]) -> bool:
        """Whether the first of the waiting has room, so that none behind it takes it away."""
        first = next((each for each in queue if each.id in self.waiting), None)
        return first is None or self._fits(first, self.states.peek(first), self.running.values())

    def _num_uncached(self, request: Request) -> int:
        """What a request has to compute, as far as the tree can tell."""
        if request.id in self.running:
            return request.num_uncomputed
        return request.num_uncomputed - self.states.num_reachable(request) * self.block_size

    def _serve(self, plan: StepPlan, request: Request, *, is_due: bool = False) -> None:
        """Let a request compute as much as it may; one that is due the least that is worth a step."""
        room = min(plan.num_left, self.budget.least_for(request.rank)) if is_due else plan.num_left
        if room <= 0 or not (is_due or self.budget.has_room(request.rank)):
            return
        is_worth_it = is_due or room >= min(self.block_size, request.num_uncomputed)  # to be admitted: to share a block
        if request.id not in self.running and not (is_worth_it and self._try_admit(plan, request)):
            return
        num_tokens = self._advance(plan, request, room, is_due=is_due)
        plan.num_left -= num_tokens
        plan.num_prefilled += num_tokens
        self.budget.take(request.rank, request.num_computed, num_tokens)

    def _try_admit(self, plan: StepPlan, request: Request) -> bool:
        """It has waited for its turn until now: what it waits for from here on is room."""
        if request.turn_wait_s is None:
            request.turn_wait_s = max(0.0, self.fairness.now - request.arrived_at)
        if self._is_root_full(request):
            request.wait_for(Wait.BATCH, self.fairness.now)
            return False
        return self._admit(plan, request)

    def _is_root_full(self, request: Request) -> bool:
        """Whether as many requests run as may for the session that this is done for, with all its sub-agents."""
        most = self.config.max_running_per_root
        if most is None or not request.root:
            return False
        return sum(each.root == request.root for each in self.running.values()) >= most

    def _advance(self, plan: StepPlan, request: Request, budget: int, *, is_due: bool) -> int:
        """Compute as much of a request as the budget allows; returns what it took of it."""
        self.states.adopt(request)
        missing = request.num_uncomputed
        prefix = self.states.next_block(request) if missing > self.block_size else b""
        computed = (plan.prefixes, *(step.prefixes for step in self._flying))
        if prefix and self.states.is_coming(request, prefix, computed):
            return 0  # another computes it: wait and follow
        count = int(min(missing, budget, self.budget.num_tokens(request.rank, request.num_computed)))
        if is_due or not plan.num_prefilled:  # every step that prefills advances at least one request
            count = min(missing, budget, max(count, self.budget.least_for(request.rank)))
        if count < missing:
            count = self._chunk(plan, request, count)
        count = self.states.cut(request, count)
        if count <= 0 or not self._grant(plan, request, count):
            return 0
        plan.prefixes.add(prefix)
        return count

    def _chunk(self, plan: StepPlan, request: Request, count: int) -> int:
        """So many tokens or somewhat fewer: chunks end where blocks end, so that the next one can be followed or
        shared, unless that would leave rows unused that the step is padded to.
        """
        num_rows = plan.num_decoding + plan.num_prefilled
        aligned = count - (request.num_computed + count) % self.block_size
        sizes = (size - num_rows for size in self._step_sizes if num_rows <= size <= num_rows + count)
        counts = aligned, max(sizes, default=aligned)
        if max(counts) <= 0 and self.budget.least_for(request.rank) == 1:
            return count
        return max(counts, key=lambda each: (num_rows + each) / self._num_padded(num_rows + each))

    def _num_padded(self, num_rows: int) -> int:
        return next((size for size in self._step_sizes if size >= num_rows), num_rows) or 1

    def _grant(self, plan: StepPlan, request: Request, count: int) -> bool:
        """Find blocks for the next tokens, if need be at the cost of the least urgent; False if it gave way itself."""
        begin = request.num_computed
        end = begin + count
        num_new_blocks = self.states.num_new_blocks(request, end)
        while (block_ids := self.states.allocate(request, num_new_blocks)) is None:
            victim = max(self.running.values(), key=urgency)
            self._preempt(plan, victim)
            if victim is request:
                return False
        request.block_ids.extend(block_ids)
        plan.slices[request.id] = Slice(request, begin, end, end == request.num_tokens + request.num_pending)
        return True

    def _admit(self, plan: StepPlan, request: Request) -> bool:
        if plan.is_closed or request.num_pending or (not request.has_held_prefix and plan.num_deferred == MAX_DEFERRED):
            return False
        if self.host and self.host.is_coming(request):
            return False
        if not request.has_held_prefix and self.running and not self.sessions.may_begin(request):
            plan.num_deferred = MAX_DEFERRED if self.admission.has_waited_long(request) else plan.num_deferred + 1
            return False
        known = self.states.peek(request)
        staying = [other for other in self.running.values() if other.rank <= request.rank]
        if not self._fits(request, known, staying):
            is_full = len(staying) >= self.max_running
            request.wait_for(Wait.BATCH if is_full else Wait.KV_BLOCKS, self.fairness.now)
            plan.is_closed = True
            return False
        while not self._fits(request, known, self.running.values()):
            self._preempt(plan, max(self.running.values(), key=urgency))
        if self.host and self.host.fetch(request):
            return False
        if not self.states.begin(request, self.waiting.values()):
            request.wait_for(Wait.KV_BLOCKS, self.fairness.now)
            plan.is_closed = True
            return False
        self.sessions.begin(request)
        self.states.adopt(request)
        self.running[request.id] = self.waiting.pop(request.id)
        if request.first_scheduled_at is None:
            request.first_scheduled_at = self.fairness.now
            request.eviction = self.states.eviction(request)
        return True

    def _fits(self, request: Request, known: list[int], others: Collection[Request]) -> bool:
        """Whether all its tokens fit beside these others: what they use, have to prefill, and a block more each."""
        if len(others) >= self.max_running or not self.states.has_room(len(others) + 1):
            return False
        num_new = self.states.num_blocks_for(request.num_tokens) - len(known)
        num_promised = sum(1 + self.states.num_blocks_for(other.num_tokens) - len(other.block_ids) for other in others)
        return self._num_held(known, others) + num_promised + num_new <= self.pool.num_blocks

    def _num_held(self, known: list[int], others: Collection[Request]) -> int:
        """How many blocks these others use, known ones included; of all who run the pool has the count."""
        if len(others) == len(self.running):
            return self.pool.num_used + sum(self.pool.num_users[block_id] == 0 for block_id in known)
        return len(set(known).union(*self.copying, *(other.block_ids for other in others)))

    def _preempt(self, plan: StepPlan, request: Request) -> None:
        """Back to waiting. What it computed is in the tree, so coming back is cheap unless all the room is needed."""
        plan.slices.pop(request.id, None)
        plan.is_closed = True
        del self.running[request.id]
        self.states.release(request)
        request.num_preemptions += 1
        request.waiting_since = request.waits_from = self.fairness.now
        request.has_held_prefix = True
        self.num_preemptions += 1
        self.waiting[request.id] = request
