"""The steps of a plan, carried out: each begins the moment it is written and what it refers to is there.

    model   ──[a]──[b]──[c: a]──[d: b, c]──┐
    a           └──────────┐               │
    b                └─────┼───────┐       │
    c                      └───┐   │       │      begins once a is done
    d                          └───┴───────┼──┐   begins once b and c are

A step whose reference leads nowhere, or to a step that failed, is not run, and its result says so. How calls run is
the dispatcher's to know.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hotloop.agent.events import CallArguments, CallFinished, CallOpened, Event
from hotloop.agent.plan.reference import BadReference, fill
from hotloop.agent.plan.schema import MAX_STEPS, BadPlan, Step
from hotloop.agent.tools.dispatch import Dispatcher, Outcome, Pending, stop
from hotloop.core.message import ToolCall


@dataclass(slots=True)
class _Planned:
    """A step on its way."""

    step: Step
    pending: Pending
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Or is known never to begin: its call is what it will be."""


class Execution:
    """Given steps in the order they are written."""

    def __init__(self, dispatcher: Dispatcher, *, turn: int, salt: int, emit: Callable[[Event], None]) -> None:
        self._dispatcher = dispatcher
        self._turn = turn
        self._salt = salt
        self._emit = emit
        self.made: list[Pending] = []
        """The calls that were made, in the order they began."""
        self._planned: dict[str, _Planned] = {}

    @property
    def step_ids(self) -> set[str]:
        return set(self._planned)

    @property
    def pending(self) -> list[Pending]:
        """The calls, in the order of the plan; each as it was made, once it has begun."""
        return [each.pending for each in self._planned.values()]

    def add(self, step: Step) -> None:
        """Carry out a step, as soon as that can be. Raises BadPlan if there are too many."""
        if len(self._planned) == MAX_STEPS:
            raise BadPlan(f"it has more than {MAX_STEPS} steps")
        call = ToolCall(f"call_{self._salt}_{len(self._planned)}", step.tool.name, _dump(step.arguments))
        self._emit(CallOpened(self._turn, call.id, call.name))
        self._emit(CallArguments(self._turn, call.id, call.arguments))
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

    async def _carry_out(self, step: Step) -> Outcome:
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
            outcome = Outcome(f"Error: not run: {problem}", is_error=True)
            self._emit(CallFinished(self._turn, call.id, call.name, outcome.text, is_error=True, duration_s=0.0))
            return outcome
        self.made.append(self._dispatcher.start(call, self._turn))
        running = self.made[-1].task
        # Not awaited itself: to stop waiting must not hang on a tool that does not stop.
        await asyncio.wait({running})
        return running.result()

    def _fill(self, planned: _Planned, needed: Mapping[str, _Planned]) -> str:
        """Put what it refers to into a call's arguments. Says why, if that cannot be."""
        for step_id, each in needed.items():
            if each.pending.task.result().is_error:
                return f"it needs the result of step {step_id!r} ({each.pending.call.name}), which failed"
        if not needed:
            return ""
        step, call = planned.step, planned.pending.call
        results = {step_id: each.pending.task.result().text for step_id, each in needed.items()}
        try:
            arguments = _dump(fill(step.arguments, results, step.tool.parameters))
        except BadReference as error:
            return str(error)
        except RecursionError:
            return "what it refers to is nested too deeply"
        planned.pending.call = ToolCall(call.id, call.name, arguments)
        return ""


def _dump(arguments: dict[str, Any]) -> str:
    """As a model would write it; half a surrogate pair, which a result may have, cannot be sent."""
    return json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace").decode()
