"""A run that begins with a plan: the model writes all calls it can predict, and answers once they are done.

    model   ──[a]──[b]──[c: a]──[d: b, c]──┐      one answer, bound to the plan's schema
    a           └──────────┐               │
    b                └─────┼───────┐       │
    c                      └───┐   │       │      begins once a is done
    d                          └───┴───────┼──┐   begins once b and c are; then comes the answer

A step whose reference leads nowhere, or to a step that failed, is not run, and its result says so. The plan is a first
turn like any other: the conversation has its calls and their results as if they had been made one by one, and then the
ordinary loop goes on. That is also what happens after a bad plan, with what was done of it.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from hotloop.agent.events import CallArguments, CallFinished, CallOpened, Event, PlanAbandoned
from hotloop.agent.journal import Answered, Returned
from hotloop.agent.model import Ask
from hotloop.agent.plan.reference import BadReference, fill
from hotloop.agent.plan.schema import MAX_STEPS, BadPlan, ElementReader, PlanStep, parse_step, plan_schema
from hotloop.agent.run import RunLoop
from hotloop.agent.tools.dispatch import Dispatcher, Pending, stop
from hotloop.agent.tools.outcome import Outcome
from hotloop.agent.turn import Taken
from hotloop.core.errors import HotloopError
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.core.stream import TextDelta
from hotloop.wire.event import Ended
from hotloop.wire.reader import CUT

_TASK = """\
Do not answer yet. First write a plan of all the tool calls this takes, as JSON:
{"steps": [{"id": "a", "tool": "<name>", "arguments": {...}}, ...]}
A step can use the result of an earlier one: "${a}" stands for the result of step a, and "${a.items[0].id}" for a part \
of it, if it is JSON; both may stand within a longer text. Steps that do not use each other's results run at the same \
time. If no tool is needed, write no steps."""


@dataclass(slots=True)
class _Planned:
    step: PlanStep
    pending: Pending
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Or is known never to begin: its call is what it will be."""


@dataclass(slots=True, eq=False)
class Execution:
    """The steps of a plan, added in their order: each begins once what it refers to is there."""

    tools: Mapping[str, Tool]
    dispatcher: Dispatcher
    turn: int
    salt: int
    emit: Callable[[Event], None]
    made: list[Pending] = field(default_factory=list)
    """The calls that were made, in the order they began."""
    _planned: dict[str, _Planned] = field(default_factory=dict)

    @property
    def pending(self) -> list[Pending]:
        """The calls, in the order of the plan; each as it was made, once it has begun."""
        return [each.pending for each in self._planned.values()]

    def add(self, text: str) -> None:
        """Carry out a step, as soon as that can be. Raises BadPlan if it never can, or there are too many."""
        step = parse_step(text, self.tools, self._planned)
        if len(self._planned) == MAX_STEPS:
            raise BadPlan(f"it has more than {MAX_STEPS} steps")
        call = ToolCall(f"call_{self.salt}_{len(self._planned)}", step.tool, _dump(step.arguments))
        self.emit(CallOpened(self.turn, call.id, call.name))
        self.emit(CallArguments(self.turn, call.id, call.arguments))
        task = asyncio.create_task(self._carry_out(step), name=f"step {step.id}")
        planned = self._planned[step.id] = _Planned(step, Pending(call, task))
        if not step.needs:
            planned.has_begun.set()

    async def begun(self) -> None:
        """Until no step waits for another."""
        for planned in self._planned.values():
            await planned.has_begun.wait()

    def drop_waiting(self) -> None:
        """Forget the steps that have not begun; the others go on to their end."""
        for planned in [each for each in self._planned.values() if not each.has_begun.is_set()]:
            planned.pending.task.cancel()
            del self._planned[planned.step.id]

    async def close(self) -> None:
        """Stop waiting; what the dispatcher runs is the dispatcher's to stop."""
        await stop(pending.task for pending in self.pending)

    async def _carry_out(self, step: PlanStep) -> Outcome:
        planned = self._planned[step.id]
        needed = {step_id: self._planned[step_id] for step_id in step.needs}
        try:
            if needed:
                await asyncio.wait([each.pending.task for each in needed.values()])
            problem = self._fill(planned, needed)
        finally:
            planned.has_begun.set()
        call = planned.pending.call
        if problem:
            outcome = Outcome(f"Error: not run: {problem}", is_error=True, num_tries=0)
            # Without that a run that goes on would make the call, with references for arguments.
            self.dispatcher.journal.note(
                Returned(self.turn, call.id, outcome.text, is_error=True, num_tries=0), call.id
            )
            finished = CallFinished(self.turn, call.id, call.name, outcome.text, True, duration_s=0.0, num_tries=0)
            self.emit(finished)
            return outcome
        self.made.append(self.dispatcher.start(call, self.turn))
        running = self.made[-1].task
        # Not awaited itself: to stop waiting must not hang on a tool that does not stop.
        await asyncio.wait({running})
        return running.result()

    def _fill(self, planned: _Planned, needed: Mapping[str, _Planned]) -> str:
        """Put what it refers to into a call's arguments. Says why, if that cannot be."""
        for step_id, each in needed.items():
            outcome, need = each.pending.task.result(), f"it needs the result of step {step_id!r}"
            if outcome.is_error or outcome.waits_for:
                reason = "failed" if outcome.is_error else "waits for a decision"
                return f"{need} ({each.pending.call.name}), which {reason}"
        if not needed:
            return ""
        step, call = planned.step, planned.pending.call
        outcomes = {step_id: each.pending.task.result() for step_id, each in needed.items()}
        results = {step_id: outcome.whole or outcome.text for step_id, outcome in outcomes.items()}
        try:
            arguments = _dump(fill(step.arguments, results, self.tools[step.tool].parameters))
        except BadReference as error:
            return str(error)
        except RecursionError:
            return "what it refers to is nested too deeply"
        planned.pending.call = ToolCall(call.id, call.name, arguments)
        return ""


class PlannedRun(RunLoop):
    """A run whose first turn is a plan."""

    is_plan = True

    async def _take_turn(self) -> Taken:
        if self.spent.num_turns:
            return await super()._take_turn()
        await self._begin_turn()
        turn = self._turn
        tools = {name: tool.spec for name, tool in self._tools.items() if tool is not self._final}
        execution = Execution(tools, self._dispatcher, turn=turn.number, salt=len(self.conversation), emit=self._emit)
        turn.begun = execution.made
        try:
            await self._follow_plan(execution, tools)
            await execution.begun()
            pending = execution.pending
            said = Message("assistant", tool_calls=tuple(each.call for each in pending))
            if pending:
                self._journal.note(Answered(turn.number, said, "calls", turn.answer.ended.usage))
            await self._end_turn(said if pending else None, pending)
        finally:
            await execution.close()
        return Taken("calls", said, pending) if pending else await super()._take_turn()

    async def _follow_plan(self, execution: Execution, tools: Mapping[str, Tool]) -> None:
        """Begin the steps as they are written. What is wrong with a plan ends it, and not the run.

        As with calls, the end of a step is believed once another follows it, or the plan ends by itself.
        """
        reader = ElementReader("steps")
        held: list[str] = []  # the last step, until it is believed
        try:
            async with aclosing(self._settings.model.stream(self._ask_for_plan(tools))) as events:
                async for event in events:
                    if isinstance(event, Ended):
                        self._turn.answer.push(event)
                    elif isinstance(event, TextDelta):
                        held += reader.feed(event.text)
                        while len(held) > (not reader.is_in_element):
                            execution.add(held.pop(0))
            if self._turn.answer.ended.reason in CUT or (reader.has_list and not reader.is_closed):
                raise BadPlan("it was cut off")
            for element in held:
                execution.add(element)
            if not execution.pending:
                raise BadPlan("it has no steps" if reader.has_list else "the model wrote no plan")
        except (BadPlan, HotloopError) as error:  # a server may refuse the schema; if it is down, the next turn says so
            execution.drop_waiting()
            self._emit(PlanAbandoned(self._turn.number, str(error)))

    def _ask_for_plan(self, tools: Mapping[str, Tool]) -> Ask:
        """The task stands at the end of the user's words, so that the prompt begins as the next turn's will."""
        if not tools:
            raise BadPlan("there are no tools")
        *before, last = self.conversation.messages
        task = replace(last, content=f"{last.content}\n\n{_TASK}")
        schema, kind = plan_schema(list(tools.values())), self._settings.task or "planning"
        return replace(self._ask(), messages=(*before, task), choice="none", schema=schema, task=kind)


def _dump(arguments: dict[str, Any]) -> str:
    """As a model would write it; half a surrogate pair, which a result may have, cannot be sent."""
    return json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace").decode()
