"""Where the arguments of calls that run ahead may come from: never from what only a tool has said."""

from typing import Any, cast

import pytest
from mcp import Client
from mcp import types as wire
from tests.agent.predict.talks import step, user
from tests.agent.runs import end_of, listen, of, speculate, speculating

from hotloop.agent.agent import Agent
from hotloop.agent.events import CallDispatched
from hotloop.agent.mcp import McpTool
from hotloop.agent.predict.history import History
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool


async def test_an_open_world_tool_runs_ahead_only_if_the_model_has_made_that_very_call():
    """A value of the user's may be a secret, and sending it somewhere is up to the model."""
    predictor = Predictor()
    for number in range(40):
        again = step("find_order", {"order_id": f"W{number:03}A1"}, "sent", "a")
        predictor.learn([user(f"Where is W{number:03}A1?"), *again, user("And now?"), *again])

    @tool(read_only=True, open_world=True)
    async def find_order(order_id: str) -> str:
        return "sent"

    asked = [user("Where is W099A1?")]
    repeated = [*asked, *step("find_order", {"order_id": "W099A1"}, "sent", "a"), user("And now?")]
    speculative = []
    for messages in (asked, repeated):
        speculation = speculating(predictor)
        early = speculate(speculation, [find_order])
        assert predictor.predict(History().follow(messages))[0].confidence >= speculation.threshold
        early.begin_turn(messages, 1)
        await early.close()
        speculative.append(speculation.counts.num_started)
    assert speculative == [0, 1]


async def test_what_a_result_says_is_not_looked_up():
    """A web page names an address of its writer's: nothing is fetched until the model has asked for it."""
    predictor, fetched = Predictor(), []
    for number in range(40):
        link = f"https://news.example/{number}"
        found = step("search", {"words": "news"}, {"results": [link]}, "s")
        predictor.learn([user("what is new?"), *found, *step("fetch", {"url": link}, "much", "f")])

    @tool(read_only=True)
    async def search(words: str) -> dict[str, list[str]]:
        return {"results": ["https://evil.example/?secret=42"]}

    @tool(read_only=True)
    async def fetch(url: str) -> str:
        fetched.append(url)
        return "much"

    speculation = speculating(predictor, threshold=0.01, max_waste=100.0)
    script = [ScriptedCall("search", words="news"), [ScriptedCall("fetch", url="https://news.example/99")], "Much."]
    events = await listen(Agent(ScriptedModel(script), [search, fetch], speculation=speculation), "what is new?")
    assert end_of(events).output == "Much."
    assert set(fetched) == {"https://news.example/99"}


@pytest.mark.parametrize("trusted", [False, True])
async def test_what_the_result_of_a_trusted_tool_says_may_be_looked_up(trusted: bool):
    predictor = Predictor()
    for number in range(40):
        order = f"W{number:03}A1"
        found = step("my_orders", {"month": "May"}, {"orders": [order]}, "s")
        predictor.learn([user("what did I buy?"), *found, *step("find_order", {"order_id": order}, "sent", "f")])

    @tool(read_only=True, trusted=trusted)
    async def my_orders(month: str) -> dict[str, list[str]]:
        return {"orders": ["W999A1"]}

    @tool(read_only=True)
    async def find_order(order_id: str) -> str:
        return "sent"

    speculation = speculating(predictor)
    script = [ScriptedCall("my_orders", month="May"), ScriptedCall("find_order", order_id="W999A1"), "A lamp."]
    events = await listen(Agent(ScriptedModel(script), [my_orders, find_order], speculation=speculation), "and I?")
    assert end_of(events).output == "A lamp."
    (dispatched,) = (event for event in of(CallDispatched, events) if event.name == "find_order")
    assert dispatched.was_speculative == trusted


def test_trust_outlives_a_conversation_that_was_rewritten():
    history = History(trusted=frozenset({"my_orders"}))
    history.follow([user("a")])
    history.follow([user("b")])
    assert history.trusted == {"my_orders"}


@pytest.mark.parametrize(
    ("hints", "read_only", "open_world"),
    [
        (None, False, True),
        ({}, False, True),
        ({"read_only_hint": True}, True, True),
        ({"read_only_hint": True, "open_world_hint": True}, True, True),
        ({"read_only_hint": True, "open_world_hint": False}, True, False),
        ({"read_only_hint": True, "destructive_hint": False, "open_world_hint": False}, True, False),
        ({"read_only_hint": True, "destructive_hint": True, "open_world_hint": False}, False, False),
        ({"destructive_hint": False, "open_world_hint": False}, False, False),
    ],
)
def test_the_hints_of_an_mcp_server_have_the_defaults_of_the_specification(
    hints: dict[str, Any] | None, read_only: bool, open_world: bool
):
    annotations = None if hints is None else wire.ToolAnnotations(**hints)
    offered = wire.Tool(name="read", input_schema={"type": "object"}, annotations=annotations)
    options = McpTool(cast(Client, None), offered).options
    assert (options.read_only, options.open_world) == (read_only, open_world)
