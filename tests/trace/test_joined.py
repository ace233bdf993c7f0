"""Twelve agents with everything on, through a router to two servers: every run's account is whole, and the tokens of
all accounts are those that the engines counted, to the last one.

On are speculation, prefill ahead, early dispatch, parallel tools, plans, branches, sub-agents, compaction, drafts and
forced tokens; a tool that fails is tried again, runs are broken off, and a replica dies. Nothing here asserts how long
anything took, only that the parts make up the whole and that the whole lies within what the caller saw.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from tests.agent.predict.talks import clerk
from tests.agent.runs import speculating
from tests.server.calls import write_call
from tests.trace.routed import RoutedReplicas

from hotloop.agent.agent import Agent
from hotloop.agent.compaction import Compaction
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, Event, RunEnded, RunStarted, Text
from hotloop.agent.model import Ask
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.tools.tool import FunctionTool, ToolOptions
from hotloop.agent.wire.openai import OpenAIModel
from hotloop.core.errors import HotloopError
from hotloop.trace import names
from hotloop.trace.ledger import RunLedger, TokenCounts, build_ledger
from hotloop.trace.runs import RunSummary, TraceStore
from hotloop.trace.span import Span
from hotloop.trace.store import StoreTracer
from hotloop.trace.tracer import Tracer
from hotloop.wire.usage import ApiUsage

WORDS = "Everything there is to know about it, in many words. " * 10
ORDERS = ["W099A0", "W099A1", "W099A2"]
PLAN = {
    "steps": [
        {"id": "a", "tool": "near", "arguments": {"place": "here"}},
        {"id": "b", "tool": "near", "arguments": {"place": "${a}"}},
    ]
}
PLAY = {
    "clerk": [
        write_call("find_customer", customer_id="ann_lee_1099"),
        *(write_call("find_order", order_id=order) for order in ORDERS[:2]),  # not the third, which is expected as well
        "All are on their way.",
    ],
    "reader": [f"I look. {write_call('near', place='here')}\n{write_call('far', place='there')}", "Both are seen."],
    "planner": ["It is done."],
    "boss": [f"{write_call('dive', prompt='left')}\n{write_call('dive', prompt='right')}", "Both are back."],
    "diver": [write_call("near", place="below"), "I have seen the ground."],
    "talker": ["That is a good question, and it has a long answer. " * 2],
    "stubborn": [write_call("flaky", place="there"), "It worked."],
    "quitter": [write_call("far", place="nowhere")],
    "rambler": [WORDS * 4],
}


def says(prompt: str) -> str:
    *_, last = prompt.split("<|im_start|>")
    if "Write a summary" in last:
        return "Much was said, and nothing was found."
    if "First write a plan" in last:
        return json.dumps(PLAN)
    found = re.search(r"You are the (\w+)", prompt)
    assert found
    script, number = PLAY[found[1]], prompt.count("<|im_start|>assistant")
    return script[min(number, len(script) - 1)]


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


class WatchedModel(OpenAIModel):
    """Tells when something was prefilled ahead."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.has_read = asyncio.Event()

    async def prefill(self, ask: Ask) -> None:
        await super().prefill(ask)
        self.has_read.set()


def make_tools(model: WatchedModel) -> list[FunctionTool]:
    num_tries = 0

    async def near(place: str) -> str:
        """Look at a near place."""
        return f"{place}: {WORDS}"

    async def far(place: str) -> str:
        """Look at a far place, which takes until what is near was read."""
        await model.has_read.wait()
        return f"{place} is far"

    async def flaky(place: str) -> str:
        """Look, if it works."""
        nonlocal num_tries
        num_tries += 1
        if num_tries == 1:
            raise OSError("out of order")
        return f"{place} was seen at last"

    async def find_customer(customer_id: str) -> Any:
        """Find a customer."""
        return {"name": "Ann", "orders": ORDERS}

    async def find_order(order_id: str) -> Any:
        """Find an order."""
        return {"order_id": order_id, "status": "sent"}

    functions = (near, far, flaky, find_customer, find_order)
    return [FunctionTool(each, options=ToolOptions(read_only=True)) for each in functions]


class Company:
    """The twelve agents."""

    def __init__(self, url: str, tracer: Tracer) -> None:
        self._url = f"{url}/v1"
        self._tracer = tracer
        predictor = Predictor()
        for number in range(30):
            predictor.learn(clerk(number))
        self._speculation = speculating(predictor)

    async def perform(self) -> list[Ran]:
        roles = ("clerk", "clerk", "clerk", "reader", "reader", "planner", "boss", "stubborn")
        acts = [self._act(role) for role in roles]
        acts += [self._branches(), self._talk(), self._quit("quitter", CallDispatched), self._quit("rambler", Text)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(act) for act in acts]
        all_of_them = [ran for task in tasks for ran in task.result()]
        assert not any(ran.error for ran in all_of_them)
        return all_of_them

    def _hire(self, role: str, **fields: Any) -> Agent[str]:
        model = WatchedModel(self._url)
        tools: list[Any] = make_tools(model)
        if role == "boss":
            diver = Agent(model, make_tools(model), f"You are the diver. {WORDS}", name="diver")
            tools.append(diver.as_tool("dive", "Dives."))
        settings = {"name": role, "tracer": self._tracer, "speculation": self._speculation, **fields}
        return Agent(model, tools, f"You are the {role}. {WORDS}", **settings)

    async def _act(self, role: str) -> list[Ran]:
        prompt = "Hello, I am ann_lee_1099. Where are my orders W099A0 and W099A1 and W099A2?"
        async with self._hire(role) as agent:
            return [await watch(role, agent.stream_plan(prompt) if role == "planner" else agent.stream(prompt))]

    async def _branches(self) -> list[Ran]:
        base = Conversation()
        async with self._hire("clerk") as agent:
            branches = [agent.stream(f"I am ann_lee_{number}.", conversation=base.fork()) for number in (1099, 1100)]
            return await asyncio.gather(*(watch("branch", branch) for branch in branches))

    async def _talk(self) -> list[Ran]:
        conversation = Conversation()
        async with self._hire("talker", compaction=Compaction(window_tokens=100, num_kept=1)) as agent:
            return [await watch("talker", agent.stream(f"And {n}?", conversation=conversation)) for n in range(4)]

    async def _quit(self, role: str, until: type[Event]) -> list[Ran]:
        async with self._hire(role) as agent:
            return [await watch(role, agent.stream("Go."), until)]


@dataclass(frozen=True, slots=True)
class Played:
    ran: list[Ran]
    spans: dict[str, list[Span]]
    summaries: dict[str, RunSummary]
    counted: dict[str, int]
    """By the engines."""

    def ledgers(self) -> list[tuple[Ran, RunLedger, list[Span]]]:
        return [(each, build_ledger(self.spans[each.run_id]), self.spans[each.run_id]) for each in self.ran]

    def named(self, name: str) -> list[Span]:
        return [span for spans in self.spans.values() for span in spans if span.name == name]


COUNTS = {
    "prompt": "prompt",
    "cached": "cached",
    "output": "output",
    "forced": "forced",
    "drafted": "drafted",
    "accepted": "matched",
}
"""What the engine and the ledger call them."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    path = tmp_path_factory.mktemp("all") / "trace.db"
    with RoutedReplicas(path, says) as fleet:
        tracer = StoreTracer(path)
        ran = asyncio.run(Company(fleet.url, tracer).perform())
        tracer.close()
        counted = {name: fleet.count(name) for name in COUNTS}
    with TraceStore(path) as store:
        runs = store.runs()
        spans = {run.trace_id: store.spans(run.trace_id) for run in runs}
    run_ids = {trace_id: _root(each).attributes[names.RUN_ID] for trace_id, each in spans.items()}
    by_run = {run_ids[trace_id]: each for trace_id, each in spans.items()}
    return Played(ran, by_run, {run_ids[run.trace_id]: run for run in runs}, counted)


def _root(spans: list[Span]) -> Span:
    [root] = [span for span in spans if span.is_root]
    return root


@pytest.mark.long
def test_everything_was_on(played: Played) -> None:
    assert len(played.ran) == len(played.spans) == 16, "twelve agents; one has two branches, one talks four times"
    ends = {each.run_id: _root(played.spans[each.run_id]).attributes[names.END] for each in played.ran}
    assert [ends[each.run_id] == "cancelled" for each in played.ran] == [each.usage is None for each in played.ran]
    assert sum(bool(span.attributes.get(names.IS_PREFILL_ONLY)) for span in played.named(names.CHAT)) >= 2
    assert any(span.attributes[names.WAS_USED] for span in played.named(names.SPECULATIVE))
    assert any(not span.attributes[names.WAS_USED] for span in played.named(names.SPECULATIVE))
    assert any(span.attributes[names.NUM_TRIES] == 2 for span in played.named(names.TOOL) if not span.error)
    assert any(span.attributes[names.REPLICA] for span in played.named(names.ATTEMPT)), "the replica that died"
    assert {span.attributes[names.AGENT] for span in played.named(names.RUN)} > {"boss", "diver", "planner", "talker"}
    assert played.counted["forced"] > 0
    [planner] = [each for each in played.ran if each.name == "planner"]
    assert len([span for span in played.spans[planner.run_id] if span.name == names.TOOL]) == 2
    between = [span.parent_id for span in played.named(names.CHAT)]
    assert set(between) & {span.span_id for span in played.named(names.RUN)}, "summaries"


def test_the_parts_of_every_run_make_up_its_time(played: Played) -> None:
    for ran, ledger, spans in played.ledgers():
        assert sum(ledger.parts.values()) == pytest.approx(ledger.wall_s, abs=1e-6), ran.name
        assert ledger.wall_s <= ran.wall_s + 1e-6, ran.name
        ends = [span.end_ns for span in spans if span.service == "agent"]
        assert ledger.end_ns == max(ends), "it lasts as long as anything of it"
        for turn in ledger.turns:
            assert sum(turn.parts.values()) == pytest.approx(turn.wall_s, abs=1e-6)


def test_every_client_was_told_what_its_ledger_has(played: Played) -> None:
    for ran, ledger, spans in played.ledgers():
        told = _root(spans).attributes
        spent = (told[names.NUM_PROMPT], told[names.NUM_CACHED], told[names.NUM_OUTPUT])
        assert (ledger.tokens.prompt, ledger.tokens.cached, ledger.tokens.output) == spent, ran.name
        if ran.usage:
            assert spent == (ran.usage.num_prompt, ran.usage.num_cached, ran.usage.num_output)
        listed = played.summaries[ran.run_id]
        assert (listed.num_prompt, listed.num_cached, listed.num_output) == spent
        assert listed.num_recomputed == ledger.tokens.recomputed
        assert ledger.tokens.prompt == ledger.tokens.cached + ledger.tokens.new + ledger.tokens.recomputed


def test_all_that_the_engines_did_is_in_the_ledgers(played: Played) -> None:
    ledgers = [ledger for _, ledger, _ in played.ledgers()]
    did = sum((ledger.tokens + ledger.prefill_ahead + ledger.lost for ledger in ledgers), TokenCounts())
    assert {name: getattr(did, ours) for name, ours in COUNTS.items()} == played.counted
    assert any(ledger.lost.prompt for ledger in ledgers), "what was broken off"
    assert any(ledger.prefill_ahead.prompt for ledger in ledgers)


def test_an_answer_is_called_the_same_by_all_who_saw_it(played: Played) -> None:
    for spans in played.spans.values():
        by_id = {span.span_id: span for span in spans}
        for request in (span for span in spans if span.name == names.REQUEST and not span.error):
            route = by_id[request.parent_id or ""]
            chat = by_id[route.parent_id or ""]
            if not chat.attributes.get(names.IS_PREFILL_ONLY) and not chat.error:
                answer_ids = {each.attributes[names.ANSWER_ID] for each in (request, route, chat)}
                assert len(answer_ids) == 1


def test_a_run_is_one_tree_from_the_agent_to_the_engine(played: Played) -> None:
    parents = {
        names.RUN: {names.TOOL},
        names.TURN: {names.RUN},
        names.CHAT: {names.TURN, names.RUN},
        names.TOOL: {names.TURN},
        names.SPECULATIVE: {names.TURN},
        names.ROUTE: {names.CHAT},
        names.ATTEMPT: {names.ROUTE},
        names.REQUEST: {names.ROUTE},
        names.QUEUE: {names.REQUEST},
        names.PREFILL: {names.REQUEST},
        names.DECODE: {names.REQUEST},
    }
    for spans in played.spans.values():
        by_id = {span.span_id: span for span in spans}
        for span in spans:
            assert span.is_root or by_id[span.parent_id or ""].name in parents[span.name]
        assert len({span.trace_id for span in spans}) == 1
    for ran, ledger, _ in played.ledgers():
        assert all(turn.replica and turn.reason for turn in ledger.turns if turn.tokens.prompt), ran.name
        assert ledger.agent == ("clerk" if ran.name == "branch" else ran.name)
