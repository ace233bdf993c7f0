"""A run that begins with a plan: the model writes all calls it can foresee, and answers once they are done.

    plan        [a][b][c: a][d: b, c]        one answer, bound to the plan's schema
    tools          a  b     c       d        while it is written
    synthesis                          [answer]

The plan is a first turn like any other: the conversation has its calls and their results as if they had been made one
by one, and then the ordinary loop goes on. That is also what happens after a bad plan, with what was done of it.
"""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from hotloop.agent.events import PlanAbandoned
from hotloop.agent.model import Ask
from hotloop.agent.plan.execution import Execution
from hotloop.agent.plan.schema import BadPlan, ElementReader, parse_step, plan_schema
from hotloop.agent.run import RunLoop
from hotloop.core.errors import HotloopError
from hotloop.core.message import Message, Tool
from hotloop.core.stream import TextDelta
from hotloop.wire.event import Ended

_TASK = """\
Do not answer yet. First write a plan of all the tool calls this takes, as JSON:
{"steps": [{"id": "a", "tool": "<name>", "arguments": {...}}, ...]}
A step can use the result of an earlier one: "${a}" stands for the result of step a, and "${a.items[0].id}" for a part \
of it, if it is JSON; both may stand within a longer text. Steps that do not use each other's results run at the same \
time. If no tool is needed, write no steps."""


class PlannedRun(RunLoop):
    """A run whose first turn is a plan."""

    async def _turns(self) -> Any:
        turn = await self._begin_turn()
        execution = Execution(self._dispatcher, turn=turn, salt=len(self.conversation), emit=self._emit)
        self._begun = execution.made
        try:
            await self._follow_plan(execution, turn)
            await execution.begun()
            pending = execution.pending
            said = Message("assistant", tool_calls=tuple(each.call for each in pending)) if pending else None
            await self._end_turn(turn, said, pending)
        finally:
            await execution.close()
        return await super()._turns()

    async def _follow_plan(self, execution: Execution, turn: int) -> None:
        """Begin the steps as they are written. What is wrong with a plan ends it, and not the run."""
        tools = {name: tool.spec for name, tool in self._tools.items() if tool is not self._final}
        reader = ElementReader("steps")
        try:
            async with aclosing(self._settings.model.stream(self._ask_for_plan(tools))) as events:
                async for event in events:
                    if isinstance(event, Ended):
                        self._answer.push(event)
                    elif isinstance(event, TextDelta):
                        for element in reader.feed(event.text):
                            execution.add(parse_step(element, tools, execution.step_ids))
            if self._answer.ended.reason in ("length", "window") or (reader.has_list and not reader.is_closed):
                raise BadPlan("it was cut off")
            if not execution.pending:
                raise BadPlan("it has no steps" if reader.has_list else "the model wrote no plan")
        except (BadPlan, HotloopError) as error:  # a server may refuse the schema; if it is down, the next turn says so
            execution.drop_waiting()
            self._emit(PlanAbandoned(turn, str(error)))

    def _ask_for_plan(self, tools: Mapping[str, Tool]) -> Ask:
        """The task stands at the end of the user's words, so that the prompt begins as the next turn's will."""
        if not tools:
            raise BadPlan("there are no tools")
        *before, last = self.conversation.messages
        told = replace(last, content=f"{last.content}\n\n{_TASK}")
        return replace(self._ask(), messages=(*before, told), choice="none", schema=plan_schema(list(tools.values())))
