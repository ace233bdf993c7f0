"""An answer that another server had begun goes on as if nothing had happened: the same words, counted once."""

import json
from typing import Any

import httpx
import pytest
from tests.server.calls import TOOLS, WEATHER, write_call
from tests.server.serving import HELLO, MODEL, Serving, check_error, token

from hotloop.wire.hints import TOKENS_HEADER
from hotloop.wire.sse import take_tokens

CALL = "Let me look.\n" + write_call("weather", city="Rome", days=1)
SHAPE = {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TEXT_TOOL = {"name": "weather", "description": "", "input_schema": WEATHER}
ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": HELLO}),
    (CHAT, {"messages": HELLO, "tools": TOOLS}),
    (MESSAGES, {"messages": HELLO, "tools": [TEXT_TOOL], "max_tokens": 200}),
    (RESPONSES, {"input": "hello", "tools": [{"type": "function", **TOOLS[0]["function"]}]}),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 200}),
]


def stream(http: httpx.Client, path: str, body: dict[str, Any]) -> tuple[bytes, list[int]]:
    headers = {TOKENS_HEADER: "1"}
    page = http.post(path, json={"model": MODEL, "stream": True, "temperature": 0, **body}, headers=headers)
    assert page.status_code == 200, page.text
    return take_tokens(page.content)


def said(data: bytes) -> list[Any]:
    """What an answer says, however it is cut and whatever it is called."""
    text, rest = "", []
    for line in data.splitlines():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {"content": choice.get("text")})
            calls = delta.get("tool_calls") or [{}]
            text += (delta.get("content") or "") + (calls[0].get("function", {}).get("arguments") or "")
            rest += [choice["finish_reason"]] if choice.get("finish_reason") else []
        delta = event.get("delta", "")
        if isinstance(delta, dict):
            text += delta.get("text", delta.get("partial_json", ""))
            rest += [delta["stop_reason"], event["usage"]["output_tokens"]] if delta.get("stop_reason") else []
        text += delta if isinstance(delta, str) else ""
        if event.get("type") == "response.completed":
            rest += [event["response"]["usage"]["output_tokens"]]
    return [text, *rest]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("path", "body"), ASKED)
def test_the_rest_is_what_it_would_have_been(path: str, body: dict[str, Any]) -> None:
    with Serving(script=[CALL] if "tools" in body else ["It is (42)."]) as serving:
        whole, token_ids = stream(serving.http, path, body)
        assert token_ids
        for num in {0, 1, len(token_ids) // 2, len(token_ids) - 1, len(token_ids)}:
            resumed, again = stream(serving.http, path, {**body, "resume": {"token_ids": token_ids[:num]}})
            assert said(resumed) == said(whole)
            assert again[: len(token_ids)] == token_ids


@pytest.mark.parametrize("num", [1, 8, 15])
def test_an_answer_of_a_shape_goes_on_in_it(serving: Serving, num: int) -> None:
    body = {"messages": HELLO, **SHAPE, "seed": 3, "temperature": 1, "max_tokens": 80}
    whole, token_ids = stream(serving.http, CHAT, body)
    resumed, _ = stream(serving.http, CHAT, {**body, "resume": {"token_ids": token_ids[:num]}})
    assert said(resumed) == said(whole)
    json.loads(said(resumed)[0])


def test_what_the_shape_does_not_allow_is_left_out(serving: Serving) -> None:
    body = {"messages": HELLO, **SHAPE, "max_tokens": 80, "resume": {"token_ids": [token("{"), token("x")]}}
    assert set(json.loads(said(stream(serving.http, CHAT, body)[0])[0])) == {"city", "days"}


def test_calls_and_responses_keep_their_names() -> None:
    response_id, body = f"resp_{'a' * 48}", ASKED[3][1]
    with Serving(script=[CALL]) as serving:
        _, token_ids = stream(serving.http, RESPONSES, body)
        resume = {"token_ids": token_ids[:30], "call_ids": ["call_1"], "response_id": response_id}
        resumed, _ = stream(serving.http, RESPONSES, {**body, "resume": resume})
        assert b'"call_id":"call_1"' in resumed
        assert serving.http.get(f"/v1/responses/{response_id}").json()["output"][1]["call_id"] == "call_1"
        again, _ = stream(serving.http, RESPONSES, {**body, "resume": resume})
        assert response_id.encode() not in again, "that is another response's name"
        message, _ = stream(serving.http, *ASKED[2])
        _, token_ids = stream(serving.http, *ASKED[2])
        resume = {"token_ids": token_ids, "call_ids": ["toolu_7"]}
        resumed, _ = stream(serving.http, MESSAGES, {**ASKED[2][1], "resume": resume})
        assert b'"id":"toolu_7"' in resumed
        assert b"toolu_7" not in message


def test_no_more_is_taken_than_there_is_room_for(serving: Serving) -> None:
    resume = {"token_ids": [token("a")] * 5000}
    resumed, token_ids = stream(serving.http, CHAT, {"messages": HELLO, "max_tokens": 4, "resume": resume})
    assert said(resumed) == ["aaaa", "length"]
    assert len(token_ids) == 4
    resumed, _ = stream(serving.http, CHAT, {"messages": HELLO, "resume": resume})
    assert said(resumed)[-1] == "length"


def test_nobody_is_told_tokens_unasked(serving: Serving) -> None:
    page = serving.http.post(CHAT, json={"model": MODEL, "messages": HELLO, "stream": True, "max_tokens": 4})
    assert b": tokens" not in page.content
    body = {"model": MODEL, "messages": HELLO, "stream": True, "max_tokens": 4, "n": 2}
    assert b": tokens" not in serving.http.post(CHAT, json=body, headers={TOKENS_HEADER: "1"}).content


@pytest.mark.parametrize(
    ("resume", "param"),
    [
        ({}, "resume.token_ids"),
        ({"token_ids": [1 << 30]}, "resume.token_ids"),
        ({"token_ids": "abc"}, "resume.token_ids"),
        ({"token_ids": [-1]}, "resume.token_ids[0]"),
        ({"token_ids": [], "response_id": "mine"}, "resume.response_id"),
        ({"token_ids": [], "more": 1}, "resume"),
    ],
)
def test_what_cannot_be_resumed_is_refused(serving: Serving, resume: Any, param: str) -> None:
    body = {"model": MODEL, "messages": HELLO, "resume": resume}
    assert check_error(serving.http.post(CHAT, json=body), 400)["param"] == param


def test_only_one_answer_is_resumed(serving: Serving) -> None:
    body = {"model": MODEL, "messages": HELLO, "n": 2, "resume": {"token_ids": [1]}}
    assert check_error(serving.http.post(CHAT, json=body), 400)["param"] == "resume"
