"""What the engine is told about when a prompt is wanted again: what clients ask for, and what their tools make likely.

    PINNED     up to a breakpoint, for as long as was asked
    TOOL_GAP   an answer that ends in calls, for as long as it pays to wait for its tools
    FINISHED   an answer without calls where there were some before: its run is over

A turn hears of its answer's end twice: from the engine, when there is something to hold, and then from the parser,
which knows the calls. Of several choices nobody can tell which will go on, so only what was asked for is held.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotloop.chat.stream import CallParser
from hotloop.core.message import Message
from hotloop.core.request import FinishReason, Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.core.stream import CallOpened, StreamEvent
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

    def begin(
        self,
        messages: Sequence[Message] = (),
        pins: Sequence[Pin] = (),
        *,
        can_call: bool = False,
        num_choices: int = 1,
    ) -> "Turn":
        """A conversation has come (back), and will be answered."""
        returned = [message.tool_call_id or "" for message in messages if message.role == "tool"]
        self.gaps.come_back(returned)
        return Turn(self, pins, has_results=bool(returned), can_call=can_call, is_only=num_choices == 1)

    def pin(self, request: Request, pin: Pin) -> None:
        until = time.monotonic() + pin.ttl_s
        self._hold(request, Hold(HoldKind.PINNED, until, pin.ttl_s), pin.num_tokens)

    def send_away(self, request: Request, calls: Sequence[CallOpened]) -> None:
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


class Turn:
    """One answer that is being made, and what becomes of its prefix after it."""

    def __init__(
        self, keeper: Keeper, pins: Sequence[Pin], *, has_results: bool, can_call: bool, is_only: bool
    ) -> None:
        self._keeper = keeper
        self._pins = pins
        self._has_results = has_results
        self._can_call = can_call
        self._is_only = is_only
        self._request: Request | None = None

    def watch(self, parser: CallParser) -> CallParser:
        """A parser that tells us of the calls it has found."""
        return _Watched(parser, self._end)

    def finish(self, request: Request) -> None:
        """The engine is done with a request of this turn. To be told before its parser hears of it."""
        if request.finish_reason is FinishReason.ERROR:
            return
        self._request = request
        for pin in self._pins:
            self._keeper.pin(request, pin)
        if not self._can_call:
            self._end(())

    def _end(self, calls: Sequence[CallOpened]) -> None:
        request = self._request
        if request is None or request.finish_reason is not FinishReason.STOP or not self._is_only:
            return
        if calls:
            self._keeper.send_away(request, calls)
        elif self._has_results:
            self._keeper.let_go(request)


@dataclass(slots=True)
class _Watched:
    """A parser, and whom to tell the calls of its answer."""

    parser: CallParser
    on_end: Callable[[Sequence[CallOpened]], None]
    _calls: list[CallOpened] = field(default_factory=list)

    @property
    def num_calls(self) -> int:
        return self.parser.num_calls

    def push(self, text: str) -> list[StreamEvent]:
        return self._note(self.parser.push(text))

    def finish(self) -> list[StreamEvent]:
        events = self._note(self.parser.finish())
        self.on_end(self._calls)
        return events

    def _note(self, events: list[StreamEvent]) -> list[StreamEvent]:
        self._calls += [event for event in events if isinstance(event, CallOpened)]
        return events
