"""Tools as Anthropic's clients use them, whole and streamed, turn after turn."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import beta_tool
from anthropic.types import Message, ToolUseBlock
from tests.server.calls import check_call, write_call
from tests.server.claude import TOOLS, ask, blocks_of, claude, post, prompt_tokens, read_events, saying
from tests.server.serving import HELLO, MODEL, Pause, Serving

PARIS = write_call("weather", city="Paris", days=2)
CLOCK = write_call("clock")
BOTH = PARIS + "\n" + CLOCK


@pytest.fixture
def client(serving: Serving) -> Iterator[anthropic.Anthropic]:
    with claude(serving) as client:
        yield client


@pytest.mark.sampled(2)
@pytest.mark.parametrize("script", ["Just words.", "Let me look.\n" + PARIS, PARIS, BOTH, "", "Well.\n" + BOTH])
def test_every_event_of_a_stream(script: str) -> None:
    with Serving(script=[script]) as serving, claude(serving) as client:
        whole = ask(client, tools=TOOLS)
        events = read_events(post(serving, tools=TOOLS, stream=True, max_tokens=400).text)
    blocks: list[Any] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"] | {"json": ""})
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            blocks[-1]["text"] = blocks[-1].get("text", "") + event["delta"].get("text", "")
            blocks[-1]["json"] += event["delta"].get("partial_json", "")
    read = [(b["name"], json.loads(b["json"])) if b["type"] == "tool_use" else b["text"] for b in blocks]
    assert read == blocks_of(whole)
    assert all(block["input"] == {} and block["id"].startswith("toolu_") for block in blocks if block["json"])
    start, delta = events[0]["message"], events[-2]
    assert (start["content"], start["stop_reason"], start["stop_sequence"]) == ([], None, None)
    assert delta["delta"] == {"stop_reason": whole.stop_reason, "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == whole.usage.output_tokens
    assert whole.stop_reason == ("tool_use" if "<tool_call>" in script else "end_turn")


def test_arguments_arrive_as_they_are_written() -> None:
    pause = Pause(len(PARIS) - 20)
    pieces = []
    with (
        Serving(script=[PARIS], on_run=pause) as serving,
        claude(serving) as client,
        client.messages.stream(
            model=MODEL, messages=HELLO, max_tokens=400, tools=TOOLS, extra_body={"shortcuts": False}
        ) as stream,
    ):
        for event in stream:
            if event.type == "input_json" and event.partial_json:
                pieces.append(event.partial_json)
                pause.end()
    assert "".join(pieces) == '{"city": "Paris", "days": 2}'


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ["weather", "clock"]),
        ({"type": "auto", "disable_parallel_tool_use": True}, ["weather"]),
        ({"type": "any"}, ["weather", "clock"]),
        ({"type": "any", "disable_parallel_tool_use": True}, ["weather"]),
        ({"type": "tool", "name": "weather", "disable_parallel_tool_use": True}, ["weather"]),
        ({"type": "none"}, []),
    ],
    ids=str,
)
def test_tool_choice(choice: Any, expected: list[str]) -> None:
    with saying(BOTH) as client:
        answer = ask(client, tools=TOOLS, tool_choice=choice)
    calls = [block for block in answer.content if isinstance(block, ToolUseBlock)]
    assert [call.name for call in calls] == expected
    assert len({call.id for call in calls}) == len(calls)
    assert answer.stop_reason == ("tool_use" if expected else "end_turn")
    if not expected:
        assert blocks_of(answer) == [BOTH]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "clock"}], ids=str)
def test_a_call_that_must_come_follows_its_schema(client: anthropic.Anthropic, choice: Any) -> None:
    choice = {**choice, "disable_parallel_tool_use": True}
    answer = ask(client, tools=TOOLS, tool_choice=choice, extra_body={"seed": 3, "temperature": 1})
    [call] = answer.content
    assert isinstance(call, ToolUseBlock)
    assert call.name == choice.get("name", call.name)
    check_call(call.name, json.dumps(call.input))


def test_a_conversation_with_calls_goes_on() -> None:
    with saying("I look.\n" + BOTH, PARIS, "Done.") as client:
        messages: list[Any] = [*HELLO]
        for expected in (["weather", "clock"], ["weather"], []):
            answer = ask(client, messages=messages, tools=TOOLS)
            calls = [block for block in answer.content if isinstance(block, ToolUseBlock)]
            assert [call.name for call in calls] == expected
            messages.append(answer.to_param())
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "fine"} for call in calls]
            messages.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})
    assert blocks_of(answer) == ["Done."]


def test_a_later_turn_reads_only_what_is_new() -> None:
    with saying("I look.\n" + PARIS, "Done.") as client:
        first = ask(client, tools=TOOLS, system="Be brief.")
        result = {"type": "tool_result", "tool_use_id": "x", "content": "fine"}
        messages: list[Any] = [*HELLO, first.to_param(), {"role": "user", "content": [result]}]
        second = ask(client, messages=messages, tools=TOOLS, system="Be brief.")
    read_before = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens >= read_before // 16 * 16 - 16


def test_what_a_client_parsed_comes_back_as_it_was_written() -> None:
    loose = '<tool_call>\n{"name": "measure", "arguments": {"x":1.50,  "y": "caf\\u00e9"}}\n</tool_call>'
    tools = [{"name": "measure", "input_schema": {"type": "object"}, "strict": False}]
    with saying(loose, "Done.") as client:
        first = ask(client, tools=tools)
        assert blocks_of(first) == [("measure", {"x": 1.5, "y": "café"})]
        messages: list[Any] = [*HELLO, first.to_param(), {"role": "user", "content": "Go on."}]
        second = ask(client, messages=messages, tools=tools)
    assert prompt_tokens(second) > prompt_tokens(first) + first.usage.output_tokens
    assert second.usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens > prompt_tokens(first) + first.usage.output_tokens - 17


def test_the_tool_runner_of_the_client() -> None:
    """It would rather leave the conversation with the server, and is told that this one keeps none."""

    @beta_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"Sunny in {city}."

    with saying(write_call("weather", city="Rome"), "It is sunny.") as client:
        runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=400, messages=HELLO, tools=[weather])
        answers = list(runner)
    assert [answer.stop_reason for answer in answers] == ["tool_use", "end_turn"]
    assert answers[-1].content[0].text == "It is sunny."  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_says_so(stream: bool) -> None:
    with Serving(script=[PARIS]) as serving:
        response = post(serving, tools=TOOLS, max_tokens=len(PARIS) - 25, stream=stream)
    if stream:
        assert read_events(response.text)[-2]["delta"]["stop_reason"] == "max_tokens"
    else:
        answer = Message.model_validate_json(response.text)
        assert answer.stop_reason == "max_tokens"
        assert blocks_of(answer) == [], "what is no call is not begun"


def test_what_is_not_enforced_is_told_and_checked() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
    fields = {"tools": [{"name": "odd", "input_schema": schema}], "max_tokens": 300}
    with Serving(script=[write_call("odd", a=[1, 1])]) as serving:
        answer, lines = post(serving, **fields).json(), post(serving, **fields, stream=True).text
    changes = [
        "tools[0].input_schema: not enforced, but checked afterwards: properties.a: 'uniqueItems'",
        "tools[0].input_schema: the arguments of odd do not follow the schema: a breaks uniqueItems true",
    ]
    assert answer["usage"]["hotloop"]["changes"] == changes
    assert all(change in lines for change in changes)


def test_hosted_tools_are_left_out_and_told() -> None:
    hosted: list[Any] = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ]
    with saying("Hello.") as client:
        answer = ask(client, tools=[*hosted, *TOOLS])
        plain = client.messages.count_tokens(model=MODEL, messages=HELLO, tools=TOOLS).input_tokens
    assert blocks_of(answer) == ["Hello."]
    assert prompt_tokens(answer) == plain
    assert answer.usage.model_extra
    assert [change.split()[1] for change in answer.usage.model_extra["hotloop"]["changes"]] == [
        "put",
        "web_search_20250305",
        "code_execution_20250825",
    ]


def test_a_name_of_128_characters() -> None:
    name = "mcp__" + "n" * 123
    with saying(write_call(name)) as client:
        answer = ask(client, tools=[{"name": name, "input_schema": {"type": "object", "properties": {}}}])
    assert blocks_of(answer) == [(name, {})]
