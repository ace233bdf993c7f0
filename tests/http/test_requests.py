"""Whose client asks, and the id that every answer has."""

from typing import Any

import pytest

from hotloop.http.requests import is_for_anthropic, render_ids, render_refusal


def scope(path: str, *names: bytes) -> dict[str, Any]:
    return {"path": path, "headers": [(name, b"x") for name in names]}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/", "/v1/messages/batches", "/v1/messages/count_tokens"])
def test_messages_are_asked_for_by_anthropics_clients(path: str) -> None:
    assert is_for_anthropic(scope(path))
    assert render_ids(scope(path), "req_1") == [(b"x-request-id", b"req_1"), (b"request-id", b"req_1")]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/a/b"])
def test_models_are_asked_for_by_all_and_the_version_tells_whom(path: str) -> None:
    assert is_for_anthropic(scope(path, b"accept", b"anthropic-version"))
    assert not is_for_anthropic(scope(path, b"accept"))
    assert render_ids(scope(path), "req_1") == [(b"x-request-id", b"req_1")]


@pytest.mark.parametrize("path", ["/v1/messagesx", "/v1/modelsx", "/v1/chat/completions", "/"])
def test_no_other_path_is_theirs(path: str) -> None:
    assert not is_for_anthropic(scope(path, b"anthropic-version"))


def test_a_refusal_that_no_application_hears_of_has_the_id_where_either_client_looks() -> None:
    headers, body = render_refusal(431, "headers_too_large", "too large")
    named = dict(headers)
    assert named[b"request-id"] == named[b"x-request-id"]
    assert named[b"request-id"] in body
