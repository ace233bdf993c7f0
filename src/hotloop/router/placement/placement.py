"""Keeps what the policies look at: which replica holds which prefix, where each session was, how much each has to do.

Used by the router for real requests and by the simulator for recorded ones; time comes from outside. Bounded.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from cachetools import FIFOCache

from hotloop.core.lru import LruCache
from hotloop.router.placement.index import HASH_BYTES, Match, PrefixIndex
from hotloop.router.placement.policy import PlacementRequest, Policy, PromptDigest, ReplicaChoice, ReplicaView
from hotloop.router.placement.pools import NO_POOLS, PoolRule
from hotloop.router.summary import AnswerSummary

MAX_STARTS = 10_000
"""How many common beginnings of prompts are counted."""
MAX_SESSIONS = 100_000
_MAX_KEY_BYTES = 32 << 20
OUTPUT_COST = 8.0
"""What a token to decode costs, in tokens to prefill."""
LATELY = 1_000
"""After so many requests a replica, what was given before them counts by 1/e."""
_NOTHING_KNOWN = AnswerSummary()
_FADED = math.exp(-1 / LATELY)
ACTIVE_S = 600.0
"""A session that has not come for so long counts no more where it was."""
TOOL_GAP_S = 60.0
"""A session that left to run a tool and is not back by then is not counted on."""
MOVED_TOKENS = 512
"""Where another replica holds so much more of a prompt, the one that is chosen is told."""
SHRINK, GROW = 0.9, 1.001
"""What becomes of the room a replica is thought to have, if it turns out to have lost a prompt and if not."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that was placed; given back when it is over."""

    choice: ReplicaChoice
    prompt: PromptDigest
    work_tokens: float


@dataclass(slots=True)
class _Past:
    """Where a session was last, and all the work it has been; and its last prompt, which its home has cached to the
    end, while keys end with the last whole block."""

    home: str = ""
    work_tokens: float = 0.0
    num_tokens: int = 0
    num_blocks: int = 0


@dataclass(frozen=True, slots=True)
class _Gap:
    """A session that left to run a tool: who waits for it, for how much work, and until when."""

    home: str
    work_tokens: float
    until_s: float


class Placement:
    """Places requests. `block_tokens` is how many tokens a hash of a key stands for."""

    def __init__(self, policy: Policy, *, block_tokens: int, seed: int | None = None) -> None:
        self.policy = policy
        self._block_tokens = block_tokens
        self._index = PrefixIndex()
        self._views: dict[str, ReplicaView] = {}
        self._most_tokens: dict[str, int] = {}
        self._pasts: FIFOCache[str, _Past] = FIFOCache(MAX_SESSIONS)
        self._keys: LruCache[str, bytes] = LruCache(_MAX_KEY_BYTES)
        """Of each session's last prompt."""
        self._gaps: OrderedDict[str, _Gap] = OrderedDict()
        self._seen_at = 0.0
        self._active: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """Where sessions were last, and when; the longest ago first."""
        self._starts: FIFOCache[bytes, int] = FIFOCache(MAX_STARTS)
        self._rng = random.Random(seed)
        self._num_placed = 0

    def add_replica(self, name: str, *, capacity_tokens: int, weight: float = 1.0, pool: str = "") -> None:
        """A replica that has nothing cached yet. It counts as no less busy than the rest, or all would go there."""
        self.remove_replica(name)
        loads = [view.load for view in self._views.values()]
        recent_tokens = weight * sum(loads) / max(1, len(loads))
        self._views[name] = ReplicaView(
            name, recent_tokens=recent_tokens, weight=weight, capacity_tokens=capacity_tokens, pool=pool
        )
        self._most_tokens[name] = capacity_tokens
        self._index.add_replica(name, self._to_blocks(capacity_tokens))
        for number in range(len(self._active) // max(1, len(loads))):  # as many as others have, until they are gone
            self._arrive(f"\0{name}\0{number}", name, self._seen_at)

    def remove_replica(self, name: str) -> None:
        self.retire_replica(name)
        self._index.remove_replica(name)

    def retire_replica(self, name: str) -> None:
        """It is given nothing more, but what it holds may be had from it until it is removed."""
        self._views.pop(name, None)
        self._most_tokens.pop(name, None)
        for session in [session for session, gap in self._gaps.items() if gap.home == name]:
            del self._gaps[session]
        for session in [session for session, (home, _) in self._active.items() if home == name]:
            del self._active[session]

    def forget_replica(self, name: str) -> None:
        """It has lost its cache, as by a restart; its requests are not over for that."""
        view = self._views.get(name)
        if view:
            self._index.remove_replica(name)
            self._index.add_replica(name, self._to_blocks(view.capacity_tokens))
            view.held_tokens = 0

    def sessions_at(self, name: str, most: int) -> list[str]:
        """Those that were last there, the latest first."""
        return [*islice((session for session, (home, _) in reversed(self._active.items()) if home == name), most)]

    def next_home(self, among: Iterable[str]) -> str:
        """Who is to have a session of a replica that goes: the one with the fewest; empty if there is none."""
        views = [self._views[name] for name in among if name in self._views]
        return min(views, key=lambda view: (view.num_sessions / view.weight, view.load)).name if views else ""

    def is_at(self, session: str, name: str) -> bool:
        """Whether it was there last."""
        past = self._pasts.get(session)
        return past is not None and past.home == name

    def hand_on(self, session: str, source: str, name: str) -> None:
        """Another replica has what a session's last one had cached, unless it went elsewhere meanwhile."""
        past, key = self._pasts.get(session), self._keys.find(session)
        if past is None or past.home != source or key is None or name not in self._views:
            return
        past.home = name
        self._index.insert(name, key)
        self._update_held(self._views[name])
        self._arrive(session, name, self._seen_at)

    def place(
        self,
        prompt: PromptDigest,
        *,
        now: float = 0.0,
        among: Collection[str] | None = None,
        known: Mapping[str, int] | None = None,
        pools: PoolRule = NO_POOLS,
    ) -> Ticket | None:
        """Choose a replica for a prompt, and count on it; None if there is none to choose from. `known` is how many
        tokens of the prompt those replicas hold that publish it; for the others it is guessed."""
        views = [view for view in self._views.values() if among is None or view.name in among]
        if not views:
            return None
        if self._num_placed % len(self._views) == 0:  # once for as many requests as there are replicas is enough
            for view in self._views.values():
                view.recent_tokens *= _FADED
        self._end_gap(prompt.session)
        while self._gaps and next(iter(self._gaps.values())).until_s <= now:  # the oldest stand first
            self._end_gap(next(iter(self._gaps)))
        past, match = self._pasts.get(prompt.session), self._index.match(prompt.key)
        placing = PlacementRequest(prompt.num_tokens, prompt.session, self._num_placed, self._rng)
        if past:
            placing.past_tokens = past.work_tokens
        else:
            placing.num_alike = self._count_alike(prompt.key, match)
            placing.past_tokens = prompt.num_tokens if prompt.session or placing.num_alike else 0.0
        matched = self._look(views, match, prompt, known or {})
        self._expire(now)
        choice = self.policy(pools.narrow(views, prompt), placing)
        source = max(matched, key=lambda name: matched[name], default="")
        if source and min(matched[source], prompt.num_tokens) - choice.matched_tokens >= MOVED_TOKENS:
            choice = replace(choice, source=source)
        work_tokens = prompt.num_tokens - choice.matched_tokens + OUTPUT_COST * prompt.num_output
        ticket = Ticket(choice, prompt, work_tokens)
        self._count(ticket, now)
        self._index.insert(choice.name, prompt.key)
        self._update_held(self._views[choice.name])
        return ticket

    def _count_alike(self, key: bytes, match: Match) -> int:
        """How many began before as this one does; 0 if it is not new: what is known of a conversation that goes on ends
        where nobody has gone on yet."""
        end = match.num_blocks * HASH_BYTES
        if not end or not (match.num_branches or end == len(key)):
            return 0
        mark = key[end - HASH_BYTES : end]
        num_alike = self._starts[mark] = self._starts.get(mark, 0) + 1
        return num_alike

    def note_elsewhere(self, name: str, num_requests: int) -> None:
        """A replica has requests from others, too; each is taken for one of ours."""
        running = [view for view in self._views.values() if view.num_running]
        num_running = sum(view.num_running for view in running)
        mean_tokens = sum(view.work_tokens for view in running) / num_running if num_running else 0.0
        self._views[name].elsewhere_tokens = num_requests * mean_tokens

    def begin(self, ticket: Ticket) -> None:
        """The first token of an answer is there, so the prompt is prefilled: nobody waits for that any more."""
        self._reduce(ticket, min(ticket.work_tokens, OUTPUT_COST * ticket.prompt.num_output))

    def correct(self, ticket: Ticket, num_cached: int) -> None:
        """A replica says how much of a prompt it had cached. Where it had evicted half of what we counted on, all that
        was used longer ago is gone as well: it has less room than we thought. Room comes back with each hit."""
        view = self._views.get(ticket.choice.name)
        num_believed = ticket.choice.matched_tokens
        if view is None or not num_believed:
            return
        view.recent_tokens += max(0, num_believed - num_cached)
        if num_cached < num_believed / 2:
            room = max(SHRINK * min(view.capacity_tokens, view.held_tokens), ticket.prompt.num_tokens)
        else:
            room = GROW * view.capacity_tokens
        view.capacity_tokens = min(int(room), self._most_tokens[view.name])
        self._index.resize(view.name, self._to_blocks(view.capacity_tokens))
        self._update_held(view)

    def finish(self, ticket: Ticket, answer: AnswerSummary = _NOTHING_KNOWN, *, now: float = 0.0) -> None:
        """A request that was placed is over, however it ended. After a tool call the session comes back on its own:
        until then its replica counts on as much work as the answer was."""
        view = self._views.get(ticket.choice.name)
        if view is None:
            return
        if (share := answer.cached_share) is not None:
            self.correct(ticket, int(share * ticket.prompt.num_tokens))
        view.num_running = max(0, view.num_running - 1)
        self._reduce(ticket, 0.0)
        num_written = ticket.prompt.num_output if answer.num_output is None else answer.num_output
        view.recent_tokens = max(0.0, view.recent_tokens + OUTPUT_COST * (num_written - ticket.prompt.num_output))
        if answer.has_calls and ticket.prompt.session:
            gap = _Gap(view.name, OUTPUT_COST * num_written, now + TOOL_GAP_S)
            self._end_gap(ticket.prompt.session)
            self._gaps[ticket.prompt.session] = gap
            view.returning_tokens += gap.work_tokens

    def check(self) -> None:
        self._index.check()
        for view in self._views.values():
            assert view.work_tokens >= 0
            assert view.held_tokens == self._index.num_blocks(view.name) * self._block_tokens
            awaited = sum(gap.work_tokens for gap in self._gaps.values() if gap.home == view.name)
            assert view.num_sessions == sum(home == view.name for home, _ in self._active.values())
            assert math.isclose(view.returning_tokens, awaited, abs_tol=1e-3)

    def _arrive(self, session: str, home: str, now: float) -> None:
        if session in self._active:
            self._leave(session)
        elif len(self._active) >= MAX_SESSIONS:
            self._leave(next(iter(self._active)))
        self._active[session] = home, now
        self._views[home].num_sessions += 1

    def _expire(self, now: float) -> None:
        self._seen_at = now
        while self._active and (oldest := next(iter(self._active.items())))[1][1] < now - ACTIVE_S:
            self._leave(oldest[0])

    def _leave(self, session: str) -> None:
        home, _ = self._active.pop(session)
        self._views[home].num_sessions -= 1

    def _count(self, ticket: Ticket, now: float) -> None:
        self._num_placed += 1
        view = self._views[ticket.choice.name]
        view.work_tokens += ticket.work_tokens
        view.recent_tokens += ticket.work_tokens
        view.num_running += 1
        prompt = ticket.prompt
        if prompt.session:
            past = self._pasts[prompt.session] = self._pasts.get(prompt.session) or _Past()
            past.home = view.name
            past.work_tokens += ticket.work_tokens
            past.num_tokens, past.num_blocks = prompt.num_tokens, len(prompt.key) // HASH_BYTES
            self._keys.put(prompt.session, prompt.key, len(prompt.key) + len(prompt.session))
            self._arrive(prompt.session, view.name, now)

    def _reduce(self, ticket: Ticket, work_tokens: float) -> None:
        view = self._views.get(ticket.choice.name)
        if view:
            view.work_tokens = max(0.0, view.work_tokens + work_tokens - ticket.work_tokens)
        ticket.work_tokens = work_tokens

    def _look(
        self, views: Iterable[ReplicaView], match: Match, prompt: PromptDigest, known: Mapping[str, int]
    ) -> dict[str, int]:
        """How many tokens each replica holds, be it one to choose from or not."""
        matched = {name: num_blocks * self._block_tokens for name, num_blocks in match.blocks.items()}
        past = self._pasts.get(prompt.session)
        home = past.home if past else ""
        if past and home in matched and match.blocks[home] >= past.num_blocks:
            matched[home] = max(matched[home], past.num_tokens)
        matched.update(known)
        for view in views:
            view.matched_tokens = min(matched.get(view.name, 0), prompt.num_tokens)
            view.is_home = view.name == home
        return matched

    def _end_gap(self, session: str) -> None:
        gap = self._gaps.pop(session, None)
        if gap:
            view = self._views[gap.home]  # those of a replica that is gone went with it
            view.returning_tokens = max(0.0, view.returning_tokens - gap.work_tokens)

    def _update_held(self, view: ReplicaView) -> None:
        view.held_tokens = self._index.num_blocks(view.name) * self._block_tokens

    def _to_blocks(self, num_tokens: int) -> int:
        return max(1, num_tokens // self._block_tokens)
