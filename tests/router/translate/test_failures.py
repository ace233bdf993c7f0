"""Refusals of replicas of every kind, as the clients of the other API raise them."""

import json
from typing import Any

import anthropic
import openai
import pytest
from tests.router.translate.replicas import CHAT, MESSAGES, Json, Replica

from hotloop.core.errors import PromptTooLong
from hotloop.router.kinds import Api
from hotloop.router.translate import translate
from hotloop.server.errors import error_response

HELLO: Any = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}


def told(api: Api, status: int, body: bytes) -> tuple[int, Json]:
    translation = translate(api, MESSAGES if api == "chat" else CHAT, HELLO)
    given, answer = translation.answer(status, body)
    error: Json = json.loads(answer)["error"]
    return given, error


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no", "type": "x", "code": None}},
        {"object": "error", "message": "no", "type": "BadRequestError", "code": 400},
        {"error": "no", "error_type": "validation"},
        {"detail": "no"},
        "no",
    ],
)
def test_every_shape_of_a_refusal_is_understood(body: Any) -> None:
    assert told("messages", 400, json.dumps(body).encode()) == (400, {"type": "invalid_request_error", "message": "no"})


def test_a_page_of_a_proxy_is_told_by_its_words() -> None:
    assert told("messages", 502, b"<h1>Bad Gateway</h1>")[1]["message"] == "<h1>Bad Gateway</h1>"
    assert told("chat", 502, b"")[1]["message"] == "the replica answered with status 502"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_statuses_for_anthropics_clients(status: int, kind: str) -> None:
    given, error = told("messages", status, b"{}")
    assert (given, error["type"]) == (status, kind)


@pytest.mark.parametrize(
    ("status", "given", "code"),
    [
        (400, 400, "invalid_value"),
        (401, 401, "invalid_api_key"),
        (429, 429, "rate_limit_exceeded"),
        (500, 500, "replica_failed"),
        (529, 503, "overloaded"),
    ],
)
def test_statuses_for_openais_clients(status: int, given: int, code: str) -> None:
    told_status, error = told("chat", status, b'{"type":"error","error":{"type":"t","message":"m"}}')
    assert (told_status, error["code"], error["message"]) == (given, code, "m")


def test_a_prompt_that_is_too_long_is_told_in_words_that_clients_act_on() -> None:
    vllm = b'{"error": {"message": "This model\'s maximum context length is 9 tokens.", "code": 400}}'
    status, error = told("messages", 400, vllm)
    assert status == 400
    assert error["message"].startswith("prompt is too long: This model's")
    ours = error_response(PromptTooLong(9, 8), "r1").body
    assert told("messages", 400, bytes(ours))[1]["message"].startswith("prompt is too long: this model's")
    claude = b'{"type": "error", "error": {"type": "x", "message": "prompt is too long: 9 tokens > 8 maximum"}}'
    assert told("chat", 400, claude)[1]["code"] == "context_length_exceeded"


def test_the_clients_raise_what_they_have_for_it() -> None:
    refusal = {"error": {"message": "slow down", "type": "x"}}
    with (
        Replica(CHAT, refusal, status=429) as replica,
        replica.claude as claude,
        pytest.raises(anthropic.RateLimitError, match="slow down"),
    ):
        claude.messages.create(**HELLO)
    with (
        Replica(MESSAGES, {"type": "error", **refusal}, status=529) as replica,
        replica.openai as client,
        pytest.raises(openai.InternalServerError, match="slow down"),
    ):
        client.chat.completions.create(**HELLO)


def test_a_failure_in_place_of_an_answer() -> None:
    assert told("messages", 200, b'{"error": {"message": "upstream", "code": 429}}')[0] == 429
    assert told("chat", 200, b'{"type": "error", "error": {"type": "overloaded_error", "message": "x"}}')[0] == 503
