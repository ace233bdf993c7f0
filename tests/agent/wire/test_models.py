"""Models of each API over loopback: what they ask, what they hear, when they ask again, and what they never tell."""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from anthropic.types import message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from pydantic import TypeAdapter
from tests.agent.wire import streams as wires
from tests.agent.wire.streams import ASK, Reply, WireServer, chunk, data

from hotloop.agent.agent import Agent
from hotloop.agent.model import Ask, Model
from hotloop.agent.open_model import open_model
from hotloop.agent.tools.tool import tool
from hotloop.agent.wire.anthropic import AnthropicModel, render_ask
from hotloop.agent.wire.http import RemoteServer, Retries
from hotloop.agent.wire.openai import OpenAIModel, ResponsesModel
from hotloop.agent.wire.served import is_closed
from hotloop.core.errors import ConfigError, RemoteError, RequestError
from hotloop.core.message import Message, Thought, Tool, ToolCall
from hotloop.core.stream import CallClosed, TextDelta
from hotloop.wire.event import Event as WireEvent

KEY = "sk-very-secret-1234"
AT_ONCE = Retries(first_pause_s=0)

Make = Callable[[str], Model]


def openai(url: str, **fields: Any) -> OpenAIModel:
    return OpenAIModel(f"{url}/v1", "gpt-5", api_key=KEY, **{"retries": AT_ONCE, **fields})


def anthropic(url: str, **fields: Any) -> AnthropicModel:
    return AnthropicModel(url, "claude", api_key=KEY, **{"retries": AT_ONCE, **fields})


def responses(url: str, **fields: Any) -> ResponsesModel:
    return ResponsesModel(f"{url}/v1", "gpt-5", api_key=KEY, **{"retries": AT_ONCE, **fields})


WIRES = [
    pytest.param(openai, wires.OPENAI_CALLS, wires.OPENAI_TEXT, id="openai"),
    pytest.param(anthropic, wires.ANTHROPIC_CALLS, wires.ANTHROPIC_TEXT, id="anthropic"),
    pytest.param(responses, wires.RESPONSES_CALLS, wires.RESPONSES_TEXT, id="responses"),
]
EACH = pytest.mark.parametrize(("make", "calls", "text"), WIRES)


async def hear(model: Model, ask: Ask = ASK) -> list[WireEvent]:
    try:
        return [event async for event in model.stream(ask)]
    finally:
        await model.close()


def said(heard: list[WireEvent]) -> str:
    return "".join(event.text for event in heard if isinstance(event, TextDelta))


@EACH
async def test_an_agent_runs_on_a_recorded_wire(make: Make, calls: bytes, text: bytes) -> None:
    cities: list[str] = []

    @tool
    async def weather(city: str) -> str:
        cities.append(city)
        return "rain"

    @tool
    async def clock() -> str:
        raise RuntimeError("it stands still")

    async with WireServer(Reply(calls, size=3), Reply(text, size=1)) as server:
        agent = Agent(make(server.url), [weather, clock], "Be brief.")
        result = await agent.run("Paris?")
        await agent.close()
    assert result.output == "It rains."
    assert cities == ['Pa"}ris']
    assert result.spent.usage.num_cached > 0
    assert server.num_connections == 1
    assert {asked.headers["x-session-id"] for asked in server.asked} == {result.conversation.session_id}


HISTORY = (
    Message("system", "Be brief."),
    Message("user", "Paris?"),
    Message(
        "assistant", "I look.", tool_calls=(ToolCall("a", "weather", '{"city": "Paris"}'), ToolCall("b", "clock", ""))
    ),
    Message("tool", "rain", tool_call_id="a", name="weather"),
    Message("tool", "Error: it stands still", tool_call_id="b", name="clock"),
    Message("user", "And Rome?"),
    Message("system", "The user is in a hurry."),
)
FULL = replace(ASK, messages=HISTORY, max_tokens=99, temperature=0.5, session_id="session-1/2", extra={"seed": 1})


async def test_what_openai_is_asked() -> None:
    async with WireServer(wires.OPENAI_TEXT) as server:
        await hear(openai(server.url), FULL)
    [asked] = server.asked
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["x-session-id"] == "session-1/2"
    body = asked.body
    TypeAdapter(completion_create_params.CompletionCreateParamsStreaming).validate_python(body)
    assert [message["role"] for message in body["messages"]] == [message.role for message in HISTORY]
    assert body["messages"][2]["tool_calls"][1]["function"] == {"name": "clock", "arguments": "{}"}
    assert body["messages"][4] == {"role": "tool", "tool_call_id": "b", "content": "Error: it stands still"}
    assert [each["function"]["name"] for each in body["tools"]] == ["clock", "weather"]
    assert (body["prompt_cache_key"], body["max_completion_tokens"], body["seed"]) == ("session-1", 99, 1)
    assert "tool_choice" not in body


async def test_a_shy_server_is_asked_only_what_all_know() -> None:
    async with WireServer(wires.OPENAI_TEXT) as server:
        await hear(openai(server.url, is_plain=True), FULL)
    [body] = server.bodies
    assert set(body) == {"model", "messages", "tools", "max_tokens", "temperature", "stream", "seed"}
    assert set(body["tools"][0]["function"]) == {"name", "description", "parameters"}
    async with WireServer(wires.ANTHROPIC_TEXT) as server:
        await hear(anthropic(server.url, is_plain=True), FULL)
    assert "cache_control" not in str(server.bodies)


async def test_what_anthropic_is_asked() -> None:
    async with WireServer(wires.ANTHROPIC_TEXT) as server:
        await hear(anthropic(server.url), replace(FULL, extra={}))
    [asked] = server.asked
    assert asked.path == "/v1/messages"
    assert (asked.headers["x-api-key"], asked.headers["anthropic-version"]) == (KEY, "2023-06-01")
    body = asked.body
    TypeAdapter(message_create_params.MessageCreateParamsStreaming).validate_python(body)
    kept = {"cache_control": {"type": "ephemeral"}}
    assert body["system"] == [{"type": "text", "text": "Be brief.", **kept}]
    user, assistant, results = body["messages"]
    assert (user["role"], assistant["role"], results["role"]) == ("user", "assistant", "user")
    assert assistant["content"][1:] == [
        {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "b", "name": "clock", "input": {}},
    ]
    assert results["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "rain"},
        {"type": "tool_result", "tool_use_id": "b", "content": "Error: it stands still", "is_error": True},
        {"type": "text", "text": "And Rome?"},
        {"type": "text", "text": "The user is in a hurry.", **kept},
    ]
    assert str(body).count("cache_control") == 2
    assert (body["max_tokens"], body["temperature"]) == (99, 0.5)


async def test_what_openais_responses_are_asked() -> None:
    history = (*HISTORY[:2], replace(HISTORY[2], thoughts=(Thought("", "c2VhbA==", maker="responses"),)), *HISTORY[3:])
    async with WireServer(wires.RESPONSES_TEXT) as server:
        await hear(responses(server.url), replace(FULL, messages=history, extra={}))
    [asked] = server.asked
    assert asked.path == "/v1/responses"
    body = asked.body
    items = [{"id": "rs", **item} if item["type"] == "reasoning" else item for item in body["input"]]
    TypeAdapter(response_create_params.ResponseCreateParamsStreaming).validate_python({**body, "input": items})
    assert (body["instructions"], body["store"], body["max_output_tokens"]) == ("Be brief.", False, 99)
    kinds = [item["type"] for item in body["input"]]
    outputs = ["function_call_output"] * 2
    assert kinds == [
        *("message", "reasoning", "message", "function_call", "function_call", *outputs, "message", "message")
    ]
    assert (body["prompt_cache_key"], body["include"]) == ("session-1", ["reasoning.encrypted_content"])


async def test_nothing_that_anthropic_refuses_is_sent() -> None:
    odd = (
        Message("user", "a"),
        Message("assistant", ""),
        Message("user", "b"),
        Message("assistant", "", tool_calls=(ToolCall("a", "weather", "[nonsense"),)),
        Message("tool", "", tool_call_id="a"),
    )
    async with WireServer(wires.ANTHROPIC_TEXT) as server:
        await hear(anthropic(server.url), replace(ASK, messages=odd))
    [body] = server.bodies
    assert "system" not in body
    assert body["tools"][-1]["cache_control"] == {"type": "ephemeral"}
    assert [(turn["role"], len(turn["content"])) for turn in body["messages"]] == [
        ("user", 2),
        ("assistant", 1),
        ("user", 1),
    ]
    assert body["messages"][1]["content"][0]["input"] == {}


CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"a": {"type": "string", "default": {"type": "object"}}}}


@pytest.mark.parametrize("schema", [CLOSED, OPEN])
async def test_an_answer_of_a_shape(schema: dict[str, Any]) -> None:
    ask = replace(ASK, schema=schema)
    async with WireServer(wires.OPENAI_TEXT) as server:
        await hear(openai(server.url), ask)
    shape = server.bodies[0]["response_format"]["json_schema"]
    assert (shape["schema"], shape.get("strict", False)) == (schema, schema is CLOSED)
    assert server.bodies[0]["tool_choice"] == "none"
    async with WireServer(wires.ANTHROPIC_TEXT) as server:
        await hear(anthropic(server.url), ask)
    assert server.bodies[0]["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    assert server.bodies[0]["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize(("choice", "others"), [("required", "any"), ("none", "none")])
async def test_choices(choice: Any, others: str) -> None:
    async with WireServer(wires.OPENAI_TEXT, wires.ANTHROPIC_TEXT) as server:
        await hear(openai(server.url), replace(ASK, choice=choice))
        await hear(anthropic(server.url), replace(ASK, choice=choice))
    assert server.bodies[0]["tool_choice"] == choice
    assert server.bodies[1]["tool_choice"] == {"type": others}


async def test_tools_are_strict_where_that_can_be_kept() -> None:
    tools = (Tool("a", "", CLOSED), Tool("b", "", OPEN), Tool("c", "", CLOSED, is_strict=False))
    async with WireServer(wires.OPENAI_TEXT) as server:
        await hear(openai(server.url), replace(ASK, tools=tools))
    assert [each["function"].get("strict") for each in server.bodies[0]["tools"]] == [True, None, False]


REFUSED = b'{"error": {"message": "try\\nlater, dear ' + KEY.encode() + b'", "type": "rate_limit_error"}}'


@EACH
async def test_a_passing_failure_is_tried_again(make: Make, calls: bytes, text: bytes) -> None:
    busy = Reply(REFUSED, 429, "application/json", {"retry-after": "0"})
    broken = Reply(b"", breaks=True)
    async with WireServer(busy, broken, text) as server:
        assert said(await hear(make(server.url))) == "It rains."
    assert len(server.asked) == 3
    assert server.bodies[0] == server.bodies[2]


@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms"])
async def test_a_time_that_is_none_is_no_time_to_wait(name: str) -> None:
    async with WireServer(Reply(REFUSED, 429, headers={name: "nan", "x-should-retry": "false"})) as server:
        with pytest.raises(RemoteError) as caught:
            await hear(openai(server.url))
    assert caught.value.retry_after_s is None


@EACH
async def test_tries_run_out(make: Make, calls: bytes, text: bytes) -> None:
    async with WireServer(*[Reply(REFUSED, 503, "application/json", {"retry-after-ms": "1"})] * 3) as server:
        with pytest.raises(RemoteError) as caught:
            await hear(make(server.url))
    assert (caught.value.status, caught.value.retry_after_s, len(server.asked)) == (503, 0.001, 3)
    assert str(caught.value).endswith("answered 503: try later, dear ***")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(REFUSED, 400),
        Reply(REFUSED, 401),
        Reply(REFUSED, 429, headers={"retry-after": "3600"}),
        Reply(REFUSED, 429, headers={"x-should-retry": "false"}),
        Reply(REFUSED, 429, headers={"retry-after": format_datetime(datetime.now(UTC) + timedelta(hours=1))}),
        Reply(b'{"choices": []}', content_type="application/json"),
        Reply(b"<html>hello</html>", content_type="text/html"),
        Reply(data(chunk({"content": "It"}), done=False), breaks=True),
        Reply(data(chunk({"content": "It"}), done=False)),
        Reply(b"data: {nonsense\n\n"),
    ],
)
@pytest.mark.parametrize("make", [openai, anthropic])
async def test_other_failures_are_told_at_once(make: Make, reply: Reply, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with WireServer(reply) as server:
        with pytest.raises(RemoteError) as caught:
            await hear(make(server.url))
    assert len(server.asked) == 1
    words = str(caught.value)
    assert words.startswith(server.url)
    assert "\n" not in words
    for shown in (words, repr(caught.value), caplog.text, repr(make(server.url)), repr(make(server.url).__dict__)):
        assert KEY not in shown


async def test_a_refusal_without_an_end_is_not_heard_out() -> None:
    for reply in (
        Reply(b"x" * (1 << 17), 400, hold=asyncio.Event()),
        Reply(b"{" * (1 << 17), 200, "text/html", hold=asyncio.Event()),
    ):
        async with WireServer(reply) as server:
            with pytest.raises(RemoteError):
                await asyncio.wait_for(hear(openai(server.url)), 30)


async def test_of_a_key_not_even_the_beginning_is_told() -> None:
    """Long words are cut, and the cut may go through the key."""
    for num_before in (575, 590):
        body = json.dumps({"error": "x" * num_before + KEY}).encode()
        async with WireServer(Reply(body, 400)) as server:
            with pytest.raises(RemoteError) as caught:
                await hear(openai(server.url))
        assert "sk-" not in str(caught.value)


def test_an_empty_prompt_is_refused_and_a_careless_schema_is_for_the_server_to_refuse() -> None:
    with pytest.raises(RequestError, match="at least one message"):
        render_ask(Ask(messages=(Message("user", " "),)), "claude", max_tokens=9)
    assert is_closed({"type": "object", "additionalProperties": False, "properties": None, "required": None})


async def test_a_server_that_is_not_there() -> None:
    async with WireServer() as server:
        pass
    with pytest.raises(RemoteError, match="cannot be reached"):
        await hear(openai(server.url))


@EACH
async def test_closing_the_stream_hangs_up(make: Make, calls: bytes, text: bytes) -> None:
    async with WireServer(Reply(calls, hold=asyncio.Event())) as server:
        model = make(server.url)
        async with aclosing(model.stream(ASK)) as events:
            async for event in events:
                if isinstance(event, CallClosed):
                    break
        await asyncio.wait_for(server.has_lost.wait(), 30)
        await model.close()


@pytest.mark.parametrize(("make", "calls", "text"), WIRES[:2])  # a response ends with the event that has its usage
async def test_a_call_can_be_made_while_the_answer_still_comes(make: Make, calls: bytes, text: bytes) -> None:
    """The answer ends only when the tool has run."""
    hold = asyncio.Event()

    @tool
    async def weather(city: str) -> str:
        hold.set()
        return "rain"

    without_last = calls[: calls.rindex(b"\n\n", 0, -2) + 2]
    async with WireServer(Reply(without_last, hold=hold), text) as server:
        agent = Agent(make(server.url), [weather])
        assert (await agent.run("Paris?")).output == "It rains."
        await agent.close()
    assert hold.is_set()


def test_one_model_serves_one_event_loop_after_another() -> None:
    async def twice(remote: list[RemoteServer]) -> None:
        async with WireServer(Reply(b"{}", content_type="application/json")) as server:
            if not remote:
                remote.append(RemoteServer(server.url))
            remote[0].url = server.url
            assert await remote[0].ask("/x") == {}
            await remote[0].close()

    remote: list[RemoteServer] = []
    for _ in range(2):
        asyncio.run(twice(remote))


async def test_the_first_model_is_taken_if_none_is_named() -> None:
    listed = Reply(b'{"data": [{"id": "first"}, {"id": "second"}]}', content_type="application/json")
    for prefix, suffix, text in (("", "/v1", wires.OPENAI_TEXT), ("anthropic:", "", wires.ANTHROPIC_TEXT)):
        async with WireServer(listed, text) as server:
            model = open_model(prefix + server.url + suffix)
            assert model.name.startswith(server.url)
            await hear(model)
            assert model.name == "first"
        assert server.asked[0].path == "/v1/models"
        assert server.bodies[1]["model"] == "first"
    async with WireServer(Reply(b'{"data": []}', content_type="application/json")) as server:
        with pytest.raises(RemoteError, match="lists no model"):
            await hear(open_model(server.url))


def test_headers_that_cannot_be_sent() -> None:
    for key in ("a\nb", "ключ"):
        with pytest.raises(ConfigError, match="invalid characters") as caught:
            OpenAIModel("http://h", api_key=key)
        assert key not in str(caught.value)


async def test_what_cannot_be_written_as_json() -> None:
    with pytest.raises(ConfigError, match="JSON"):
        await hear(openai("http://h"), replace(ASK, extra={"x": object()}))
