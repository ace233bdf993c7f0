"""How long it pays to wait for an agent that runs a tool: learnt for each tool from when its results came back.

A call is known again by its id, so nothing is assumed about connections or sessions. Calls made together come back
together; then the slower tool's time is believed of both, which keeps a prefix too long rather than too short. Bounded;
used from any thread.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from hotloop.engine.gaps import MAX_S, USUAL_S, best_wait_s

_MAX_RECENT = 32  # times of one tool
_MAX_TOOLS = 1024
_MAX_OPEN = 8192  # calls whose results have not come back; many never do


class ToolGaps:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._recent: OrderedDict[str, deque[float]] = OrderedDict()

    def leave(self, call_id: str, tool_name: str) -> None:
        """A call was given out now."""
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
                    self._note(tool_name, self._clock() - left_at)

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

    def _note(self, tool_name: str, duration_s: float) -> None:
        self._recent.setdefault(tool_name, deque(maxlen=_MAX_RECENT)).append(duration_s)
        self._recent.move_to_end(tool_name)
        if len(self._recent) > _MAX_TOOLS:
            self._recent.popitem(last=False)


def _key(call_id: str) -> str:
    """What is random in an id: each API has its own word in front of it."""
    return call_id.rpartition("_")[2]
