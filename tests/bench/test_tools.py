"""Tool calls measured with and without shortcuts, against a server on loopback."""

import json
from typing import Any

import pytest
from tests.bench.fake_tools import Calls, FakeToolServer, first_tool

from hotloop.bench.client import ChatClient
from hotloop.bench.questions import AskOptions, follows_schema
from hotloop.bench.tools import Measured, learn, measure
from hotloop.bench.tools_report import figures_of, figures_of_all, tools_json
from hotloop.bench.workflows import generate_workflows
from hotloop.core.errors import RemoteError

MANNER = AskOptions()
QUESTIONS = generate_workflows(0, num_workflows=2)


async def run(server: FakeToolServer, manner: AskOptions = MANNER) -> Measured:
    async with ChatClient(server.url) as client:
        return await measure(client, QUESTIONS, manner)


async def test_prompts_are_read_first_then_shortcuts_then_none():
    with FakeToolServer() as server:
        measured = await run(server)
    assert len(measured.pairs) == 8
    asked = [(body["max_tokens"], body["shortcuts"]) for body in server.bodies]
    assert asked == 2 * (4 * [(1, False)] + 4 * [(512, True)] + 4 * [(512, False)])
    body = server.bodies[4]
    assert (body["tool_choice"], body["parallel_tool_calls"], body["temperature"]) == ("required", False, 0)
    assert "strict" not in body["tools"][0]["function"]
    assert tuple(body["messages"]) == QUESTIONS[0].messages


async def test_manner_reaches_the_wire():
    manner = AskOptions(agents=3, temperature=1, seed=7, max_tokens=9, tool_choice="auto", strict=False)
    with FakeToolServer() as server:
        measured = await run(server, manner)
    assert len(measured.pairs) == 8
    body = server.bodies[-1]
    assert (body["temperature"], body["seed"], body["max_tokens"], body["tool_choice"]) == (1, 7, 9, "auto")
    assert body["tools"][0]["function"]["strict"] is False


async def test_streamed_and_whole_answers_are_the_same():
    calls = [("find_customer", '{"customer_name": "Ada", "city": "Graz"}'), ("get_order", "{}")]
    with FakeToolServer(lambda _: calls) as server:
        measured = await run(server, AskOptions(delivery="both"))
    assert all(len(pair.answers) == 4 and pair.is_identical for pair in measured.pairs)
    assert [bool(body.get("stream")) for body in server.bodies[4:20:4]] == [True, True, False, False]
    answer = measured.pairs[0].unstreamed[0]
    assert [(call.name, call.arguments) for call in answer.calls] == calls
    assert answer.end == "calls"


async def test_figures():
    def script(body: dict[str, Any]) -> Calls:
        return first_tool(body) if body["shortcuts"] else [("find_customer", "{}")]

    with FakeToolServer(script) as server:
        figures = figures_of("mine", await run(server), follows_schema)
    assert (figures.num_questions, figures.num_answers, figures.num_calls, figures.num_valid) == (8, 16, 16, 8)
    assert (figures.num_identical, figures.num_right, figures.num_errors, figures.num_without_call) == (0, 0, 0, 0)
    assert (figures.forced_share, figures.acceptance) == (0.5, 0.75)
    assert (figures.tokens_per_step, figures.slow_tokens_per_step) == (4, 1)
    assert figures.ratio > 0
    assert figures.ratio_p10 <= figures.ratio_p50 <= figures.ratio_p90


async def test_right_answers_are_counted():
    keys = {q.messages[-1]["content"]: q.expected[0] for q in QUESTIONS}

    def script(body: dict[str, Any]) -> Calls:
        ((name, arguments),) = keys[body["messages"][-1]["content"]].items()
        return [(name, json.dumps({field: options[0] for field, options in arguments.items()}))]

    with FakeToolServer(script) as server:
        measured = await run(server)
    columns = figures_of_all({"a": measured, "b": measured}, follows_schema)
    values = tools_json(columns)["categories"]
    assert [column["label"] for column in values] == ["a", "b", "total"]
    assert [column["num_right"] for column in values] == [8, 8, 16]
    assert [column["num_identical"] for column in values] == [8, 8, 16]


async def test_answers_without_a_call_are_counted():
    with FakeToolServer(lambda _: []) as server:
        figures = figures_of("mine", await run(server))
    assert (figures.num_without_call, figures.num_calls, figures.num_right) == (16, 0, 0)
    assert figures.tokens_per_s == figures.ratio == 0


async def test_a_question_that_fails_once_is_one_error_and_no_pair():
    with FakeToolServer(failing=frozenset({0, 5, 8})) as server:
        measured = await run(server)
    assert len(measured.pairs) == 6
    assert [error.split(":")[0] for error in measured.errors] == ["workflow-0-0-0", "workflow-0-0-1"]


async def test_if_nothing_is_answered_the_server_has_failed():
    with FakeToolServer(failing=frozenset(range(100))) as server:
        with pytest.raises(RemoteError, match="out of order"):
            await run(server)
        async with ChatClient(server.url) as client:
            with pytest.raises(RemoteError, match=r"workflow-0-0-0: .*out of order"):
                await learn(client, QUESTIONS, MANNER)


async def test_learning_asks_everything_once_with_shortcuts():
    with FakeToolServer() as server:
        async with ChatClient(server.url) as client:
            await learn(client, QUESTIONS, MANNER)
    assert [body["shortcuts"] for body in server.bodies] == 8 * [True]
