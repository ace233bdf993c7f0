"""What the engine is told about when a prompt is wanted again: what clients ask for, and what their tools make likely.

    PINNED     up to a breakpoint, for as long as was asked
    TOOL_GAP   an answer that ends in calls, for as long as it pays to wait for its tools
    FINISHED   an answer without calls where there were some before: its run is over

Of several choices nobody can tell which will go on, so only what was asked for is held.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hotloop.core.message import Message
from hotloop.core.request import FinishReason, Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.core.stream import CallOpened
from hotloop.engine.engine import Engine
from hotloop.engine.gaps import MAX_S, USUAL_S, best_wait_s

_MAX_RECENT = 32  # times of one tool
_MAX_TOOLS = 1024
_MAX_OPEN = 8192  # calls whose results have not come back; many never do


@dataclass(frozen=True, slots=True)
class Pin:
    """The first tokens of a prompt, to be kept so long after every use."""

    num_tokens: int
    ttl_s: int


class ToolGaps:
    """How long it pays to wait for an agent that runs a tool: learnt for each tool from when its results came back.

    A call is known again by its id, so nothing is assumed about connections or sessions. Calls made together come back
    together; then the slower tool's time is believed of both, which keeps a prefix too long rather than too short.
    Bounded; used from any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._recent: OrderedDict[str, deque[float]] = OrderedDict()

    def leave(self, call_id: str, tool_name: str) -> None:
        with self._lock:
            self._open[_key(call_id)] = tool_name, self._clock()
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)

    def come_back(self, call_ids: Iterable[str]) -> None:
        """Results of these calls are here; those that were here before are known, and those of other servers not."""
        with self._lock:
            for call_id in call_ids:
                if opened := self._open.pop(_key(call_id), None):
                    tool_name, left_at = opened
                    self._recent.setdefault(tool_name, deque(maxlen=_MAX_RECENT)).append(self._clock() - left_at)
                    self._recent.move_to_end(tool_name)
            while len(self._recent) > _MAX_TOOLS:
                self._recent.popitem(last=False)

    def patience_s(self, tool_names: Iterable[str], turnover_s: float) -> float:
        """How long to wait for calls of these tools, made together; 0 if it does not pay for one of them."""
        with self._lock:
            times = [[*USUAL_S, *self._recent.get(name, ())] for name in tool_names]
        waits = [best_wait_s(of_one, turnover_s) for of_one in times]
        return min(max(waits, default=0.0), MAX_S) if all(waits) else 0.0

    def check(self) -> None:
        assert len(self._open) <= _MAX_OPEN
        assert len(self._recent) <= _MAX_TOOLS
        assert all(0 < len(recent) <= _MAX_RECENT for recent in self._recent.values())


def _key(call_id: str) -> str:
    """What is random in an id: each API has its own word in front of it."""
    return call_id.rpartition("_")[2]


class Keeper:
    def __init__(self, engine: Engine) -> None:
        self.gaps = ToolGaps()
        self._engine = engine

    def begin(self, messages: Sequence[Message] = (), pins: Sequence[Pin] = (), *, num_choices: int = 1) -> "Turn":
        """A conversation has come (back), and will be answered."""
        returned = [message.tool_call_id or "" for message in messages if message.role == "tool"]
        self.gaps.come_back(returned)
        return Turn(self, pins, has_results=bool(returned), is_only=num_choices == 1)

    def open_gap(self, request: Request, calls: Sequence[CallOpened]) -> None:
        for call in calls:
            self.gaps.leave(call.id, call.name)
        patience_s = self.gaps.patience_s((call.name for call in calls), self._engine.turnover_s)
        if patience_s:
            until = time.monotonic() + patience_s
            self.hold(request, Hold(HoldKind.TOOL_GAP, until, rank=request.priority), request.num_tokens)

    def hold(self, request: Request, hold: Hold, num_tokens: int) -> None:
        self._engine.hold(request.token_ids[:num_tokens], hold, request.salt, request.line)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer that is being made, and what becomes of its prefix after it."""

    _keeper: Keeper
    _pins: Sequence[Pin]
    has_results: bool
    is_only: bool

    def finish(self, request: Request, calls: Sequence[CallOpened] | None) -> None:
        """The engine is done with a request of this turn. `calls` are those in its answer, if anybody heard it."""
        if request.finish_reason is FinishReason.ERROR:
            return
        for pin in self._pins:
            until = time.monotonic() + pin.ttl_s
            self._keeper.hold(request, Hold(HoldKind.PINNED, until, pin.ttl_s), pin.num_tokens)
        if request.finish_reason is not FinishReason.STOP or not self.is_only or calls is None:
            return
        if calls:
            self._keeper.open_gap(request, calls)
        elif self.has_results:
            self._keeper.hold(request, Hold(HoldKind.FINISHED), request.num_tokens)
