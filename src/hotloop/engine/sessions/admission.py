"""Which sessions are served at a time, so that each finds its prefix when it comes back. Numbers only.

A session is known by its name, or by a prompt that continues one of its own (`SessionIndex`). It is admitted with its
first request, and stays so until it has been idle after an answer for longer than usual. The admitted sessions, and
what they are going to grow by, fit the cache in all its tiers together:

    [ shared by several | admitted | admitted | admitted ......... | their growth, a few turns ahead | new one? ]

A new session that does not fit waits until another is over. One that has waited long displaces the session that had
most turns, and that one waits: better one session recomputes all of its prompt than many a part of theirs. If the
admitted sessions outgrow the cache, the last to come is displaced.
"""

import math
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from hotloop.core.request import Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.kvcache.tool_gaps import MAX_S, USUAL_S, best_wait_s
from hotloop.engine.sessions.index import PREFIX, SessionIndex

NUM_AHEAD = 8  # turns that there is to be room for
PATIENCE = 1.5  # times as long as it pays to wait, until a session is over
MAX_WAIT_S = 120.0  # to be admitted, until another session may be displaced
SWAP_SHARE = 0.1  # of the time may be spent on recomputing what had to make room
MAX_SWAP_S = 30.0  # from one session displaced to the next, if others wait as long

_MAX_SESSIONS = 4096
_MAX_OWN, _MAX_RECENT = 8, 32  # times that were taken to come back
_LEARNING_RATE = 0.1


@dataclass(slots=True, eq=False)
class Session:
    """What is known of one, admitted or not."""

    name: str
    rank: int = 0
    size: int = 0
    """Its longest prompt and answer since it is admitted, in tokens, without those that others have as well."""
    num_turns: int = 0  # requests that were let in since it is admitted
    admitted_at: float | None = None
    open_ids: set[str] = field(default_factory=set)  # its requests that wait or run
    left_at: float | None = None  # when its last answer ended, if it has not come back
    until: float = 0.0  # when it is over, if it is not back by then
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_OWN))
    tails: "deque[tuple[array[int], str]]" = field(default_factory=lambda: deque(maxlen=2))
    """The tokens of its last answers, each with its salt, to be let go when it is no longer admitted."""

    @property
    def is_in_tool_gap(self) -> bool:
        return not self.open_ids


class Admission:
    """Told of every request that comes, is let in and ends; `now` is set by the caller."""

    def __init__(self, num_tokens: int, block_size: int, *, is_on: bool = True) -> None:
        self.now = 0.0
        self.is_on = is_on  # if not, no session waits to be admitted
        self.num_tokens = num_tokens  # room in all tiers of the cache
        self.growth = 0.0  # by how many tokens a session grows from one request to the next, lately
        self.admitted: dict[str, Session] = {}
        self.num_displaced = 0  # sessions that were displaced
        self._known: OrderedDict[str, Session] = OrderedDict()
        self._index = SessionIndex(block_size)
        self._recent = {is_named: deque[float](maxlen=_MAX_RECENT) for is_named in (False, True)}
        self._num_growths = 0
        self._may_swap_at = 0.0
        self._lost: list[Session] = []

    def arrive(self, request: Request) -> bool:
        """A request has come; whether its session is admitted."""
        name = request.session_id or self._index.find(request) or f"{PREFIX}{request.id}"
        request.session = name
        session = self._known.setdefault(name, Session(name))
        self._known.move_to_end(name)
        if session.left_at is not None:
            self._note_gap(session, max(0.0, request.arrived_at - session.left_at))
            session.left_at = None
        session.rank = request.priority
        session.open_ids.add(request.id)
        self._forget()
        return name in self.admitted

    def may_enter(self, request: Request, size: int, num_shared: int, token_s: float) -> bool:
        """Whether a new session of so many tokens is admitted, beside so many that several sessions share."""
        if (
            not self.is_on or request.session in self.admitted
        ):  # another request of its session may have come in before it
            return True
        self._expire()
        session = self._known[request.session]
        others = [each for each in self.admitted.values() if each.rank <= request.rank]
        num_taken = num_shared + sum(map(self._expected, others))
        if num_taken + size + self._growth(session) <= self.num_tokens or not others:
            return True
        return self._may_swap(request, size, num_shared, token_s)

    def has_room(self, size: int, num_shared: int) -> bool:
        """Whether so many tokens would fit if no session in a tool gap came back."""
        num_busy = sum(each.size for each in self.admitted.values() if not each.is_in_tool_gap)
        return num_shared + size + num_busy <= self.num_tokens

    def has_waited_long(self, request: Request) -> bool:
        return self.now - request.waiting_since >= MAX_WAIT_S

    def enter(self, request: Request, size: int) -> None:
        """A request is let in."""
        session = self._known[request.session]
        if session.admitted_at is None:
            session.admitted_at, session.size, session.num_turns = self.now, size, 0
            self.admitted[session.name] = session
        else:
            self._learn_growth(max(0, size - session.size))
        session.num_turns += 1
        session.size = max(session.size, size)

    def swap_out(self, num_shared: int) -> list[Session]:
        """Sessions displaced because all of them together have outgrown the cache, the last first."""
        num_over = num_shared + sum(each.size for each in self.admitted.values()) - self.num_tokens
        if not self.is_on or num_over <= 0:
            return []
        self._expire()
        lost = []
        in_gap = [each for each in self.admitted.values() if each.is_in_tool_gap]
        num_over = num_shared + sum(each.size for each in self.admitted.values()) - self.num_tokens
        for session in sorted(in_gap, key=lambda each: (each.rank, each.admitted_at), reverse=True):
            if num_over <= 0:
                break
            num_over -= session.size
            lost.append(self._remove(session))
        self.num_displaced += len(lost)
        return lost

    def leave(self, request: Request, cache_refill_s: float, *, is_answered: bool) -> float:
        """A request has ended; how long its session is waited for, 0 if it is not."""
        session = self._known.get(request.session)
        if session is None or request.id not in session.open_ids:
            return 0.0
        session.open_ids.discard(request.id)
        times = [*USUAL_S, *self._recent[bool(request.session_id)], *session.gaps]
        wait_s = min(MAX_S, PATIENCE * best_wait_s(times, cache_refill_s)) if is_answered else 0.0
        session.until = self.now + wait_s
        if is_answered:
            session.left_at = self.now
            if not request.session_id:
                self._index.remember(request, session.name)
            if session.admitted_at is not None:
                session.tails.append((request.token_ids, request.salt))
        return wait_s

    def expect(self, name: str, hold: Hold) -> None:
        """Its tools tell when a session is back, or that it is over."""
        session = self.admitted.get(name)
        if session is None or not session.is_in_tool_gap:
            return
        if hold.kind is HoldKind.TOOL_GAP:
            session.until = hold.until
        elif hold.kind is HoldKind.FINISHED:
            self._remove(session)

    def close(self, name: str) -> bool:
        """A session is over, unless it has requests; whether it is."""
        session = self._known.get(name)
        if session and not session.is_in_tool_gap:
            return False
        if session and session.admitted_at is not None:
            self._remove(session)
        self._known.pop(name, None)
        return True

    def find_tail(self, name: str) -> "tuple[array[int], str] | None":
        """The tokens of the last answer of one that is admitted, and their salt."""
        session = self.admitted.get(name)
        return session.tails[-1] if session and session.tails else None

    def take_lost(self) -> list[Session]:
        """Sessions displaced by new ones since this was last asked."""
        lost, self._lost = self._lost, []
        return lost

    def check(self) -> None:
        self._index.check()
        assert all(each.admitted_at is not None for each in self.admitted.values())
        assert all(each is self._known[name] for name, each in self.admitted.items())
        assert all((each.admitted_at is not None) == (name in self.admitted) for name, each in self._known.items())

    def _expected(self, session: Session) -> float:
        return session.size + self._growth(session)

    def _growth(self, session: Session) -> float:
        """One who has no name may never come back."""
        return NUM_AHEAD * self.growth if session.gaps or not session.name.startswith(PREFIX) else 0.0

    def _may_swap(self, request: Request, size: int, num_shared: int, token_s: float) -> bool:
        """Whether one that has waited long displaces others: of those in a tool gap, the ones that had most turns."""
        if self.now < self._may_swap_at or not self.has_waited_long(request):
            return False
        in_gap = sorted(
            (each for each in self.admitted.values() if each.is_in_tool_gap and each.rank >= request.rank),
            key=lambda each: each.num_turns,
        )
        num_taken = num_shared + sum(each.size for each in self.admitted.values() if each.rank <= request.rank)
        lost: list[Session] = []
        while num_taken + size > self.num_tokens and in_gap:
            lost.append(in_gap.pop())
            num_taken -= lost[-1].size
        if num_taken + size > self.num_tokens:
            return False
        self._lost += map(self._remove, lost)
        self.num_displaced += len(lost)
        cost_s = token_s * sum(each.size for each in lost)
        self._may_swap_at = self.now + min(MAX_SWAP_S, cost_s / SWAP_SHARE)
        return True

    def _expire(self) -> None:
        """Sessions that have not come back in their time are over."""
        for session in [each for each in self.admitted.values() if each.is_in_tool_gap and each.until <= self.now]:
            self._recent[not session.name.startswith(PREFIX)].append(math.inf)
            self._remove(session)

    def _remove(self, session: Session) -> Session:
        session.admitted_at = None
        del self.admitted[session.name]
        return session

    def _note_gap(self, session: Session, gap_s: float) -> None:
        session.gaps.append(gap_s)
        self._recent[not session.name.startswith(PREFIX)].append(gap_s)

    def _learn_growth(self, num_tokens: int) -> None:
        self._num_growths += 1
        self.growth += max(_LEARNING_RATE, 1 / self._num_growths) * (num_tokens - self.growth)

    def _forget(self) -> None:
        if len(self._known) > _MAX_SESSIONS:
            old = next(
                (each for each in self._known.values() if each.is_in_tool_gap and each.admitted_at is None), None
            )
            if old:
                del self._known[old.name]
