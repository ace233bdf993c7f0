"""What the server records of its requests: the tokens of the usage, the times in order, and whose child it is."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.serving import HELLO, Serving, only, until

from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.trace import names
from hotloop.trace.ledger import build_ledger
from hotloop.trace.runs import TraceStore
from hotloop.trace.span import Span
from hotloop.trace.store import StoreTracer
from hotloop.trace.tracer import ListTracer, Losses
from hotloop.ui.source import RunFilter
from hotloop.ui.store_source import StoreSource

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PHASES = [names.QUEUE, names.PREFILL, names.DECODE]


@pytest.fixture
def tracer() -> ListTracer:
    return ListTracer()


@pytest.fixture
def traced(tracer: ListTracer) -> Iterator[Serving]:
    with Serving(tracer=tracer) as serving:
        yield serving


def request_of(tracer: ListTracer) -> Span:
    [request] = [span for span in tracer.spans if span.name == names.REQUEST]
    return request


def check_phases(request: Span, spans: list[Span]) -> None:
    """One after the other, without a gap, within the request."""
    phases = [span for span in spans if span.parent_id == request.span_id]
    assert [span.name for span in phases] == PHASES
    moments = [request.start_ns, phases[0].start_ns]
    for span in phases:
        assert span.start_ns == moments[-1]
        moments.append(span.end_ns)
    assert [*moments, request.end_ns] == sorted([*moments, request.end_ns])
    assert {(span.trace_id, span.service) for span in phases} == {(request.trace_id, request.service)}


def check_usage(request: Span, usage: dict[str, Any]) -> None:
    told, ours = request.attributes, usage["hotloop"]
    assert told[names.NUM_PROMPT] == usage["prompt_tokens"]
    assert told[names.NUM_CACHED] == usage["prompt_tokens_details"]["cached_tokens"]
    assert told[names.NUM_OUTPUT] == usage["completion_tokens"]
    assert told[names.NUM_NEW] == ours["new_tokens"]
    assert told[names.NUM_RECOMPUTED] == ours["recomputed_tokens"]
    assert told[names.NUM_SAMPLED] == ours["sampled_tokens"]
    assert told[names.NUM_FORCED] == ours["forced_tokens"]
    assert told[names.NUM_STEPS] == ours["steps"]
    told_causes = {cause["reason"]: cause["num_tokens"] for cause in told[names.CAUSES] if cause["num_tokens"]}
    assert told_causes == ours["causes"]


def test_a_chat_is_a_request_with_three_parts(traced: Serving, tracer: ListTracer) -> None:
    answer = traced.chat(**only("x")).json()
    request = request_of(tracer)
    check_phases(request, tracer.spans)
    check_usage(request, answer["usage"])
    assert request.service == f"server:tiny@{traced.url.rpartition(':')[2]}"
    assert request.parent_id is None
    assert request.attributes[names.ANSWER_ID] == answer["id"]
    assert request.attributes[names.ENDPOINT] == "chat"
    assert request.attributes[names.PRIORITY] == "interactive"
    assert request.attributes[names.FINISH_REASON] == "length"


def test_what_was_recomputed_has_its_causes(traced: Serving, tracer: ListTracer) -> None:
    long = "the same words again and again, and then some more of them. " * 8
    for system in ("at noon", "at dusk"):
        messages = [{"role": "system", "content": f"It is {system}. {long}"}, *HELLO]
        usage = traced.chat(messages=messages).json()["usage"]
        check_usage(request_of(tracer), usage)
        tracer.spans.clear()
    assert usage["hotloop"]["causes"]["diverged"] > 100


def test_a_stream_and_its_client_agree(traced: Serving, tracer: ListTracer) -> None:
    client = traced.openai()
    *_, last = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage
    check_usage(request_of(tracer), last.usage.model_dump())


def test_several_choices_are_one_request(traced: Serving, tracer: ListTracer) -> None:
    answer = traced.chat(n=3).json()
    request = request_of(tracer)
    check_phases(request, tracer.spans)
    check_usage(request, answer["usage"])
    assert request.attributes[names.NUM_OUTPUT] == 12


def test_it_is_a_child_of_whoever_asked(traced: Serving, tracer: ListTracer) -> None:
    body = {"messages": HELLO, "max_tokens": 2}
    traced.http.post("/v1/chat/completions", json=body, headers={"traceparent": PARENT})
    request = request_of(tracer)
    assert f"00-{request.trace_id}-{request.parent_id}-01" == PARENT


def test_the_turns_of_a_session_are_one_trace(traced: Serving, tracer: ListTracer) -> None:
    for session in ("one", "one", "two", ""):
        headers = {"x-session-id": session} if session else {}
        traced.http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 2}, headers=headers)
    first, again, other, alone = (span for span in tracer.spans if span.name == names.REQUEST)
    assert first.trace_id == again.trace_id
    assert len({first.trace_id, other.trace_id, alone.trace_id}) == 3
    assert (first.session, alone.session) == ("one", "")
    ledger = build_ledger([span for span in tracer.spans if span.trace_id == first.trace_id])
    assert len(ledger.turns) == 2


@pytest.mark.parametrize(("key", "other"), [("a", "b")])
def test_sessions_of_different_owners_are_apart(traced: Serving, tracer: ListTracer, key: str, other: str) -> None:
    for each in (key, other):
        headers = {"x-session-id": "same", "authorization": f"Bearer {each}"}
        traced.http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 2}, headers=headers)
    first, second = (span for span in tracer.spans if span.name == names.REQUEST)
    assert first.trace_id != second.trace_id


def test_all_apis_are_recorded(traced: Serving, tracer: ListTracer) -> None:
    traced.complete()
    anthropic = traced.http.post("/v1/messages", json={"model": "tiny", "messages": HELLO, "max_tokens": 3}).json()
    responses = traced.http.post("/v1/responses", json={"input": "hello", "max_output_tokens": 16}).json()
    requests = [span for span in tracer.spans if span.name == names.REQUEST]
    assert [span.attributes[names.ENDPOINT] for span in requests] == ["completions", "messages", "responses"]
    assert [span.attributes[names.ANSWER_ID] for span in requests[1:]] == [anthropic["id"], responses["id"]]
    usage = anthropic["usage"]
    told = requests[1].attributes
    num_prompt = sum(usage[name] or 0 for name in usage if name.endswith("input_tokens"))
    assert (told[names.NUM_PROMPT], told[names.NUM_OUTPUT]) == (num_prompt, usage["output_tokens"])
    told = requests[2].attributes
    assert told[names.NUM_PROMPT] == responses["usage"]["input_tokens"]
    assert told[names.NUM_OUTPUT] == responses["usage"]["output_tokens"]


def test_a_prompt_that_is_only_read_says_so(traced: Serving, tracer: ListTracer) -> None:
    usage = traced.chat(generate=False).json()["usage"]
    request = request_of(tracer)
    assert request.attributes[names.IS_PREFILL_ONLY]
    assert usage["completion_tokens"] == 0
    assert request.attributes[names.NUM_OUTPUT] == 1, "the engine cannot say nothing: as its metrics have it"


def test_what_is_refused_is_recorded_as_that(tracer: ListTracer) -> None:
    with Serving(tracer=tracer) as traced:
        assert traced.chat(messages=[{"role": "user", "content": "x" * 5000}]).status_code == 400
    request = request_of(tracer)
    assert "do not fit" in request.error
    assert [span.name for span in tracer.spans] == [names.REQUEST]


def test_who_hangs_up_leaves_a_trace(traced: Serving, tracer: ListTracer) -> None:
    body = {"messages": HELLO, "max_tokens": 2000, "stream": True, "ignore_eos": True, **only("a")}
    with traced.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert any(re.search('"content":"[^"]', line) for line in answer.iter_lines()), "not before a token has come"
    until(lambda: bool(tracer.spans))
    until(lambda: len(tracer.spans) == 4)
    assert request_of(tracer).error == "abort"


def test_the_dashboard_shows_an_aborted_request_and_its_tokens(tmp_path: Path) -> None:
    tracer = StoreTracer(tmp_path / "trace.db")
    with Serving(tracer=tracer) as traced, TraceStore(tmp_path / "trace.db") as store:
        body = {"messages": HELLO, "max_tokens": 2000, "stream": True, "ignore_eos": True, **only("a")}
        with traced.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert any(re.search('"content":"[^"]', line) for line in answer.iter_lines()), (
                "not before a token has come"
            )
        source = StoreSource(store, title="here")
        until(lambda: bool(source.runs(RunFilter())["runs"]))
        [line] = source.runs(RunFilter())["runs"]
        run = source.run(line["id"])
    tracer.close()
    assert run
    assert line["num_aborted"] == run["num_aborted"] == 1
    assert (line["num_lost_prompt"], line["num_lost_output"]) == (run["lost"]["prompt"], run["lost"]["output"])
    assert min(run["lost"]["prompt"], run["lost"]["output"]) > 0
    assert run["turns"][0]["finish_reason"] == "abort"


def test_what_recording_lost_is_in_the_metrics() -> None:
    class LossyTracer(ListTracer):
        losses = Losses(num_dropped=3, num_failed=2)

    with Serving(tracer=LossyTracer()) as traced:
        page = traced.http.get("/metrics").text
    assert "hotloop_trace_dropped_spans_total 3.0" in page
    assert "hotloop_trace_failed_writes_total 2.0" in page


def test_without_explanations_everything_is_new(tracer: ListTracer) -> None:
    with Serving(ServerConfig(port=0, explanations="off"), EngineConfig(), tracer=tracer) as traced:
        traced.chat()
    told = request_of(tracer).attributes
    assert told[names.NUM_NEW] == told[names.NUM_PROMPT] - told[names.NUM_CACHED]
    assert told[names.CAUSES] == []


def test_nothing_that_was_said_is_recorded_unasked(traced: Serving, tracer: ListTracer) -> None:
    traced.chat(messages=[{"role": "user", "content": "my secret"}])
    assert "secret" not in str(tracer.spans)


def test_what_was_said_is_recorded_where_it_is_asked_for() -> None:
    tracer = ListTracer(keeps_content=True)
    long = "the same words again and again, and then some more of them. " * 8
    with Serving(tracer=tracer) as traced:
        for system in ("at noon", "at dusk"):
            messages = [{"role": "system", "content": f"It is {system}. {long}"}, *HELLO]
            traced.chat(messages=messages, **only("x"))
            until(lambda: len(tracer.spans) % 4 == 0 and bool(tracer.spans))
        until(lambda: len(tracer.spans) == 8)
    _, told = (span.attributes for span in tracer.spans if span.name == names.REQUEST)
    assert '"It is at dusk.' in told[names.CONTENT_REQUEST]
    assert told[names.CONTENT_ANSWER] == "xxxx"
    [place] = [cause for cause in told[names.CAUSES] if cause["reason"] == "diverged"]
    assert (place["kind"], place["index"]) == ("system", 0)
    [words] = [each for each in told[names.CONTENT_WORDS] if each]
    assert words["previous"].startswith("noon")
    assert words["current"].startswith("dusk")
