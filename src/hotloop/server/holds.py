"""Holds on cached prompts: those that clients ask for, and those that tool calls make likely to pay.

    PINNED     up to a breakpoint, for as long as was asked
    TOOL_GAP   an answer that ends in calls, for as long as it pays to wait for its tools
    FINISHED   an answer without calls where there were some before: its run is over

Of several choices any may be continued, so only what was asked for is held.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from cachetools import FIFOCache

from hotloop.core.message import Message
from hotloop.core.request import FinishReason, Request
from hotloop.core.retention import Hold, HoldKind, Pin
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.core.stream import CallOpened
from hotloop.engine.kvcache.tool_gaps import MAX_S, USUAL_S, best_wait_s
from hotloop.server.engine_client import EngineClient

_MAX_RECENT = 32  # times of one tool
_MAX_TOOLS = 1024
_MAX_OPEN = 8192  # calls whose results have not come back; many never do


class ToolGaps:
    """How long it pays to wait for an agent that runs a tool: learnt for each tool from when its results came back.

    A call is known again by its id. Of calls made together the slowest tool's time is believed of all, which keeps a
    prefix too long rather than too short. Bounded; used from any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, sharing: Sharing = UNSHARED) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: FIFOCache[str, tuple[str, float]] = FIFOCache(_MAX_OPEN)
        self._recent: FIFOCache[str, deque[float]] = FIFOCache(_MAX_TOOLS)
        self._note_left = sharing.share("call_left", tuple[str, str, float], self._put_open)
        self._note_back = sharing.share("call_back", tuple[str, float], self._put_back)

    def leave(self, call_id: str, tool_name: str) -> None:
        self._note_left((_key(call_id), tool_name, self._clock()))

    def come_back(self, call_ids: Iterable[str]) -> None:
        """Results of these calls are here; those that were here before are known, and those of other servers not."""
        with self._lock:
            known = [key for key in map(_key, call_ids) if key in self._open]
        for key in known:
            self._note_back((key, self._clock()))

    def _put_open(self, left: tuple[str, str, float]) -> None:
        key, tool_name, left_at = left
        with self._lock:
            self._open[key] = tool_name, left_at

    def _put_back(self, back: tuple[str, float]) -> None:
        key, back_at = back
        with self._lock:
            if opened := self._open.pop(key, None):
                tool_name, left_at = opened
                recent = self._recent.get(tool_name, ())
                self._recent[tool_name] = deque([*recent, back_at - left_at], _MAX_RECENT)

    def patience_s(self, tool_names: Iterable[str], cache_refill_s: float) -> float:
        """How long to wait for calls of these tools, made together; 0 if it does not pay for one of them."""
        with self._lock:
            times = [[*USUAL_S, *self._recent.get(name, ())] for name in tool_names]
        waits = [best_wait_s(of_one, cache_refill_s) for of_one in times]
        return min(max(waits, default=0.0), MAX_S) if all(waits) else 0.0

    def check(self) -> None:
        assert len(self._open) <= _MAX_OPEN
        assert len(self._recent) <= _MAX_TOOLS
        assert all(0 < len(recent) <= _MAX_RECENT for recent in self._recent.values())


def _key(call_id: str) -> str:
    """What is random in an id: each API has its own word in front of it."""
    return call_id.rpartition("_")[2]


class RetentionHints:
    def __init__(self, engine: EngineClient) -> None:
        self.gaps = ToolGaps(sharing=engine.sharing)
        self._engine = engine

    def begin(self, messages: Sequence[Message]) -> bool:
        """A conversation has come (back), and will be answered. Whether it has results of calls."""
        returned = [message.tool_call_id or "" for message in messages if message.role == "tool"]
        self.gaps.come_back(returned)
        return bool(returned)

    def finish(
        self, request: Request, calls: Sequence[CallOpened] | None, pins: Sequence[Pin], *, has_results: bool
    ) -> None:
        """The engine is done with a request. `calls` are those in its answer, if anybody heard it and it is the only
        one to its prompt."""
        if request.finish_reason is FinishReason.ERROR:
            return
        now = time.monotonic()
        for pin in pins:
            self._engine.hold(request, Hold(HoldKind.PINNED, now + pin.ttl_s, pin.ttl_s), pin.num_tokens)
        if request.finish_reason is not FinishReason.STOP or calls is None:
            return
        names = [f"{request.salt}/{call.name}" if request.salt else call.name for call in calls]  # each scope its own
        for call, name in zip(calls, names, strict=True):
            self.gaps.leave(call.id, name)
        patience_s = self.gaps.patience_s(names, self._engine.cache_refill_s)
        if patience_s:
            hold = Hold(HoldKind.TOOL_GAP, now + patience_s, rank=request.priority)
            self._engine.hold(request, hold, request.num_tokens)
        elif has_results and not calls:
            self._engine.hold(request, Hold(HoldKind.FINISHED), request.num_tokens)
