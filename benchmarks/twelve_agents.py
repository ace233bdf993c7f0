"""Twelve agents that use everything there is: five do recorded jobs, and seven are here for a feature each.

What each run took and what its agent was told is taken down by who called it; nothing here knows a trace.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.agent.plan import make_tools
from benchmarks.agent.recorded import AgentJob, Episode, Latency, RecordedTool, canonical
from benchmarks.agent.replayed import ReplayedModel
from hotloop.agent.agent import Agent
from hotloop.agent.compaction import Compaction
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, Event, RunEnded, RunStarted, Text
from hotloop.agent.limits import Limits
from hotloop.agent.model import Model
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.speculation import SpeculativeForesight
from hotloop.agent.tools.tool import FunctionTool, Traits
from hotloop.core.errors import HotloopError
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.trace.tracer import Tracer
from hotloop.wire.usage import ApiUsage

NUM_RECORDED = 5
MAX_OUT = 48


class Ran(NamedTuple):
    """A run as its caller saw it. One that is broken off tells its caller nothing."""

    name: str
    run_id: str
    wall_s: float
    usage: ApiUsage | None
    error: HotloopError | None


async def watch(name: str, events: AsyncGenerator[Event, None], until: type[Event] = RunEnded) -> Ran:
    begun_at, run_id, usage, error = time.monotonic(), "", None, None
    async with aclosing(events):
        async for event in events:
            match event:
                case RunStarted():
                    run_id = event.run_id
                case RunEnded():
                    usage, error = event.spent.usage, event.error
            if isinstance(event, until):
                break
    return Ran(name, run_id, time.monotonic() - begun_at, usage, error)


@dataclass(slots=True)
class Company:
    """The twelve."""

    server: Model
    tracer: Tracer
    jobs: list[AgentJob]
    foresight: SpeculativeForesight = field(init=False)

    def __post_init__(self) -> None:
        predictor = Predictor()
        for job in self.jobs * 2:  # it knows these jobs: what is looked at is not how well it guesses
            predictor.learn(list(_as_messages(job)))
        self.foresight = SpeculativeForesight(predictor)

    async def work(self) -> list[Ran]:
        acts = [self._replay(job) for job in self.jobs]
        acts += [self._plan(), self._decide(), self._branch(), self._lead(), self._talk(), self._insist(), self._quit()]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(act) for act in acts]
        return [ran for task in tasks for ran in task.result()]

    def _hire(self, name: str, tools: Sequence[Any] = (), said: Sequence[Message] = (), **more: Any) -> Agent[Any]:
        """One who says what is given, or else what the model says."""
        model = ReplayedModel(self.server, said, max_tokens=MAX_OUT) if said else self.server
        settings = {"max_tokens": MAX_OUT, "temperature": 0.0, "limits": Limits(turns=4), **more}
        words = f"You are called {name}. You work for a shop, and answer in a few words."
        return Agent(model, tools, words, name=name, tracer=self.tracer, foresight=self.foresight, **settings)

    async def _replay(self, job: AgentJob) -> list[Ran]:
        said = [answer for episode in job.episodes for answer in episode.answers]
        tools = [RecordedTool(job, spec, Latency()) for spec in job.tools]
        agent = self._hire(job.id, tools, said, limits=Limits(turns=100))
        agent.instructions = job.system
        conversation = Conversation()
        return [await watch(job.id, agent.stream(each.prompt, conversation=conversation)) for each in job.episodes]

    async def _plan(self) -> list[Ran]:
        agent = self._hire("planner", make_tools(0.2), max_tokens=200)
        return [await watch("planner", agent.stream_plan("Make Ann Miller an offer for a lamp."))]

    async def _decide(self) -> list[Ran]:
        """It must call a tool, and in the end the one that gives the answer."""
        agent = self._hire("decider", make_tools(0.2), output=list[str], max_tokens=160)
        return [await watch("decider", agent.stream("Which articles are there?"))]

    async def _branch(self) -> list[Ran]:
        agent, base = self._hire("branches"), Conversation()
        prompts = ("Name a lamp.", "Name a chair.", "Name a table.")
        events = [agent.stream(prompt, conversation=base.fork()) for prompt in prompts]
        return await asyncio.gather(*(watch("branches", each) for each in events))

    async def _lead(self) -> list[Ran]:
        helper = self._hire("helper").as_tool("ask", "Ask a helper.")
        said = [
            _calls(("ask", {"prompt": "Name a lamp."}), ("ask", {"prompt": "Name a chair."})),
            _says("That is all."),
        ]
        return [await watch("leader", self._hire("leader", [helper], said).stream("What is there?"))]

    async def _talk(self) -> list[Ran]:
        conversation = Conversation()
        agent = self._hire("talker", compaction=Compaction(window_tokens=200, num_kept=1, max_summary_tokens=32))
        prompts = ("What is a lamp?", "And a chair?", "And a table?", "And a bed?")
        return [await watch("talker", agent.stream(prompt, conversation=conversation)) for prompt in prompts]

    async def _insist(self) -> list[Ran]:
        num_tries = 0

        async def press() -> str:
            nonlocal num_tries
            num_tries += 1
            if num_tries == 1:
                raise OSError("it is stuck")
            return "it rang"

        tool = FunctionTool(press, traits=Traits(idempotent=True))
        agent = self._hire("stubborn", [tool], [_calls(("press", {})), _says("It rang.")])
        return [await watch("stubborn", agent.stream("Ring the bell."))]

    async def _quit(self) -> list[Ran]:
        async def wait() -> str:
            await asyncio.Event().wait()
            return ""

        waiting = self._hire("quitter", [FunctionTool(wait)], [_calls(("wait", {}))])
        talking = self._hire("quitter", max_tokens=400, extra={"ignore_eos": True})
        return [
            await watch("quitter, in a tool", waiting.stream("Wait."), CallDispatched),
            await watch("quitter, in a word", talking.stream("Talk."), Text),
        ]


def _calls(*calls: tuple[str, dict[str, Any]]) -> Message:
    made = (ToolCall(f"call_{i}", name, json.dumps(arguments)) for i, (name, arguments) in enumerate(calls))
    return Message("assistant", tool_calls=tuple(made))


def _says(text: str) -> Message:
    return Message("assistant", text)


def _as_messages(job: AgentJob) -> Iterator[Message]:
    for episode in job.episodes:
        yield Message("user", episode.prompt)
        for answer in episode.answers:
            yield answer
            for call in answer.tool_calls:
                yield Message("tool", job.results.get((call.name, canonical(call.arguments)), ""), tool_call_id=call.id)


def make_up_jobs() -> Iterator[AgentJob]:
    """Clerks, who look up a customer, then all orders of that one at once, and then answer."""
    tools = tuple(
        Tool(
            name, f"Look up: {name}.", {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
        )
        for name in ("find_customer", "find_order")
    )
    for number in range(NUM_RECORDED):
        orders = [f"W{number}A{i}" for i in range(3)]
        asked = [("find_customer", {"id": f"ann-{number}"}), *(("find_order", {"id": order}) for order in orders)]
        found = [json.dumps({"orders": orders, "notes": "A good customer. " * 30}), *(["It was sent. " * 40] * 3)]
        results = {(name, canonical(json.dumps(sent))): text for (name, sent), text in zip(asked, found, strict=True)}
        answers = (_calls(asked[0]), _calls(*asked[1:]), _says("All of your orders are on their way to you."))
        system = "You are a clerk of a shop. Look up what you are asked, and answer. " * 20
        yield AgentJob(f"job-{number}", system, tools, (Episode(f"I am ann-{number}.", answers),), results)
