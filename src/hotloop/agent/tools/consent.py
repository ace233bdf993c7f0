"""Whether a call may run: approval, and what becomes of a call that may have run before."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hotloop.agent.journal import Uncertain
from hotloop.agent.tools.tool import AgentTool, ToolError, call_function
from hotloop.core.message import ToolCall

log = logging.getLogger(__name__)

BROKEN_OFF = "Error: this call was broken off; it is not known whether it did anything"


class Approval:
    """What an approver may answer beside True, False and words for the model."""

    @staticmethod
    def later() -> "Approval":
        """Nobody can decide now: the run ends in state `waiting`, and is gone on with once somebody has."""
        return _LATER


_LATER: Final = Approval()

Verdict = bool | str | Approval
Approve = Callable[[ToolCall], Awaitable[Verdict] | Verdict]
"""Asked before a tool that needs approval runs: True lets it; False, or words for the model, does not. A function that
does not await runs in a thread."""

OnUncertain = Callable[[Uncertain], Awaitable[Verdict] | Verdict]
"""Asked about a call that was running when its process ended: True runs it again, words are given to the model as its
result, and after False the model is told that it is not known whether the call did anything."""


class Undecided(Exception):
    """Nobody can say now whether the call may run."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(call)
        self.call = call


class Ruling(NamedTuple):
    """Instead of running a call: what the model is told."""

    text: str
    is_error: bool = True


@dataclass(frozen=True, slots=True)
class Consent:
    """`running` are calls that had begun when their process ended, for as long as their turn lasts, `verdicts` what was
    decided about calls since; each is of one call, and used up by it."""

    approve: Approve | None = None
    on_uncertain: OnUncertain | None = None
    running: set[str] = field(default_factory=set)
    verdicts: dict[str, bool | str] = field(default_factory=dict)

    async def ask(self, tool: AgentTool, call: ToolCall) -> Ruling | None:
        """None if the call may run. Raises Undecided."""
        is_repeatable = tool.options.can_repeat or tool.options.resumable
        is_uncertain = call.id in self.running and not is_repeatable
        if is_uncertain:
            return await self._ask_again(call)
        if not tool.options.needs_approval or call.id in self.running:  # it was approved then
            return None
        try:
            tool.check(call.arguments)
        except ToolError as error:
            return Ruling(f"Error: {error}")
        if self.approve is None and call.id not in self.verdicts:
            return Ruling("Error: this tool needs approval, and there is no approver")
        verdict, failure = await self._verdict(self.approve, call)
        if verdict is True:
            return None
        why = f": {verdict}" if isinstance(verdict, str) and verdict else ""
        return Ruling(f"Error: {failure}" if failure else f"Error: the call was not approved{why}")

    async def _ask_again(self, call: ToolCall) -> Ruling | None:
        """A call that may have done something already is never repeated unless somebody says so."""
        asked = Uncertain(call.id, call.name, call.arguments)
        if self.on_uncertain is None and self.approve is None and call.id not in self.verdicts:
            return Ruling(BROKEN_OFF)
        verdict, _ = await self._verdict(self.on_uncertain or self.approve, asked)
        if verdict is True:
            return None
        if isinstance(verdict, str) and self.on_uncertain:
            return Ruling(verdict, is_error=False)
        return Ruling(f"{BROKEN_OFF}{': ' + verdict if isinstance(verdict, str) else ''}")

    async def _verdict(self, ask: Callable[..., object] | None, call: ToolCall) -> tuple[bool | str, str]:
        """What was decided, and why it could not be, if it could not. Raises Undecided."""
        if call.id in self.verdicts:
            return self.verdicts.pop(call.id), ""
        assert ask, "somebody has decided, or can be asked"
        try:
            verdict = await call_function(ask, call)
        except Exception as error:
            log.exception("the approval of %s failed", call.name)
            return False, f"the call could not be approved: {error}"
        if isinstance(verdict, Approval):
            raise Undecided(call)
        return (verdict if isinstance(verdict, str) else verdict is True), ""
