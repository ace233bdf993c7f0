"""Plans: each step begins the moment it is written and what it refers to is there."""

import asyncio
import json
from contextlib import aclosing, suppress
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.agent.plan.planners import GOOD, TOOLS, Dictated, double, fail, listen, plan, planner
from tests.agent.runs import end_of, num_tasks, of
from tests.properties import examples

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import (
    CallDispatched,
    CallFinished,
    Event,
    PlanAbandoned,
    RunEnded,
    Text,
    TurnFinished,
    TurnStarted,
)
from hotloop.agent.limits import LimitReached, Limits
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import HotloopError
from hotloop.core.message import ToolCall
from hotloop.core.prices import Prices


async def test_a_plan_from_the_question_to_the_answer() -> None:
    written = plan(
        ("a", "find", {"name": "Ann"}), ("b", "double", {"n": "${a.ids[1]}"}), ("c", "find", {"name": "${a.name} ${b}"})
    )
    model, conversation = planner(written, "Her number is 8."), Conversation()
    events = await listen(Agent(model, TOOLS, "Be brief."), conversation=conversation)
    assert end_of(events).output == "Her number is 8."
    assert "".join(event.text for event in of(Text, events)) == "Her number is 8."
    assert not of(PlanAbandoned, events)
    assert [event.turn for event in of(TurnStarted, events)] == [1, 2]
    assert [event.num_calls for event in of(TurnFinished, events)] == [3, 0]
    roles = [message.role for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "tool", "assistant"]
    calls = conversation.messages[2].tool_calls
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("find", {"name": "Ann"}),
        ("double", {"n": 4}),
        ("find", {"name": "Ann 8"}),
    ]
    assert [message.tool_call_id for message in conversation.messages[3:6]] == [call.id for call in calls]
    assert [message.content for message in conversation.messages[4:5]] == ["8"]
    assert end_of(events).spent.num_turns == 2


async def test_what_the_model_is_asked() -> None:
    model = planner(plan(("a", "double", {"n": 1})), "2")
    await Agent(model, TOOLS, "Be brief.").plan("What is twice 1?")
    asked, then = model.asks
    assert asked.choice == "none"
    assert asked.schema is not None
    assert then.schema is None
    assert asked.tools == then.tools
    assert asked.session_id == then.session_id
    assert asked.messages[0] == then.messages[0]
    assert asked.messages[1].content.startswith(then.messages[1].content)  # nothing before the task is new


async def test_a_step_begins_while_the_plan_is_being_written() -> None:
    model, begun, may_end = Dictated(), asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await may_end.wait()
        return "5"

    first, second = '{"steps": [{"id": "a", "tool": "wait", "arguments": {}}', ', {"id": "b", "tool": "double", '
    model.words.put_nowait(first)
    model.words.put_nowait(second)
    agent = Agent(model, [wait, double])
    running = asyncio.create_task(listen(agent))
    await begun.wait()
    model.words.put_nowait('"arguments": {"n": "${a}"}}')
    may_end.set()
    model.words.put_nowait("]}")
    model.words.put_nowait(None)
    events = await running
    assert [(event.name, event.arguments) for event in of(CallDispatched, events)] == [
        ("wait", "{}"),
        ("double", '{"n": 5}'),
    ]


async def test_a_step_with_references_begins_before_the_plan_is_whole() -> None:
    model = Dictated()
    steps = [("a", "double", {"n": 1}), ("b", "double", {"n": "${a}"}), ("c", "double", {"n": 3})]
    model.words.put_nowait(plan(*steps).removesuffix("}}]}"))
    finished = []
    async with aclosing(Agent(model, TOOLS).stream_plan("go")) as events:
        async for event in events:
            if isinstance(event, CallFinished):
                finished.append(event.result)
                if len(finished) == 2:  # the model has not written its last words
                    model.words.put_nowait("}}]}")
                    model.words.put_nowait(None)
    assert finished == ["2", "4", "6"]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """For each step the earlier ones it needs."""
    size = draw(st.integers(1, 8))
    ids = [f"s{i}" for i in range(size)]
    return {ids[i]: draw(st.lists(st.sampled_from(ids[:i]), unique=True)) if i else [] for i in range(size)}


@given(graphs(), st.randoms(use_true_random=False), st.integers(1, 40))
@settings(max_examples=examples(60))
def test_any_graph_runs_as_parallel_as_it_can(graph: dict[str, list[str]], chance: Any, piece: int) -> None:
    """Whenever nothing moves any more, exactly the steps whose needs are done run; then a random one of them ends."""

    async def follow() -> list[Event]:
        gates: dict[str, asyncio.Future[str]] = {}

        @tool
        async def work(me: str, needs: list[str]) -> str:
            assert needs == [f"result of {each}" for each in graph[me]]
            gates[me] = asyncio.get_running_loop().create_future()
            return await gates[me]

        steps = [(i, "work", {"me": i, "needs": [f"${{{n}}}" for n in needs]}) for i, needs in graph.items()]
        model = planner(plan(*steps), "done", piece=piece)
        running = asyncio.create_task(listen(Agent(model, [work], limits=Limits(concurrency=100))))
        done: set[str] = set()
        while len(done) < len(graph):
            ready = {i for i, needs in graph.items() if i not in done and set(needs) <= done}
            while set(gates) - done != ready:
                await asyncio.sleep(0)
                assert not running.done()
            ending = chance.choice(sorted(ready))
            gates[ending].set_result(f"result of {ending}")
            done.add(ending)
        return await running

    events = asyncio.run(asyncio.wait_for(follow(), 60))
    assert not of(PlanAbandoned, events)
    assert end_of(events).output == "done"
    assert len(of(CallDispatched, events)) == len(of(CallFinished, events)) == len(graph)


async def test_what_needs_a_failed_step_is_not_run() -> None:
    written = plan(
        ("a", "fail", {"why": "no luck"}),
        ("b", "double", {"n": "${a}"}),
        ("c", "double", {"n": "${b}"}),
        ("d", "find", {"name": "x"}),
        ("e", "double", {"n": "${d.nothing}"}),
        ("f", "double", {"n": "${d.ids[0]}"}),
    )
    conversation = Conversation()
    events = await listen(Agent(planner(written, "sorry"), TOOLS), conversation=conversation)
    assert end_of(events).output == "sorry"
    assert not of(PlanAbandoned, events)
    results = [message.content for message in conversation.messages if message.role == "tool"]
    assert results == [
        "Error: no luck",
        "Error: not run: it needs the result of step 'a' (fail), which failed",
        "Error: not run: it needs the result of step 'b' (double), which failed",
        '{"name":"x","ids":[3,4]}',
        "Error: not run: ${d.nothing} leads nowhere: there is no 'nothing'",
        "6",
    ]
    assert [event.name for event in of(CallDispatched, events)] == ["fail", "find", "double"]
    assert len(of(CallFinished, events)) == 6


async def test_an_agent_without_tools_just_answers() -> None:
    model = ScriptedModel(["hello"])
    assert (await Agent(model).plan("go")).output == "hello"
    assert len(model.asks) == 1


async def test_an_answer_of_a_type() -> None:
    model = planner(plan(GOOD), [ScriptedCall("final_answer", value=2)])
    assert (await Agent(model, TOOLS, output=int).plan("go")).output == 2
    assert "final_answer" not in json.dumps(model.asks[0].schema)


async def test_limits_and_approval_hold() -> None:
    asked = []

    @tool(needs_approval=True, cost=2.0)
    def pay(n: int) -> int:
        return n

    async def approve(call: ToolCall) -> bool:
        asked.append(json.loads(call.arguments))
        return True

    written = plan(
        ("a", "pay", {"n": 1}), ("b", "pay", {"n": "${a}"}), ("c", "fail", {"why": "x"}), ("d", "pay", {"n": "${c}"})
    )
    agent = Agent(planner(written, "paid"), [pay, fail], approve=approve, prices=Prices(output=1e6))
    result = await agent.plan("go")
    assert asked == [{"n": 1}, {"n": 1}]  # with what it refers to, and not for what is not run
    assert result.spent.money == pytest.approx(4 + result.spent.usage.num_output)
    agent = Agent(planner(written, "paid"), [pay, fail], approve=approve, limits=Limits(money=3))
    with pytest.raises(LimitReached):
        await agent.plan("go")
    with pytest.raises(LimitReached):
        await Agent(planner(written, "paid"), [pay, fail], approve=approve, limits=Limits(turns=1)).plan("go")


async def test_only_so_many_run_at_once() -> None:
    num_running, most = 0, 0

    @tool(max_concurrency=2)
    async def work(n: int) -> int:
        nonlocal num_running, most
        num_running += 1
        most = max(most, num_running)
        for _ in range(5):
            await asyncio.sleep(0)
        num_running -= 1
        return n

    steps = [(f"s{i}", "work", {"n": i}) for i in range(6)]
    await Agent(planner(plan(*steps), "done", piece=10_000), [work]).plan("go")
    assert most == 2


async def test_closing_the_stream_stops_everything() -> None:
    stopped, before = asyncio.Event(), num_tasks()

    @tool
    async def hang() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return 1

    model = Dictated()
    model.words.put_nowait(plan(("a", "hang", {}), ("b", "double", {"n": "${a}"})).removesuffix("]}"))
    async with aclosing(Agent(model, [hang, double]).stream_plan("go")) as events:
        async for event in events:
            if isinstance(event, CallDispatched):
                break
    assert stopped.is_set()
    assert num_tasks() == before


async def test_cancelling_a_plan_stops_everything() -> None:
    begun, before = asyncio.Event(), num_tasks()

    @tool
    async def hang() -> int:
        begun.set()
        await asyncio.Event().wait()
        return 1

    agent = Agent(planner(plan(("a", "hang", {}), ("b", "double", {"n": "${a}"})), "never"), [hang, double])
    running = asyncio.create_task(agent.plan("go"))
    await begun.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert num_tasks() == before


async def test_the_limit_of_time_ends_a_plan() -> None:
    before = num_tasks()

    @tool
    async def hang() -> int:
        await asyncio.Event().wait()
        return 1

    agent = Agent(planner(plan(("a", "hang", {})), "never"), [hang], limits=Limits(time_s=0.05))
    conversation = Conversation()
    events = await listen(agent, conversation=conversation)
    assert [message.role for message in conversation.messages] == ["user", "assistant", "tool"], "what began is told"
    ended = of(RunEnded, events)[0]
    assert ended.end == "limit"
    assert isinstance(ended.error, HotloopError)
    assert num_tasks() == before


async def test_results_are_prefilled_ahead_once_all_calls_are_known() -> None:
    @tool
    def long(name: str) -> str:
        return name * 500

    @tool
    async def slow(text: str) -> str:
        await model.has_read.wait()
        return "slow"

    model = planner(plan(("a", "long", {"name": "x"}), ("b", "slow", {"text": "${a}"})), "done")
    await Agent(model, [long, slow]).plan("go")
    [read] = model.reads
    assert [message.role for message in read.messages] == ["user", "assistant", "tool"]
    assert read.messages == model.asks[-1].messages[:3]


async def test_a_tool_that_does_not_stop_holds_nobody_up() -> None:
    """Only the dispatcher has patience with it."""
    begun, release = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        begun.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
                break
            release.set()  # it was told to stop, and takes another turn of the loop to do so
            await asyncio.sleep(0)
        return "late"

    agent = Agent(planner(plan(("a", "stubborn", {}), ("b", "double", {"n": "${a}"})), "never"), [stubborn, double])
    running = asyncio.create_task(agent.plan("go"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
