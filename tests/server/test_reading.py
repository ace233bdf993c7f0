"""`generate: false`: a prompt is read, and found read when it comes again and goes on."""

import pytest
from tests.server.calls import TOOLS, write_call
from tests.server.serving import HELLO, Serving, check_error

CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": f"call_{i}", "type": "function", "function": {"name": "clock", "arguments": "{}"}} for i in range(2)
    ],
}
RESULTS = [{"role": "tool", "tool_call_id": f"call_{i}", "content": f"{i}" * 400} for i in range(2)]
HISTORY = [*HELLO, CALLED]


def test_a_prompt_is_read_and_not_answered() -> None:
    with Serving(script=[write_call("clock"), "It is late."]) as serving:
        read = serving.chat(messages=[*HISTORY, RESULTS[0]], tools=TOOLS, generate=False).json()
        assert read["choices"][0]["message"] == {"role": "assistant", "content": "", "refusal": None}
        assert (read["choices"][0]["finish_reason"], read["usage"]["completion_tokens"]) == ("length", 0)
        answer = serving.chat(messages=[*HISTORY, *RESULTS], tools=TOOLS, max_tokens=50).json()
    assert answer["choices"][0]["message"]["content"] == "It is late."
    num_read = read["usage"]["prompt_tokens"]
    assert (
        answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= num_read - 16
    )  # but for a block that is not full


def test_reading_is_asked_in_the_words_of_an_answer(serving: Serving) -> None:
    """What an answer must look like may stay in the body."""
    shape = {"type": "json_object"}
    fields = {"tools": TOOLS, "tool_choice": "required", "response_format": shape, "logprobs": True, "generate": False}
    assert serving.chat(**fields).json()["choices"][0]["message"]["content"] == ""


@pytest.mark.parametrize(("field", "value"), [("stream", True), ("n", 2)])
def test_there_is_nothing_to_stream_or_choose_from(serving: Serving, field: str, value: object) -> None:
    error = check_error(serving.chat(generate=False, **{field: value}), 400, "invalid_value")
    assert error["param"] == field


def test_generating_is_what_is_done_otherwise(serving: Serving) -> None:
    assert serving.chat(generate=True).json()["usage"]["completion_tokens"] == 4
    assert check_error(serving.chat(generate="no"), 400)["param"] == "generate"
