"""Spans as a collector receives them: a real one, over HTTP, that decodes what comes."""

import socket
from typing import Any

import pytest
from msgspec.structs import replace
from tests.trace.spans import DAWN_NS, MS, span

from hotloop.core.errors import RemoteError
from hotloop.trace import names
from hotloop.trace.content import Content

otel = pytest.importorskip("hotloop.trace.otel", reason="needs the extra `otel`", exc_type=ImportError)
collector = pytest.importorskip("tests.trace.collector", reason="needs the extra `otel`", exc_type=ImportError)


RUN = span(names.RUN, 0, 90, session="s", agent="scout", run_id="run-1", num_prompt=100, end="done")
TURN = span(names.TURN, 1, 89, RUN, session="s", turn=1)
CHAT = span(names.CHAT, 2, 50, TURN, session="s", model="m", num_prompt=100, num_cached=60, num_output=7)
TOOL = span(
    names.TOOL, 50, 80, TURN, tool="look", call_id="c1", error="it broke", **{names.CONTENT_RESULT: "secret 42"}
)
ROUTE = span(names.ROUTE, 3, 49, CHAT, service="router:8780", replica="r1", tried=["r0", "r1"], num_prompt=100)
REQUEST = span(
    names.REQUEST, 4, 48, ROUTE, service="server:m@1", model="m", num_prompt=100, num_cached=60, num_output=7,
    finish_reason="stop", answer_id="chatcmpl-1", causes=[{"reason": "block", "num_tokens": 3}], is_prefill_only=None,
)  # fmt: skip
QUEUE = span(names.QUEUE, 4, 5, REQUEST, service="server:m@1")
ALL = [RUN, TURN, CHAT, TOOL, ROUTE, REQUEST, QUEUE]


@pytest.fixture
def received() -> dict[str, tuple[dict[str, Any], Any]]:
    with collector.Collector().running() as running:
        tracer = otel.OtelTracer(running.url)
        for each in ALL:
            tracer.record(each)
        tracer.close()
    return {told[1].name: told for told in running.spans}


def test_names_are_those_of_the_conventions(received: Any) -> None:
    assert set(received) == {
        "invoke_agent scout",
        "hotloop.turn",
        "chat m",
        "execute_tool look",
        "hotloop.route",
        "hotloop.request",
        "hotloop.queue",
    }


def test_ids_parents_and_times_are_the_same(received: Any) -> None:
    assert len(received) == len(ALL)
    sent = {each.span_id: each for each in ALL}
    for _, told in received.values():
        ours = sent[told.span_id.hex()]
        assert told.trace_id.hex() == ours.trace_id
        assert told.parent_span_id.hex() == (ours.parent_id or "")
        assert (told.start_time_unix_nano, told.end_time_unix_nano) == (ours.start_ns, ours.end_ns)


def test_a_question_is_counted_once_by_who_asked_first(received: Any) -> None:
    told = collector.plain(received["chat m"][1].attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == "m"
    assert told["gen_ai.conversation.id"] == "s"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (100, 7)
    assert told["gen_ai.usage.cache_read.input_tokens"] == 60
    counted = [
        name for name, (_, each) in received.items() if "gen_ai.usage.input_tokens" in collector.plain(each.attributes)
    ]
    assert counted == ["chat m"]


def test_what_the_conventions_have_no_word_for_is_ours(received: Any) -> None:
    told = collector.plain(received["hotloop.request"][1].attributes)
    assert told["hotloop.num_cached"] == 60
    assert told["hotloop.causes"] == '[{"reason":"block","num_tokens":3}]'
    assert "hotloop.is_prefill_only" not in told
    assert collector.plain(received["hotloop.route"][1].attributes)["hotloop.tried"] == ["r0", "r1"]


def test_a_tool_that_failed_is_an_error_and_what_it_said_stays_here(received: Any) -> None:
    _, told = received["execute_tool look"]
    facts = collector.plain(told.attributes)
    assert (facts["gen_ai.tool.name"], facts["gen_ai.tool.call.id"]) == ("look", "c1")
    assert (told.status.code, told.status.message) == (2, "it broke")
    assert "secret" not in str(facts)


def test_each_process_is_a_service(received: Any) -> None:
    assert received["invoke_agent scout"][0]["service.name"] == "agent"
    assert received["hotloop.request"][0]["service.name"] == "server"
    assert received["hotloop.request"][0]["service.instance.id"] == "m@1"
    assert received["hotloop.route"][0]["service.name"] == "router"


def test_a_request_nobody_of_ours_asked_is_the_question_itself() -> None:
    alone = span(
        names.REQUEST, 0, 9, service="server:m@1", model="m", num_prompt=10, num_cached=4, num_output=2,
        finish_reason="stop", first_token_ns=DAWN_NS + MS,
    )  # fmt: skip
    with collector.Collector().running() as running:
        otel.send([alone], f"{running.url}/v1/traces")
    [(_, told)] = running.spans
    facts = collector.plain(told.attributes)
    assert told.name == "chat m"
    assert facts["gen_ai.usage.input_tokens"] == 10
    assert facts["gen_ai.usage.cache_write.input_tokens"] == 6
    assert facts["gen_ai.response.finish_reasons"] == ["stop"]
    assert facts["gen_ai.provider.name"] == "hotloop"


def test_content_goes_out_where_it_is_asked_for_redacted() -> None:
    with collector.Collector().running() as running:
        tracer = otel.OtelTracer(running.url, content=Content.parse(True, ["[0-9]+"]))
        assert tracer.keeps_content
        tracer.record(TOOL)
        tracer.close()
    [(_, told)] = running.spans
    assert collector.plain(told.attributes)["hotloop.content.result"] == "secret [redacted]"


def test_a_collector_that_refuses_is_one_line() -> None:
    with (
        collector.Collector(status=400).running() as running,
        pytest.raises(RemoteError, match="did not take the spans"),
    ):
        otel.send([RUN], running.url)


def test_a_run_that_goes_on_is_told_of_once_when_it_is_over() -> None:
    begun = span(names.RUN, 0, 0, agent="scout")
    with collector.Collector().running() as running:
        tracer = otel.OtelTracer(running.url)
        tracer.record(begun)
        tracer.record(replace(begun, end_ns=begun.end_ns + 5, attributes={names.AGENT: "scout", names.END: "done"}))
        tracer.close()
        otel.send([begun, TURN], running.url)
    assert [told.name for _, told in running.spans] == ["invoke_agent scout", "hotloop.turn"]


@pytest.mark.parametrize("nonsense", ["x", None, [1], 1.5, -7])
def test_tokens_that_are_no_number_are_none(nonsense: Any):
    sent = otel.as_otel(span(names.REQUEST, 0, 1, num_prompt=nonsense))
    assert sent.attributes["gen_ai.usage.cache_write.input_tokens"] == 0


def test_a_collector_that_is_not_there_keeps_nobody_from_ending():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it lets in, and says nothing
        tracer = otel.OtelTracer(f"http://127.0.0.1:{silent.getsockname()[1]}", patience_s=0.0)
        tracer.record(CHAT)
        tracer.close()
