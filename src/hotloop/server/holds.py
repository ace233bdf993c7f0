"""What the engine is told about when a prompt is wanted again: what clients ask for, and what their tools make likely.

    PINNED     up to a breakpoint, for as long as was asked
    TOOL_GAP   an answer that ends in calls, for as long as it pays to wait for its tools
    FINISHED   an answer without calls where there were some before: its run is over

Of several choices nobody can tell which will go on, so only what was asked for is held.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.message import Message
from hotloop.core.request import FinishReason, Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.core.stream import CallOpened
from hotloop.engine.engine import Engine
from hotloop.server.gaps import ToolGaps


@dataclass(frozen=True, slots=True)
class Pin:
    """The first tokens of a prompt, to be kept so long after every use."""

    num_tokens: int
    ttl_s: int


class Keeper:
    """The way to the engine's holds."""

    def __init__(self, engine: Engine) -> None:
        self.gaps = ToolGaps()
        self._engine = engine

    def begin(self, messages: Sequence[Message] = (), pins: Sequence[Pin] = (), *, num_choices: int = 1) -> "Turn":
        """A conversation has come (back), and will be answered."""
        returned = [message.tool_call_id or "" for message in messages if message.role == "tool"]
        self.gaps.come_back(returned)
        return Turn(self, pins, has_results=bool(returned), is_only=num_choices == 1)

    def pin(self, request: Request, pin: Pin) -> None:
        self._hold(request, Hold(HoldKind.PINNED, time.monotonic() + pin.ttl_s, pin.ttl_s), pin.num_tokens)

    def open_gap(self, request: Request, calls: Sequence[CallOpened]) -> None:
        """The tools of these calls run now."""
        for call in calls:
            self.gaps.leave(call.id, call.name)
        patience_s = self.gaps.patience_s((call.name for call in calls), self._engine.turnover_s)
        if patience_s:
            until = time.monotonic() + patience_s
            self._hold(request, Hold(HoldKind.TOOL_GAP, until, rank=request.priority), request.num_tokens)

    def let_go(self, request: Request) -> None:
        self._hold(request, Hold(HoldKind.FINISHED), request.num_tokens)

    def _hold(self, request: Request, hold: Hold, num_tokens: int) -> None:
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
            self._keeper.pin(request, pin)
        if request.finish_reason is not FinishReason.STOP or not self.is_only or calls is None:
            return
        if calls:
            self._keeper.open_gap(request, calls)
        elif self.has_results:
            self._keeper.let_go(request)
