"""The responses API as the real `openai` client meets it: whole, streamed, with tools, with a shape, refused."""

import json
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel
from tests.server.asking import ENDLESS, TOOLS, ask, check_events, function, kinds
from tests.server.calls import check_call, write_call
from tests.server.serving import MODEL, Serving, check_error, only


class Forecast(BaseModel):
    """The weather somewhere."""

    city: Literal["Paris", "Rome"]
    degrees: Literal[10, 20, 30]


def test_whole(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model=MODEL,
        input="hello",
        instructions="Be brief.",
        metadata={"run": "7"},
        max_output_tokens=4,
        extra_body=only("a"),
    )
    Response.model_validate(response.to_dict(), strict=True)
    assert response.output_text == "aaaa"
    assert response.id.startswith("resp_")
    assert response.output[0].id.startswith("msg_")  # type: ignore[union-attr]
    assert (response.status, response.metadata, response.instructions) == ("incomplete", {"run": "7"}, "Be brief.")
    assert response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage
    assert response.usage.output_tokens == 4
    assert response.usage.total_tokens == response.usage.input_tokens + 4
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    assert response.usage.model_extra
    assert response.usage.model_extra["hotloop"]["sampled_tokens"] == 4


def test_usage_tells_what_was_cached(client: openai.OpenAI) -> None:
    text = "The same long beginning of a prompt, again and again. " * 4
    first, second = (client.responses.create(model=MODEL, input=text, max_output_tokens=1).usage for _ in range(2))
    assert first
    assert second
    assert second.input_tokens_details.cached_tokens > 100
    assert first.input_tokens == second.input_tokens


TEXT_EVENTS = [
    "created",
    "in_progress",
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]


def test_a_streamed_text() -> None:
    with Serving(script=["Hello there."]) as serving:
        events = check_events(ask(serving, stream=True, max_output_tokens=50).text)
    assert kinds(events) == [*TEXT_EVENTS, "completed"]
    assert "".join(event["delta"] for event in events if event["type"].endswith(".delta")) == "Hello there."
    assert [event["response"]["status"] for event in events[:2]] == ["in_progress"] * 2
    last = events[-1]["response"]
    assert (last["status"], last["output"][0]["content"][0]["text"]) == ("completed", "Hello there.")
    assert last["output"] == [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[2]["item"]["content"] == []


def test_a_stream_that_is_cut(serving: Serving) -> None:
    events = check_events(ask(serving, stream=True, **ENDLESS).text)
    assert kinds(events) == [*TEXT_EVENTS, "incomplete"]
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_an_answer_without_a_word() -> None:
    with Serving(script=[""]) as serving:
        events = check_events(ask(serving, stream=True, max_output_tokens=50).text)
    assert kinds(events) == [kind for kind in [*TEXT_EVENTS, "completed"] if kind != "output_text.delta"]


CALL_EVENTS = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


def test_streamed_text_and_calls() -> None:
    script = f"Let me see.\n{write_call('weather', city='Rome', days=2)}\n{write_call('clock')}"
    with Serving(script=[script]) as serving:
        events = check_events(ask(serving, stream=True, tools=TOOLS, max_output_tokens=500).text)
        whole = ask(serving, tools=TOOLS, max_output_tokens=500).json()
    assert kinds(events) == [*TEXT_EVENTS, *CALL_EVENTS, *CALL_EVENTS, "completed"]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert [item.get("arguments") for item in output] == [None, '{"city": "Rome", "days": 2}', "{}"]
    assert [event["output_index"] for event in events if event["type"].endswith("output_item.done")] == [0, 1, 2]
    assert all(item["id"].startswith("fc_") and item["call_id"].startswith("call_") for item in output[1:])
    assert [strip(item) for item in whole["output"]] == [strip(item) for item in output]


def strip(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


def test_a_call_that_is_cut_is_incomplete() -> None:
    with Serving(script=[write_call("weather", city="Rome", days=2)]) as serving:
        whole = ask(serving, tools=TOOLS, max_output_tokens=50).json()
    assert whole["status"] == "incomplete"
    assert [item["status"] for item in whole["output"]] == ["incomplete"]


def test_the_stream_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="hello", text_format=Forecast) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_response()
    assert seen[0] == "response.created"
    assert seen[-1] == "response.completed"
    assert isinstance(final.output_parsed, Forecast)


def test_parse_into_a_model(client: openai.OpenAI) -> None:
    response = client.responses.parse(model=MODEL, input="hello", text_format=Forecast)
    assert isinstance(response.output_parsed, Forecast)
    assert response.text
    assert response.text.format
    assert response.text.format.type == "json_schema"


def test_json_object(client: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_object"}}
    response = client.responses.create(model=MODEL, input="hello", text=form, max_output_tokens=200)
    assert isinstance(json.loads(response.output_text), dict)


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    ],
    ids=["required", "named", "allowed"],
)
def test_calls_that_must_come(client: openai.OpenAI, choice: Any) -> None:
    response = client.responses.create(
        model=MODEL, input="hello", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_output_tokens=300
    )
    [call] = response.output
    assert call.type == "function_call"
    assert choice == "required" or call.name == "weather"
    check_call(call.name, call.arguments)


def test_no_calls(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="hi", tools=TOOLS, tool_choice="none", max_output_tokens=20)
    assert [item.type for item in response.output] == ["message"]


def test_logprobs(client: openai.OpenAI, serving: Serving) -> None:
    response = client.responses.create(
        model=MODEL,
        input="hello",
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        max_output_tokens=3,
        extra_body=only("a"),
    )
    content = response.output[0].content[0]  # type: ignore[union-attr]
    assert [logprob.token for logprob in content.logprobs] == ["a"] * 3  # type: ignore[union-attr]
    assert all(len(logprob.top_logprobs) == 2 for logprob in content.logprobs)  # type: ignore[union-attr]
    events = check_events(ask(serving, stream=True, top_logprobs=1, **only("a")).text)
    deltas = [event for event in events if event["type"].endswith("text.delta")]
    assert sum(len(event["logprobs"]) for event in deltas) == 4
    [done] = [event for event in events if event["type"].endswith("text.done")]
    assert len(done["logprobs"]) == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 7}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "computer_call"}]}, "input[0].id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [function("f", {"type": "object", "properties": {"a": {"type": "odd"}}})]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "odd"}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"ebnf": "root ::= 'a'"}, "ebnf"),
        ({"n": 2}, "n"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_bad_input(serving: Serving, fields: dict[str, Any], param: str) -> None:
    assert check_error(ask(serving, **fields), 400, "invalid_value")["param"] == param


def test_other_refusals(serving: Serving, client: openai.OpenAI) -> None:
    check_error(serving.http.get("/v1/responses/resp_1"), 404, "response_not_found")
    check_error(serving.http.get("/v1/responses/resp_1/input_items?limit=0"), 400)
    check_error(serving.http.get("/v1/responses/resp_1?stream=true"), 404, "response_not_found")
    made = ask(serving).json()
    for query in ("stream=true", "stream=maybe", "stream=true&starting_after=-1"):
        check_error(serving.http.get(f"/v1/responses/{made['id']}?{query}"), 400)
    check_error(serving.http.put("/v1/responses/resp_1"), 405)
    check_error(ask(serving, previous_response_id="resp_1"), 404, "previous_response_not_found")
    too_long = check_error(ask(serving, input="a" * 9999), 400, "context_length_exceeded")
    assert too_long["param"] == "input"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="another", input="hello")


def test_what_is_not_enforced_is_told_and_checked() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": False}
    with Serving(script=['{"a": [1, 1]}']) as serving:
        answer = ask(serving, text={"format": form}, max_output_tokens=99).json()
    assert answer["usage"]["hotloop"]["changes"] == [
        "text.format.schema: not enforced, but checked afterwards: properties.a: 'uniqueItems'",
        "text.format.schema: the answer does not follow the schema: a breaks uniqueItems true",
    ]


def test_counting_the_tokens_of_an_input(client: openai.OpenAI) -> None:
    """As many as the response then has, tools, instructions and what it continues included."""
    first = client.responses.create(model=MODEL, input="hello", max_output_tokens=3)
    fields: Any = {"input": "go on", "instructions": "Be kind.", "tools": TOOLS, "previous_response_id": first.id}
    counted = client.responses.input_tokens.count(model=MODEL, **fields)
    made = client.responses.create(model=MODEL, max_output_tokens=1, **fields)
    assert made.usage
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", made.usage.input_tokens)
    with pytest.raises(openai.BadRequestError):
        client.responses.input_tokens.count(model=MODEL, input=[])
    with pytest.raises(openai.NotFoundError):
        client.responses.input_tokens.count(model=MODEL, input="x", previous_response_id="resp_none")
