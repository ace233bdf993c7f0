"""A last turn of the assistant's as the beginning of the answer: Anthropic's prefill, vLLM's continue_final_message."""

import json
from typing import Any

import openai
import pytest
from tests.server.calls import TOOLS, WEATHER, write_call
from tests.server.claude import ask, blocks_of, check_failure, claude, post, prompt_tokens, saying
from tests.server.serving import HELLO, MODEL, Serving, check_error

CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}
SHAPE = {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}}


def begun(text: Any) -> list[Any]:
    return [*HELLO, {"role": "assistant", "content": text}]


def test_the_prompt_ends_with_the_beginning(serving: Serving) -> None:
    def spelled(**fields: Any) -> str:
        tokens = serving.http.post("/tokenize", json=fields).json()["tokens"]
        text: str = serving.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
        return text

    assert spelled(messages=begun("The answer is ("), **CONTINUED) == spelled(messages=HELLO) + "The answer is ("
    assert spelled(messages=begun("The answer is (")) != spelled(messages=begun("The answer is ("), **CONTINUED)


def test_a_chat_goes_on() -> None:
    with Serving(script=["It is (42)."]) as serving, serving.openai() as client:
        answer = client.chat.completions.create(model=MODEL, messages=begun("It is ("), extra_body=CONTINUED)
        plain = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content == "42)."
    assert answer.usage
    assert plain.usage
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens + len("It is (")


@pytest.mark.parametrize("content", ["It is (", [{"type": "text", "text": "It "}, {"type": "text", "text": "is ("}]])
def test_a_message_goes_on(content: Any) -> None:
    with saying("It is (42).") as client:
        answer = ask(client, messages=begun(content))
        assert blocks_of(answer) == ["42)."]
        assert answer.stop_reason == "end_turn"
        counted = client.messages.count_tokens(model=MODEL, messages=begun(content)).input_tokens
        with client.messages.stream(model=MODEL, messages=begun(content), max_tokens=40) as stream:
            assert stream.get_final_text() == "42)."
        assert prompt_tokens(answer) == counted


def test_a_message_may_call_after_its_beginning() -> None:
    tools: list[Any] = [{"name": "weather", "input_schema": WEATHER}]
    with saying("Let me look.\n" + write_call("weather", city="Rome", days=1)) as client:
        answer = ask(client, messages=begun("Let me"), tools=tools)
    assert blocks_of(answer) == [" look.", ("weather", {"city": "Rome", "days": 1})]


@pytest.mark.parametrize("beginning", ["{", '{"city": "Ro', '{"city": "Rome", "days": '])
def test_a_shape_is_that_of_the_whole_answer(serving: Serving, client: openai.OpenAI, beginning: str) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=begun(beginning), seed=3, max_tokens=200, extra_body=CONTINUED | SHAPE
    )
    rest = answer.choices[0].message.content
    assert rest
    assert set(json.loads(beginning + rest)) == {"city", "days"}
    form = {"type": "json_schema", "schema": WEATHER}
    for config in ({"output_config": {"format": form}}, {"output_format": form}):
        with claude(serving) as other:
            [block] = ask(other, messages=begun(beginning), extra_body=config).content
        assert block.type == "text"
        assert set(json.loads(beginning + block.text)) == {"city", "days"}


def test_what_cannot_go_on_is_refused(serving: Serving) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    use = {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {}}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"messages": HELLO} | CONTINUED, "must be the assistant's"),
        ({"messages": begun("So")} | CONTINUED | {"add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": begun("So")} | CONTINUED | {"continue_final_message": "yes"}, "continue_final_message"),
        ({"messages": [*HELLO, {"role": "assistant", "tool_calls": [call]}]} | CONTINUED, "contains calls"),
        ({"messages": begun("So")[1:]} | CONTINUED, "at least one message"),
        ({"messages": begun("No JSON")} | CONTINUED | SHAPE, "does not match"),
        (
            {"messages": begun("So"), "tools": TOOLS, "tool_choice": "required"} | CONTINUED,
            "does not match its grammar",
        ),
    ]
    for fields, words in bad:
        assert words in check_error(serving.chat(**fields), 400)["message"]
    assert "contains calls" in check_failure(post(serving, messages=begun([use])), 400, "invalid_request_error")
    failure = check_failure(post(serving, messages=begun("So")[1:]), 400, "invalid_request_error")
    assert "at least one message" in failure


def test_without_the_word_a_chat_is_answered(serving: Serving) -> None:
    answered, continued = (
        serving.chat(messages=begun("So"), **fields).json()["usage"]["prompt_tokens"] for fields in ({}, CONTINUED)
    )
    assert answered > continued


@pytest.mark.parametrize("fields", [{"tools": TOOLS, "tool_choice": "required"}, SHAPE])
def test_a_beginning_that_does_not_fit_is_the_messages_fault(serving: Serving, fields: dict[str, Any]) -> None:
    answer = serving.chat(messages=begun("Let me see"), **CONTINUED, **fields)
    assert check_error(answer, 400)["param"] == "messages"
