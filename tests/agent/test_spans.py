"""What a run records of itself: turns, questions and tools, and who is whose child."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from tests.agent.predict.talks import clerk
from tests.agent.runs import listen, speculating

from hotloop.agent.agent import Agent
from hotloop.agent.compaction import Compaction
from hotloop.agent.events import CallDispatched
from hotloop.agent.model import Ask, Model
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import FunctionTool, ToolOptions, tool
from hotloop.agent.wire.served import session_headers
from hotloop.core.errors import RequestError
from hotloop.core.prices import Prices
from hotloop.trace import names
from hotloop.trace.ledger import build_ledger
from hotloop.trace.span import Span, parse_traceparent
from hotloop.trace.tracer import ListTracer

SCRIPT = ["Let me look.", [ScriptedCall("look", place="here"), ScriptedCall("look", place="there")], "Found."]


@tool
async def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing is {place}"


@pytest.fixture
def tracer() -> ListTracer:
    return ListTracer()


def named(tracer: ListTracer, name: str) -> list[Span]:
    return [span for span in tracer.spans if span.name == name]


def script(ask: Ask) -> Any:
    return SCRIPT[1] if len(ask.messages) == 1 else SCRIPT[2]


async def run(model: Model, tracer: ListTracer, **fields: Any) -> Span:
    await listen(Agent(model, [look], tracer=tracer, **fields))
    [root] = [span for span in tracer.spans if span.is_root]
    assert len({span.trace_id for span in tracer.spans}) == 1
    assert {span.service for span in tracer.spans} == {"agent"}
    return root


async def test_a_run_is_a_tree(tracer: ListTracer) -> None:
    root = await run(ScriptedModel(script), tracer, name="scout", prices=Prices(prompt=1.0, output=1e6))
    assert root.name == names.RUN
    first, second = named(tracer, names.TURN)
    chats, tools = named(tracer, names.CHAT), named(tracer, names.TOOL)
    assert {first.parent_id, second.parent_id} == {root.span_id}
    assert [chat.parent_id for chat in chats] == [first.span_id, second.span_id]
    assert {span.parent_id for span in tools} == {first.span_id}
    told = root.attributes
    assert (told[names.AGENT], told[names.END], told[names.NUM_TURNS], told[names.NUM_CALLS]) == ("scout", "done", 2, 2)
    assert told[names.MONEY] == pytest.approx(sum(chat.attributes[names.MONEY] for chat in chats))
    assert told[names.NUM_OUTPUT] == sum(chat.attributes[names.NUM_OUTPUT] for chat in chats)
    assert chats[0].attributes[names.MODEL] == "scripted"
    assert chats[0].start_ns <= chats[0].attributes[names.FIRST_TOKEN_NS] <= chats[0].end_ns
    assert {span.attributes[names.TOOL_NAME] for span in tools} == {"look"}
    assert {span.attributes[names.NUM_TRIES] for span in tools} == {1}
    assert all(span.start_ns >= root.start_ns and span.end_ns <= root.end_ns for span in tracer.spans)
    assert len({span.session for span in tracer.spans}) == 1
    build_ledger(tracer.spans)


async def test_nothing_that_was_said_is_recorded_unasked(tracer: ListTracer) -> None:
    await run(ScriptedModel(script), tracer)
    assert "nothing is here" not in str(tracer.spans)
    assert "place" not in str(tracer.spans)


async def test_what_was_said_is_recorded_where_it_is_asked_for() -> None:
    tracer = ListTracer(keeps_content=True)
    root = await run(ScriptedModel(script), tracer)
    assert root.attributes[names.CONTENT_PROMPT] == "go"
    assert root.attributes[names.CONTENT_ANSWER] == "Found."
    one = next(span for span in named(tracer, names.TOOL) if "here" in span.attributes[names.CONTENT_RESULT])
    assert one.attributes[names.CONTENT_ARGUMENTS] == '{"place": "here"}'
    assert '"role":"user"' in named(tracer, names.CHAT)[0].attributes[names.CONTENT_REQUEST]


async def test_the_wire_is_told_which_question_it_carries(tracer: ListTracer) -> None:
    model = ScriptedModel(script)
    await run(model, tracer)
    sent = [parse_traceparent(session_headers(ask)["traceparent"]) for ask in model.asks]
    chats = named(tracer, names.CHAT)
    assert [(each.trace_id, each.span_id) for each in sent if each] == [(chat.trace_id, chat.span_id) for chat in chats]


async def test_without_a_tracer_the_wire_is_told_nothing() -> None:
    model = ScriptedModel(script)
    await listen(Agent(model, [look]))
    assert all("traceparent" not in session_headers(ask) for ask in model.asks)


async def test_a_refused_call_and_a_failed_run(tracer: ListTracer) -> None:
    def fails(ask: Ask) -> Any:
        if len(ask.messages) > 1:
            raise RequestError("no more")
        return [ScriptedCall("unheard_of")]

    root = await run(ScriptedModel(fails), tracer)
    assert root.error == "no more"
    assert root.attributes[names.END] == "failed"
    [call] = named(tracer, names.TOOL)
    assert (call.attributes[names.NUM_TRIES], call.attributes[names.IS_ERROR]) == (0, True)
    assert [turn.error for turn in named(tracer, names.TURN)] == ["", "no more"]
    assert [chat.error for chat in named(tracer, names.CHAT)] == ["", "no more"]


async def test_a_run_that_is_cancelled_tells_what_it_did(tracer: ListTracer) -> None:
    forever = asyncio.Event()

    @tool
    async def wait() -> str:
        await forever.wait()
        return ""

    agent = Agent(ScriptedModel([[ScriptedCall("wait")]]), [wait], tracer=tracer)
    async with aclosing(agent.stream("go")) as events:
        async for event in events:
            if isinstance(event, CallDispatched):
                break
    [call] = named(tracer, names.TOOL)
    assert call.error == "broken off"
    [root] = named(tracer, names.RUN)
    assert root.attributes[names.END] == "cancelled"
    assert root.end_ns >= call.end_ns >= call.start_ns > root.start_ns, "it ended when it was cancelled"
    [chat] = named(tracer, names.CHAT)
    assert root.attributes[names.NUM_OUTPUT] == chat.attributes[names.NUM_OUTPUT] > 0, "what was answered is paid for"
    assert {span.parent_id for span in named(tracer, names.TURN)} == {root.span_id}


async def test_an_agent_within_an_agent_is_part_of_its_trace(tracer: ListTracer) -> None:
    inner = Agent(ScriptedModel(["deep"]), name="inner").as_tool("ask", "Asks.")
    outer = Agent(
        ScriptedModel([[ScriptedCall("ask", prompt="a"), ScriptedCall("ask", prompt="b")], "done"]),
        [inner],
        tracer=tracer,
    )
    await listen(outer)
    [root] = [span for span in named(tracer, names.RUN) if span.is_root]
    inner_runs = [span for span in named(tracer, names.RUN) if not span.is_root]
    calls = named(tracer, names.TOOL)
    assert sorted(str(span.parent_id) for span in inner_runs) == sorted(call.span_id for call in calls)
    assert {span.trace_id for span in tracer.spans} == {root.trace_id}
    ledger = build_ledger(tracer.spans)
    assert len(ledger.turns) == 4


async def test_a_summary_belongs_to_the_run(tracer: ListTracer) -> None:
    def says(ask: Ask) -> Any:
        if ask.choice == "none":
            return "a summary"
        return "done" if len(ask.messages) > 6 else [ScriptedCall("look", place="x" * 400)]

    await listen(
        Agent(ScriptedModel(says), [look], tracer=tracer, compaction=Compaction(window_tokens=150, num_kept=2))
    )
    [root] = named(tracer, names.RUN)
    assert any(chat.parent_id == root.span_id for chat in named(tracer, names.CHAT))


async def test_what_was_speculative_is_told_used_or_wasted(tracer: ListTracer) -> None:
    predictor = Predictor()
    for number in range(30):
        predictor.learn(clerk(number))
    speculation, orders = speculating(predictor), ["W099A0", "W099A1", "W099A2"]

    async def find_customer(customer_id: str) -> Any:
        return {"name": "Ann", "orders": orders}

    async def find_order(order_id: str) -> Any:
        return {"order_id": order_id, "status": "sent"}

    finders = [FunctionTool(each, options=ToolOptions(read_only=True)) for each in (find_customer, find_order)]
    looks = [
        ScriptedCall("find_order", order_id=order) for order in orders[:2]
    ]  # not the third, which is expected, too
    model = ScriptedModel([ScriptedCall("find_customer", customer_id="ann_lee_1099"), *looks, "All are on their way."])
    agent = Agent(model, finders, tracer=tracer, speculation=speculation)
    await listen(agent, "Hello, I am ann_lee_1099. Where are my orders W099A0 and W099A1 and W099A2?")
    guesses = named(tracer, names.SPECULATIVE)
    calls = [span for span in named(tracer, names.TOOL) if span.attributes[names.WAS_SPECULATIVE]]
    assert len(calls) == sum(span.attributes[names.WAS_USED] for span in guesses) == speculation.counts.num_hits == 3
    assert len(guesses) - len(calls) == speculation.counts.num_wasted == 1
    for call in calls:
        assert call.start_ns <= call.attributes[names.DISPATCHED_NS] <= call.end_ns
    told = build_ledger(tracer.spans).turns
    assert [turn.num_speculative for turn in told] == [1, 1, 1, 1]
    assert [turn.num_wasted for turn in told] == [0, 0, 0, 1]


async def test_what_cannot_be_written_down_ends_no_run() -> None:
    tracer = ListTracer(keeps_content=True)
    result = await Agent(ScriptedModel(["Fine."]), tracer=tracer).run("half \ud83d of a pair")
    assert result.output == "Fine."
    [chat] = named(tracer, names.CHAT)
    assert "of a pair" in chat.attributes[names.CONTENT_REQUEST]
