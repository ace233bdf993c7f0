"""Models, tools and approvals that give what a tape has, and ask nobody. A run that goes another way is told where.

Answers are found by what was asked, results by the call; of several that fit, the first that was not given yet.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from hotloop.agent.model import Ask, ModelEvent
from hotloop.agent.tape.lines import (
    Answer,
    Asked,
    Failure,
    Offer,
    Outcome,
    Said,
    Verdict,
    digest_ask,
    parse_event,
    read_tape,
)
from hotloop.agent.tools.context import Surroundings
from hotloop.agent.tools.tool import AgentTool, ToolCrashed, ToolError
from hotloop.core.errors import HotloopError, RemoteError
from hotloop.core.message import Message, ToolCall


class RunDeparted(HotloopError):
    """A run does not go as it was recorded; the message says where."""


class Tape:
    """What was recorded, and is given out once. `is_paced`: everything takes as long as it did."""

    def __init__(self, path: Path | str, *, is_paced: bool = False) -> None:
        lines = read_tape(path)
        self.is_paced = is_paced
        self.offers = {line.spec.name: line for line in lines if isinstance(line, Offer)}
        self._said = {line.digest: line.message for line in lines if isinstance(line, Said)}
        self._answers: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self._outcomes: defaultdict[tuple[str, str], deque[Outcome]] = defaultdict(deque)
        self._verdicts: defaultdict[tuple[str, str], deque[Verdict]] = defaultdict(deque)
        for line in sorted(lines, key=lambda line: line.number if isinstance(line, Outcome) else 0):
            match line:
                case Answer():
                    self._answers[line.asked.key].append(line)
                case Outcome():
                    self._outcomes[line.name, line.arguments].append(line)
                case Verdict():
                    self._verdicts[line.name, line.arguments].append(line)

        self.has_verdicts = bool(self._verdicts)
        """Whether somebody was asked; if nobody was there then, nobody is now."""

    def answer(self, ask: Ask) -> Answer:
        asked = digest_ask(ask)
        answers = self._answers[asked.key]
        if not answers:
            raise RunDeparted(self._explain(ask, asked))
        return answers.popleft()

    def outcome(self, name: str, arguments: str) -> Outcome:
        outcomes = self._outcomes[name, arguments]
        if not outcomes:
            raise RunDeparted(f"the tape has no result for this call: {name} {arguments:.200}")
        return outcomes.popleft()

    async def approve(self, call: ToolCall) -> bool | str:
        verdicts = self._verdicts[call.name, call.arguments]
        if not verdicts:
            raise RunDeparted(f"the tape has no approval for this call: {call.name} {call.arguments:.200}")
        verdict = verdicts.popleft()
        if verdict.is_failure:
            raise HotloopError(str(verdict.verdict))
        return verdict.verdict

    def _explain(self, ask: Ask, asked: Asked) -> str:
        """Where what is asked differs from what comes nearest to it on the tape."""
        left = [answer.asked for answers in self._answers.values() for answer in answers]
        if not left:
            return "the tape is at its end, and the run asks for more"
        nearest = max(left, key=lambda other: _num_shared(other.messages, asked.messages))
        i = _num_shared(nearest.messages, asked.messages)
        if i == len(nearest.messages) == len(asked.messages):
            names = [name for name, each in asked.settings.items() if nearest.settings.get(name) != each]
            return f"the run departs from its tape: {', '.join(names)} are not what was recorded"
        was = self._said.get(nearest.messages[i]) if i < len(nearest.messages) else None
        now = ask.messages[i] if i < len(ask.messages) else None
        return f"the run departs from its tape at message {i}: recorded was {_show(was)}, now it is {_show(now)}"


def _num_shared(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _show(message: Message | None) -> str:
    if message is None:
        return "none"
    calls = "".join(f" {call.name}({call.arguments})" for call in message.tool_calls)
    return f"{message.role}: {message.content + calls!r:.120}"


class ReplayModel:
    """Says what the tape has."""

    name = "replay"
    can_read_ahead = False

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def stream(self, ask: Ask) -> AsyncGenerator[ModelEvent, None]:
        answer = self._tape.answer(ask)
        now_s = 0.0
        for at_s, event in map(parse_event, answer.events):
            await asyncio.sleep(max(at_s - now_s, 0) if self._tape.is_paced else 0)
            now_s = at_s
            yield event
        if answer.failure:
            raise _as_error(answer.failure)

    async def read(self, ask: Ask) -> None:
        pass

    async def close(self) -> None:
        pass


def _as_error(failure: Failure) -> HotloopError:
    if failure.kind == RemoteError.__name__:
        return RemoteError(failure.message, status=failure.status)
    return HotloopError(failure.message)


class ReplayTool:
    """Gives what the tape has; the tool itself is not run. A tool that was late then is not waited for now."""

    def __init__(self, tool: AgentTool | Offer, tape: Tape) -> None:
        self.spec = tool.spec
        self.traits = replace(tool.traits, timeout_s=None)
        self._tape = tape

    async def run(self, arguments: str, surroundings: Surroundings) -> str:
        outcome = self._tape.outcome(self.spec.name, arguments)
        await asyncio.sleep(outcome.duration_s if self._tape.is_paced else 0)
        if outcome.failure:
            raise (ToolCrashed if outcome.failure == "crashed" else ToolError)(outcome.text)
        return outcome.text


class ReplaySource:
    """The tools that came from elsewhere when the tape was made."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def open(self, stack: AsyncExitStack) -> Sequence[AgentTool]:
        offers: Iterable[Offer] = self._tape.offers.values()
        return [ReplayTool(offer, self._tape) for offer in offers]
