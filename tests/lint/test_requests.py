"""Files of requests, in all their shapes."""

import gzip
import json

import pytest
from tests.lint.stories import TALK, TOOLS, bodies, user

from hotloop.core.errors import ConfigError
from hotloop.lint.finding import Severity
from hotloop.lint.requests import find_api, parse_line, read_requests, read_spans
from hotloop.trace import names
from hotloop.trace.span import Span


def parse(row):
    return [*parse_line(json.dumps(row), "a.jsonl", 3)]


def test_a_body_alone():
    (exchange,) = parse({"model": "m", "messages": [user("Hi")]})
    assert (exchange.api, exchange.line, exchange.source, exchange.answer.parts) == ("chat", 3, "a.jsonl", ())


def test_a_request_with_all_that_is_known():
    body, answer = bodies()[0]
    row = {"request": body, "response": {"choices": [{"message": answer}], "usage": {"prompt_tokens": 5}}}
    (exchange,) = parse(row | {"at": 7, "session": "s", "ttft_ms": 12.5})
    assert (exchange.at, exchange.session, exchange.ttft_ms, exchange.answer.usage.num_prompt) == (7.0, "s", 12.5, 5)
    assert [part.kind for part in exchange.answer.parts] == ["text", "call"]


def test_a_line_of_a_batch():
    (exchange,) = parse({"custom_id": "1", "url": "/v1/responses", "body": {"model": "m", "input": "Hi"}})
    assert exchange.api == "responses"


def test_a_transcript_is_the_requests_it_was_made_of():
    made = parse({"system": "Be kind.", "tools": TOOLS, "messages": TALK})
    assert [len(exchange.body["messages"]) for exchange in made] == [2, 4, 6, 8]
    assert {exchange.run for exchange in made} == {"a.jsonl:3"}


@pytest.mark.parametrize(
    ("body", "api"),
    [
        ({"messages": []}, "chat"),
        ({"messages": [], "system": "S"}, "messages"),
        ({"messages": [], "tools": [{"name": "x", "input_schema": {}}]}, "messages"),
        ({"messages": [{"content": [{"type": "tool_result"}]}]}, "messages"),
        ({"input": "Hi"}, "responses"),
        ({"prompt": "Hi"}, None),
    ],
)
def test_apis_are_known_by_what_only_they_have(body, api):
    assert find_api(body) == api


DEEP = '{"x": [' * 400 + "1" + "]}" * 400


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "{}", '{"messages": 1}', "[" * 5000, f'{{"messages": [{{"role": "user", "content": [{DEEP}]}}]}}'],
)
def test_what_is_no_request_is_named(line):
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 3"):
        [*parse_line(line, "a.jsonl", 3)]


def test_files_may_be_compressed_and_have_empty_lines(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(json.dumps(body).encode() + b"\n" for body, _ in bodies())))
    assert len([*read_requests(path)]) == 4


@pytest.mark.parametrize("name", ["missing.jsonl", "not.jsonl.gz", "binary.jsonl"])
def test_files_that_cannot_be_read_are_named(tmp_path, name):
    if name != "missing.jsonl":
        (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=name):
        [*read_requests(tmp_path / name)]


def span(name, body, **attributes):
    told = {names.CONTENT_REQUEST: json.dumps(body), **attributes}
    return Span(
        trace_id="a" * 32,
        span_id="b" * 16,
        name=name,
        service="agent",
        start_ns=10**9,
        end_ns=2 * 10**9,
        attributes=told,
    )


@pytest.mark.parametrize("said", [7, None, ["a"], "\ud800", "{"])
def test_a_recorded_request_that_is_none_is_left_out(said: object):
    span = Span(
        trace_id="1" * 32, span_id="2" * 16, parent_id=None, name=names.REQUEST, service="s", start_ns=1, end_ns=2,
        attributes={names.CONTENT_REQUEST: said},
    )  # fmt: skip
    assert [*read_spans([span])] == []


def test_what_a_span_of_another_kind_calls_a_request_is_left_out():
    assert [*read_spans([span("made up", bodies()[0][0])])] == []


def test_a_recorded_run_as_its_client_saw_it():
    body = bodies()[0][0]
    told = {names.NUM_PROMPT: 9, names.NUM_CACHED: 4, names.NUM_OUTPUT: 2, names.FIRST_TOKEN_NS: 10**9 + 5_000_000}
    spans = [
        span(names.CHAT, body, **told),
        span(names.REQUEST, body),
        span(names.CHAT, body, **{names.IS_PREFILL_ONLY: True}),
    ]
    (exchange,) = read_spans(spans)
    assert (exchange.answer.usage.num_cached, exchange.ttft_ms, exchange.api) == (4, 5.0, "chat")


def test_a_run_without_its_prompts_says_so():
    bare = Span(trace_id="a" * 32, span_id="b" * 16, name=names.CHAT, service="agent", start_ns=1, end_ns=2)
    with pytest.raises(ConfigError, match="trace_content"):
        [*read_spans([bare])]


def test_severities_are_ordered():
    assert Severity.NOTE < Severity.WARNING < Severity.ERROR
