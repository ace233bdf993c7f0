"""What Anthropic's clients are told when something cannot be, or goes wrong."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import pytest
from tests.server.claude import TOOLS, ask, check_failure, claude, post, read_events
from tests.server.serving import HELLO, MODEL, Serving, check_error, until

from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.core.errors import HotloopError
from hotloop.server.errors import error_response

ENDLESS: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"name": "f", "input_schema": {"type": "object"}} | fields]}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1"}
FORM = {"type": "json_schema", "schema": {"type": "object"}}
UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens is missing"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": []}]}, "at least one message"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    (user({"type": "text"}), "messages[0].content[0].text is missing"),
    (user(IMAGE), "messages[0].content[0]: content of type 'image' is not supported: only text is"),
    (user({"type": "text", "text": ""}, IMAGE), "messages[0].content[1]: content of type 'image'"),
    (user({"type": "text", "text": "a"}, {"type": "odd"}), "messages[0].content[1]: content of type 'odd'"),
    (user(RESULT | {"content": [IMAGE]}), "messages[0].content[0].content[0]: content of type 'image'"),
    (user({"type": "tool_result", "content": "x"}), "messages[0].content[0].tool_use_id is missing"),
    (user({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}), "'tool_use'"),
    (user({"type": "thinking", "thinking": "x", "signature": ""}), "'thinking'"),
    (user({"type": "document", "source": {"type": "file", "file_id": "x"}}), "'document'"),
    (
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "for ever"}}]},
        "system[0].cache_control.type",
    ),
    ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl"),
    (tool(name="two words"), "two words"),
    (tool(input_schema=None), "tools[0].input_schema is missing"),
    (tool(input_schema={"type": "array"}), "tools[0].input_schema"),
    (tool(input_schema={"type": "object", "properties": {"a": {"type": "odd"}}}), "tools[0].input_schema"),
    (tool(input_schema=UNIQUE, strict=True), "tools[0].input_schema"),
    (tool(type="web_search_20250305", name="web_search") | {"tool_choice": {"type": "any"}}, "tools[0]: nothing here"),
    (tool(type="bash_20250124", name="bash") | {"tool_choice": {"type": "tool", "name": "f"}}, "not among the tools"),
    (tool(name="f" * 129), "1 to 128"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}}, "'g'"),
    ({"tool_choice": {"type": "any"}}, "no tools"),
    ({"tool_choice": "auto"}, "tool_choice: expected an object"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 2.5}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}, "mcp_servers"),
    ({"ebnf": "root ::= 'a'"}, "ebnf"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format.schema"),
    ({"output_format": {"type": "json_schema", "schema": {"not": {}}}}, "output_format.schema"),
    ({"output_format": {"type": "xml"}}, "output_format.type"),
    ({"output_format": FORM, "output_config": {"format": FORM}}, "output_format: cannot be given together"),
    ({"output_config": {"effort": "extreme"}}, "output_config.effort: expected low, medium, high, xhigh or max"),
    ({"thinking": "hard"}, "thinking"),
]


@pytest.mark.parametrize(("fields", "words"), BAD, ids=str)
def test_what_cannot_be_is_refused_by_name(serving: Serving, fields: dict[str, Any], words: str) -> None:
    for stream in (False, True):
        message = check_failure(post(serving, **fields, stream=stream), 400, "invalid_request_error")
        assert words in message


def test_the_limit_must_be_given(serving: Serving) -> None:
    response = serving.http.post("/v1/messages", json={"messages": HELLO})
    assert check_failure(response, 400, "invalid_request_error") == "max_tokens is missing"


def test_what_is_not_a_body(serving: Serving) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"", b"{", b"[]", b'{"messages": "\xff"}', b"[" * 100_000):
        response = serving.http.post("/v1/messages", content=content, headers=headers)
        check_failure(response, 400, "invalid_request_error")
    response = serving.http.post("/v1/messages", content=b"{}")
    check_failure(response, 415, "invalid_request_error")


def test_other_models_methods_and_paths(serving: Serving) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        body = {"model": "claude-opus", "messages": HELLO, "max_tokens": 1}
        message = check_failure(serving.http.post(path, json=body), 404, "not_found_error")
        assert "'claude-opus'" in message
        assert MODEL in message
        check_failure(serving.http.get(path), 405, "invalid_request_error")
    check_failure(serving.http.post("/v1/messages/batches", json={}), 404, "not_found_error")
    check_error(serving.http.post("/v1/messagesx", json={}), 404)


def test_counting_refuses_alike(serving: Serving) -> None:
    response = serving.http.post("/v1/messages/count_tokens", json={**user(IMAGE), "model": MODEL})
    assert "'image'" in check_failure(response, 400, "invalid_request_error")


def test_no_conversation_is_kept(serving: Serving) -> None:
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    response = post(serving, thread=thread)
    check_failure(response, 400, "invalid_request_error")
    assert response.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}
    assert post(serving, thread=None).status_code == 200


def test_a_body_that_is_too_large() -> None:
    with Serving(ServerConfig(port=0, max_body="1KiB")) as serving:
        check_failure(post(serving, system="x" * 2000), 413, "request_too_large")


def test_keys() -> None:
    with Serving(ServerConfig(port=0, api_key="secret")) as serving:
        for fields in ({"api_key": "secret"}, {"api_key": None, "auth_token": "secret"}):
            with claude(serving, **fields) as client:
                assert ask(client, max_tokens=1).usage.output_tokens == 1
        with claude(serving, api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError) as caught:
            ask(client)
        assert caught.value.type == "authentication_error"
        assert caught.value.request_id
        check_failure(post(serving), 401, "authentication_error")
        assert serving.http.get("/v1/models", headers={"x-api-key": "secret"}).status_code == 200
        check_error(serving.http.get("/v1/models", headers={"x-api-key": "secre"}), 401, "invalid_api_key")
        told = serving.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
        check_failure(told, 401, "authentication_error")


def test_overload_is_answered_529() -> None:
    def stream(client: anthropic.Anthropic) -> Any:
        return client.messages.create(model=MODEL, messages=HELLO, stream=True, max_tokens=3000, extra_body=ENDLESS)

    config = EngineConfig(max_running=1, max_waiting=1)
    with Serving(engine_config=config) as serving, claude(serving) as client, ThreadPoolExecutor(1) as pool:
        running = stream(client)
        until(lambda: serving.engine.stats().num_running == 1)
        waiting = pool.submit(stream, client)
        until(lambda: sum(serving.engine.stats().num_waiting.values()) == 1)
        for is_stream in (False, True):
            response = post(serving, stream=is_stream)
            check_failure(response, 529, "overloaded_error")
            assert int(response.headers["retry-after"]) >= 1
        with pytest.raises(anthropic.APIStatusError) as caught:
            ask(client)
        assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")
        running.close()
        waiting.result(30).close()


def test_a_failure_within_a_stream_is_its_last_event() -> None:
    with Serving(ServerConfig(port=0, drain_timeout_s=0.05)) as serving:
        body = {"messages": HELLO, "stream": True, **ENDLESS}
        with serving.http.stream("POST", "/v1/messages", json=body) as response:
            lines = response.iter_lines()
            begun = []
            while "event: message_start" not in begun:  # a comment goes before it, which says nothing of an answer
                begun.append(next(lines))
            serving.stop()
            text = "\n".join([*begun, *lines]) + "\n"
    *_, last = read_events(text)
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert last["request_id"] == response.headers["request-id"]


def test_the_client_hears_of_a_failure_within_a_stream() -> None:
    with Serving(ServerConfig(port=0, drain_timeout_s=0.05)) as serving, claude(serving) as client:
        extra = {"ignore_eos": True}
        with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=3000, extra_body=extra) as stream:
            next(iter(stream))
            serving.stop()
            with pytest.raises(anthropic.APIStatusError, match="shutting down"):
                stream.until_done()


def test_a_mistake_of_ours_has_the_same_shape() -> None:
    response = error_response(HotloopError("oops"), "id", for_anthropic=True)
    assert response.status_code == 500
    body = json.loads(bytes(response.body))
    assert body == {"type": "error", "error": {"type": "api_error", "message": "oops"}, "request_id": "id"}
