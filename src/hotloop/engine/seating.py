"""Sessions in the tree: whose request this is, how much of it is its own, and what goes with a seat that is lost.

Between `Admission`, which knows numbers, and the tree, which knows tokens.
"""

from array import array
from collections.abc import Iterable

from hotloop.core.request import FinishReason, Request, Wait
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.admission import Admission, Session
from hotloop.engine.radix import RadixTree

WAIT_S = 60.0
RETRY_S = 0.1  # until it is seen again whether there is a seat


class Seating:
    """Told of every request that comes, is let in and ends."""

    def __init__(self, tree: RadixTree, admission: Admission, block_size: int) -> None:
        self.tree = tree
        self.admission = admission
        self._block_size = block_size
        self._sizes: dict[str, int] = {}  # of newcomers who had no seat when they were looked at

    def arrive(self, request: Request) -> None:
        """Whether it is awaited; if so, its prefix is not given up while it waits for a place."""
        is_seated = self.admission.arrive(request)
        request.is_awaited = is_seated or self.tree.is_awaited(request.token_ids, request.salt)
        if request.is_awaited:
            self.keep(request)

    def keep(self, request: Request) -> None:
        """What the tree has of a request is kept until it is let in."""
        hold = Hold(HoldKind.TOOL_GAP, self.tree.retention.now + WAIT_S, WAIT_S, rank=request.priority)
        self.tree.hold(request.token_ids, hold, request.salt)

    def may_begin(self, request: Request) -> bool:
        """Whether there is a seat for the session of one who is not awaited."""
        size = self._sizes.get(request.id) or self._sizes.setdefault(request.id, self._size(request))
        may_enter = self.admission.may_enter(request, size, self._num_shared(), self.tree.retention.token_s)
        self._let_go(self.admission.take_lost())
        if not may_enter:
            is_room = self.admission.has_room(size, self._num_shared())
            request.wait_for(Wait.SESSIONS if is_room else Wait.ROOM, self.admission.now)
            if not self.admission.has_waited_long(request):
                request.retry_at = self.admission.now + RETRY_S
        return may_enter

    def begin(self, request: Request) -> None:
        request.wait_for(Wait.TURN, self.admission.now)
        self._sizes.pop(request.id, None)
        self.admission.enter(request, self._size(request))
        self._let_go(self.admission.swap_out(self._num_shared()))

    def end(self, request: Request, reason: FinishReason, turnover_s: float, *, is_waiting: bool = False) -> None:
        """A request has ended, and its session may come back; if it only waited, nothing is kept for it any more."""
        self._sizes.pop(request.id, None)
        is_answered = reason in (FinishReason.STOP, FinishReason.LENGTH)
        wait_s = self.admission.leave(request, turnover_s, is_answered=is_answered)
        if wait_s:
            until = self.tree.retention.now + wait_s
            self.tree.hold(request.token_ids, Hold(HoldKind.TOOL_GAP, until, rank=request.rank), request.salt)
        elif request.is_awaited and is_waiting:
            self.tree.match(request.token_ids, request.salt)

    def hold(self, token_ids: "array[int]", hold: Hold, salt: str, line: str) -> None:
        """Somebody says when the known part of a prefix, of that session, is wanted again."""
        self.tree.hold(token_ids, hold, salt)
        self.admission.expect(line, hold)

    def _size(self, request: Request) -> int:
        """How many of its tokens no other session has."""
        along = self.tree.trace(request.token_ids, request.salt)
        num_others = sum(num_blocks for node, num_blocks in along if node.session != request.line)
        return request.num_tokens - num_others * self._block_size

    def _num_shared(self) -> int:
        return self.tree.num_owned[None] * self._block_size

    def _let_go(self, sessions: Iterable[Session]) -> None:
        """What was kept for those who have lost their seats goes first."""
        for session in sessions:
            for token_ids, salt in session.tails:
                self.tree.hold(token_ids, Hold(HoldKind.FINISHED), salt)
            session.tails.clear()
