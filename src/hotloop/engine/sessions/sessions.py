"""Sessions and the tree: which one a request is of, how much of its prompt is its own, and what is released with it.

Between `Admission`, which knows numbers, and the tree, which knows tokens.
"""

from array import array
from collections.abc import Iterable

from hotloop.core.request import FinishReason, Request, Wait
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.kvcache.radix import RadixTree
from hotloop.engine.sessions.admission import Admission, Session
from hotloop.engine.sessions.tree import SessionTree

WAIT_S = 60.0
RETRY_S = 0.1  # until it is seen again whether its session is admitted


class Sessions:
    def __init__(self, tree: RadixTree, admission: Admission, block_size: int) -> None:
        self.tree = tree
        self.admission = admission
        self.names = SessionTree()
        self._block_size = block_size
        self._sizes: dict[str, int] = {}  # of new sessions that were not admitted when they were looked at

    def arrive(self, request: Request) -> None:
        """Whether it is awaited; if so, its prefix is not given up while it waits for a place."""
        request.root = self.names.add(request.session_id, request.parent_id)
        is_admitted = self.admission.arrive(request)
        request.has_held_prefix = is_admitted or self.tree.has_held_prefix(request.token_ids, request.salt)
        if request.has_held_prefix:
            self.keep(request)

    def keep(self, request: Request) -> None:
        """What the tree has of a request is kept until it is let in."""
        hold = Hold(HoldKind.TOOL_GAP, self.tree.retention.now + WAIT_S, WAIT_S, rank=request.priority)
        self.tree.hold(request.token_ids, hold, request.salt)

    def may_begin(self, request: Request) -> bool:
        """Whether the session of a request without a held prefix is admitted."""
        size = self._sizes.get(request.id) or self._sizes.setdefault(request.id, self._size(request))
        may_enter = self.admission.may_enter(request, size, self._num_shared(), self.tree.retention.token_s)
        self._release(self.admission.take_lost())
        if not may_enter:
            is_room = self.admission.has_room(size, self._num_shared())
            request.wait_for(Wait.SESSIONS if is_room else Wait.KV_BLOCKS, self.admission.now)
            if not self.admission.has_waited_long(request):
                request.retry_at = self.admission.now + RETRY_S
        return may_enter

    def begin(self, request: Request) -> None:
        request.wait_for(Wait.TURN, self.admission.now)
        self._sizes.pop(request.id, None)
        self.admission.enter(request, self._size(request))
        self._release(self.admission.swap_out(self._num_shared()))

    def end(self, request: Request, reason: FinishReason, cache_refill_s: float, *, is_waiting: bool = False) -> None:
        """A request has ended, and its session may come back; if it only waited, nothing is kept for it any more."""
        self._sizes.pop(request.id, None)
        is_answered = reason in (FinishReason.STOP, FinishReason.LENGTH)
        wait_s = self.admission.leave(request, cache_refill_s, is_answered=is_answered)
        if wait_s:
            until = self.tree.retention.now + wait_s
            self.tree.hold(request.token_ids, Hold(HoldKind.TOOL_GAP, until, rank=request.rank), request.salt)
        elif request.has_held_prefix and is_waiting:
            self.tree.match(request.token_ids, request.salt)

    def hold(self, token_ids: "array[int]", hold: Hold, salt: str, session: str) -> None:
        """Somebody says when the known part of a prefix, of that session, is wanted again."""
        self.tree.hold(token_ids, hold, salt)
        self.admission.expect(session, hold)

    def close(self, name: str) -> int:
        """A session is over, with all that work for it: what the cache has of theirs alone is free at once. Returns how
        many blocks are. One that still has requests goes on."""
        num_free = self.tree.pool.num_free
        for each in self.names.below(name):
            self.names.forget(each)
            if self.admission.close(each):
                self.tree.release(each)
        return self.tree.pool.num_free - num_free

    def _size(self, request: Request) -> int:
        """How many of its tokens no other session has."""
        along = self.tree.trace(request.token_ids, request.salt)
        num_others = sum(num_blocks for node, num_blocks in along if node.session != request.session)
        return request.num_tokens - num_others * self._block_size

    def _num_shared(self) -> int:
        return self.tree.num_owned[None] * self._block_size

    def _release(self, sessions: Iterable[Session]) -> None:
        """What was kept for sessions that are no longer admitted goes first."""
        for session in sessions:
            for token_ids, salt in session.tails:
                self.tree.hold(token_ids, Hold(HoldKind.FINISHED), salt)
            session.tails.clear()
