"""Whatever is sent, the answer has OpenAI's shape and is never a 500."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from tests.server.serving import HELLO, MODEL, Serving, check_error

from hotloop.core.config import EngineConfig

JSON = {"content-type": "application/json"}
DEEP = b"[" * 50_000 + b"]" * 50_000

NOT_JSON = {
    "empty": b"",
    "cut": b'{"messages": [',
    "words": b"hello",
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "trailing": b'{"messages": []} x',
    "nan": b'{"temperature": NaN}',
    "infinity": b'{"temperature": Infinity}',
    "overflow": b'{"temperature": 1e999}',
    "utf-8": b'{"model": "\xff\xfe"}',
    "utf-16": '{"model": "x"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"model": "x"}',
    "half a surrogate": b'{"model": "\\ud800"}',
    "control": b'{"model": "a\x00b"}',
    "deep": b'{"unknown": ' + DEEP + b"}",
    "deep in a known field": b'{"chat_template_kwargs": {"x": ' + DEEP + b"}}",
    "endless number": b'{"seed": 1' + b"0" * 5000 + b"}",
}

# The fields, and the one that must be named as at fault.
BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [1]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "system", "content": None}, {"role": "user", "content": "hi"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].function"),
    ({"model": 5}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": True}, "n"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": 1e308}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 2**70}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "7"}, "seed"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ["a", 1]}, "stop[1]"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"stop_token_ids": 3}, "stop_token_ids"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
    ({"logprobs": 3}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"priority": "urgent"}, "priority"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"ebnf": "root ::= 'a'"}, "ebnf"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "alloy", "format": "mp3"}}, "audio"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
    ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools[0].custom"),
    ({"tools": [{"type": "custom", "custom": {"name": ""}}]}, "tools[0].custom.name"),
    (
        {"tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar"}}}]},
        "tools[0].custom.format.grammar",
    ),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": 1}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tool_choice": {"type": "custom", "name": "f"}}, "tool_choice.custom"),
    ({"tool_choice": {"type": "retrieval"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice.allowed_tools.tools"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": []}}}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"response_format": "json"}, "response_format"),
    ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
    ({"structured_outputs": {"\n": 1}}, "structured_outputs"),
    ({"guided_json": 1}, "guided_json"),
    ({"guided_choice": "a"}, "guided_choice"),
]

BAD_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["ok", ""]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": ["a"] * 100, "n": 100}, "prompt"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"echo": True, "logprobs": 1}, "echo"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_not_a_json_object(serving: Serving, path: str, name: str) -> None:
    check_error(serving.http.post(path, content=NOT_JSON[name], headers=JSON), 400)


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS, ids=str)
def test_a_bad_field_is_named(serving: Serving, fields: dict[str, Any], param: str) -> None:
    assert check_error(serving.chat(**fields), 400, "invalid_value")["param"] == param


@pytest.mark.parametrize(("fields", "param"), BAD_COMPLETIONS, ids=str)
def test_a_bad_field_of_a_completion_is_named(serving: Serving, fields: dict[str, Any], param: str) -> None:
    assert check_error(serving.complete(**fields), 400, "invalid_value")["param"] == param


def test_a_missing_field_is_named(serving: Serving) -> None:
    assert check_error(serving.http.post("/v1/chat/completions", json={}), 400)["param"] == "messages"
    assert check_error(serving.http.post("/v1/completions", json={}), 400)["param"] == "prompt"
    assert check_error(serving.http.post("/detokenize", json={}), 400)["param"] == "tokens"
    assert check_error(serving.http.post("/tokenize", json={}), 400)["param"] == "prompt"


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model(serving: Serving, stream: bool) -> None:
    error = check_error(serving.chat(model="gpt-9", stream=stream), 404, "model_not_found")
    assert error["param"] == "model"
    assert MODEL in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_names_both_numbers(serving: Serving, stream: bool) -> None:
    limit = serving.engine.max_context
    long = [{"role": "user", "content": "x" * (limit + 1)}]
    error = check_error(serving.chat(messages=long, stream=stream), 400, "context_length_exceeded")
    assert error["param"] == "messages"
    assert str(limit) in error["message"]
    error = check_error(serving.complete(prompt="x" * 9999, stream=stream), 400, "context_length_exceeded")
    assert error["param"] == "prompt"
    assert "9999" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_more_tokens_than_the_context_has_room_for_are_no_error(stream: bool) -> None:
    """Clients send what their favourite model can write, whatever model is served."""
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    bodies = {
        "chat/completions": {"messages": HELLO, "max_tokens": 32_000, **usage},
        "responses": {"input": "hello", "max_output_tokens": 32_000},
        "messages": {"messages": HELLO, "max_tokens": 32_000},
    }
    with Serving(engine_config=EngineConfig(max_context=2048), script=("Good day.",)) as serving:
        for endpoint, body in bodies.items():
            answer = serving.http.post(f"/v1/{endpoint}", json={"model": MODEL, "stream": stream, **body})
            assert answer.status_code == 200, answer.text
            room = int(answer.text.partition("max_tokens: 32000 became ")[2].partition(",")[0])
            assert 1900 < room < 2048


def test_log_probabilities_of_an_answer_are_bounded(serving: Serving) -> None:
    refused = serving.chat(n=128, max_tokens=400, logprobs=True, top_logprobs=20)
    error = check_error(refused, 400)
    assert error["param"] == "top_logprobs"
    assert "128 choices × 400 tokens × 21 are more than the 100,000 log probabilities" in error["message"]
    refused = serving.complete(prompt=["a"] * 64, n=2, max_tokens=400, logprobs=20)
    assert check_error(refused, 400)["param"] == "logprobs"
    assert serving.chat(n=2, max_tokens=4, logprobs=True, top_logprobs=20).status_code == 200


@pytest.mark.long
def test_an_answer_of_open_length_ends_where_it_has_as_many_log_probabilities_as_one_may(serving: Serving) -> None:
    fields = {"n": 32, "logprobs": True, "top_logprobs": 20, "ignore_eos": True, "max_tokens": None}
    answer = serving.chat(**fields).json()
    assert {len(choice["logprobs"]["content"]) for choice in answer["choices"]} == {100_000 // 32 // 21}
    assert "max_tokens: became 148" in str(answer["usage"])


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"prompt_cache_options": {"comparison_response_id": "x" * 300}}, "prompt_cache_options"),
        ("messages", {"max_tokens": 1, "diagnostics": {"previous_message_id": "x" * 300}}, "diagnostics"),
        ("responses", {"input": "hi", "metadata": {"a": "x" * 600}}, "metadata"),
        ("responses", {"input": "hi", "metadata": {"x" * 65: "a"}}, "metadata"),
        ("responses", {"input": "hi", "safety_identifier": "x" * 600}, "safety_identifier"),
    ],
)
def test_what_a_client_has_kept_here_is_bounded(
    serving: Serving, path: str, fields: dict[str, Any], param: str
) -> None:
    response = serving.http.post(f"/v1/{path}", json={"messages": HELLO, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(param)


def test_unknown_fields_are_ignored(serving: Serving) -> None:
    assert serving.chat(store=True, metadata={"a": [1]}, verbosity="low", made_up={"x": None}).status_code == 200


def test_a_priority_header_must_exist(serving: Serving) -> None:
    body = {"messages": HELLO, "max_tokens": 1}
    response = serving.http.post("/v1/chat/completions", json=body, headers={"x-hotloop-priority": "urgent"})
    assert check_error(response, 400)["param"] == "priority"


def test_paths_and_methods_that_do_not_exist(serving: Serving) -> None:
    check_error(serving.http.get("/nowhere"), 404, "unknown_url")
    check_error(serving.http.post("/v1/images", json={}), 404, "unknown_url")
    response = serving.http.get("/v1/chat/completions")
    check_error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"
    check_error(serving.http.delete("/v1/models"), 405)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
def test_a_body_must_say_that_it_is_json(serving: Serving, kind: str) -> None:
    response = serving.http.post("/v1/chat/completions", content=b"{}", headers={"content-type": kind})
    check_error(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("path", ["chat/completions", "completions", "messages", "responses"])
def test_a_body_of_too_many_values_is_refused(serving: Serving, path: str) -> None:
    """Each of them would be a Python object, also in a field that nobody reads."""
    content = b'{"unread": [' + b"[[]]," * 100_000 + b"[]]}"
    response = serving.http.post(f"/v1/{path}", content=content, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "the body has more than 50,000 lists and objects; no more are read"


def test_a_prompt_of_many_token_ids_is_read(serving: Serving) -> None:
    error = check_error(serving.complete(prompt=[1] * 200_000), 400, "context_length_exceeded")
    assert "200000 prompt tokens" in error["message"]


def test_a_charset_is_no_harm(serving: Serving) -> None:
    body = json.dumps({"messages": HELLO, "max_tokens": 1})
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert serving.http.post("/v1/chat/completions", content=body, headers=headers).status_code == 200


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({name for fields, _ in BAD_FIELDS + BAD_COMPLETIONS for name in fields})


@settings(max_examples=examples(200))
@given(
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]),
    fields=st.dictionaries(st.sampled_from([*FIELDS, "tokens"]), JSON_VALUES, max_size=4),
    is_whole=st.booleans(),
)
def test_no_json_is_ever_a_500(serving: Serving, path: str, fields: dict[str, Any], is_whole: bool) -> None:
    good = {"messages": HELLO, "prompt": "hi", "tokens": [1], "max_tokens": 2} if is_whole else {}
    response = serving.http.post(path, json=good | fields)
    if response.status_code != 200:
        assert response.status_code in (400, 404)
        check_error(response, response.status_code)


@settings(max_examples=examples(100))
@given(content=st.binary(max_size=64))
def test_no_bytes_are_ever_a_500(serving: Serving, content: bytes) -> None:
    check_error(serving.http.post("/v1/chat/completions", content=content, headers=JSON), 400)


def test_a_bug_is_a_500_of_the_same_shape() -> None:
    with Serving() as serving:
        del serving.app.state.service
        response: httpx.Response = serving.http.get("/v1/models")
        check_error(response, 500, "internal_error")
