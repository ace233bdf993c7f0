"""What the router records of a request's way, and what it tells the replica."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from benchmarks.route.stub import Manner
from tests.router.conftest import Router, replica_configs, running, until

from hotloop.core.config import RouterConfig
from hotloop.router.config import ReplicaConfig, RoutingConfig
from hotloop.router.spans import read_answer
from hotloop.trace import names
from hotloop.trace.span import parse_traceparent
from hotloop.trace.tracer import ListTracer, Losses
from hotloop.wire.sse import write_data

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def tracer() -> ListTracer:
    return ListTracer()


async def test_a_request_is_a_route_and_the_trace_goes_on(mirror: Any, tracer: ListTracer) -> None:
    async with routing(mirror_config(mirror), tracer) as router:
        await router.client.post(
            "/v1/chat/completions", json=BODY, headers={"traceparent": PARENT, "tracestate": "a=b"}
        )
    [route] = tracer.spans
    assert (route.name, route.service, route.error) == (names.ROUTE, f"router:{port_of(router)}", "")
    assert f"00-{route.trace_id}-{route.parent_id}-01" == PARENT
    sent = mirror.seen[-1]["headers"]
    context = parse_traceparent(sent["traceparent"])
    assert context
    assert (context.trace_id, context.span_id) == (route.trace_id, route.span_id)
    assert sent["tracestate"] == "a=b"


async def test_it_is_told_who_answered_and_why(stubs: Any, tracer: ListTracer) -> None:
    started = await stubs(2)
    async with routing(replica_configs(started), tracer) as router:
        answer = await router.chat("hello")
    [route] = tracer.spans
    told = route.attributes
    assert told[names.REPLICA] in ("s0", "s1")
    assert told[names.REASON]
    assert told[names.TRIED] == [told[names.REPLICA]]
    assert told[names.STATUS] == 200
    assert told[names.ENDPOINT] == "chat"
    assert route.start_ns <= told[names.FIRST_BYTE_NS] <= route.end_ns
    usage = answer.json()["usage"]
    assert (told[names.NUM_PROMPT], told[names.NUM_OUTPUT]) == (usage["prompt_tokens"], usage["completion_tokens"])


async def test_a_try_that_failed_is_told_apart(stubs: Any, tracer: ListTracer) -> None:
    [dead, alive] = await stubs(2)
    configs = replica_configs([dead, alive])
    async with routing(configs, tracer, health_interval_s=60.0) as router:
        await dead.close()
        for number in range(6):
            assert (await router.chat(f"hello {number} " * 300)).status_code == 200
    failed = [span for span in tracer.spans if span.name == names.ATTEMPT]
    assert failed, "one of them was tried where nobody is"
    by_id = {span.span_id: span for span in tracer.spans}
    for attempt in failed:
        assert attempt.attributes[names.REPLICA] == "s0"
        assert attempt.error
        route = by_id[attempt.parent_id or ""]
        assert route.attributes[names.TRIED] == ["s0", "s1"]


async def test_a_request_nobody_can_answer_is_an_error(mirror: Any, tracer: ListTracer) -> None:
    async with routing(mirror_config(mirror), tracer) as router:
        answer = await router.client.post("/v1/chat/completions", json={**BODY, "model": "unknown"})
        assert answer.status_code == 404
    [route] = tracer.spans
    assert "unknown" in route.error


async def test_a_client_that_hangs_up_is_told_of(stubs: Any, tracer: ListTracer) -> None:
    [stub] = await stubs(1, Manner(gap_s=60.0))
    async with routing(replica_configs([stub]), tracer) as router:
        body = {**BODY, "model": "stub", "stream": True}
        async with router.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_bytes())
        await router.until(lambda: bool(tracer.spans))
    [route] = tracer.spans
    assert route.error == "the client disconnected"
    assert route.attributes[names.REPLICA] == "s0"


async def test_what_recording_lost_is_in_the_metrics(mirror: Any) -> None:
    class LossyTracer(ListTracer):
        losses = Losses(num_dropped=3, num_failed=2)

    async with routing(mirror_config(mirror), LossyTracer()) as router:
        page = (await router.client.get("/metrics")).text
    assert "hotloop_trace_dropped_spans_total 3.0" in page
    assert "hotloop_trace_failed_writes_total 2.0" in page


async def test_the_turns_of_a_session_are_one_trace(mirror: Any, tracer: ListTracer) -> None:
    async with routing(mirror_config(mirror), tracer) as router:
        for session in ("one", "one", "two"):
            await router.client.post("/v1/chat/completions", json=BODY, headers={"x-session-id": session})
    first, again, other = tracer.spans
    assert first.trace_id == again.trace_id != other.trace_id


async def test_where_nobody_listens_the_clients_own_trace_goes_on(mirror: Any) -> None:
    async with routing(mirror_config(mirror), None) as router:
        await router.client.post("/v1/chat/completions", json=BODY, headers={"traceparent": PARENT})
    assert mirror.seen[-1]["headers"]["traceparent"] == PARENT


BODY = {"model": "own-name", "messages": [{"role": "user", "content": "Hello"}]}


def mirror_config(mirror: Any) -> Any:
    return (ReplicaConfig(url=mirror.url, name="mirror"),)


def port_of(router: Router) -> str:
    return router.url.rpartition(":")[2]


@asynccontextmanager
async def routing(replicas: Any, tracer: ListTracer | None, **settings: Any) -> AsyncIterator[Router]:
    settings = {"health_interval_s": 0.05, "drain_timeout_s": 5.0, **settings}
    config = RoutingConfig(router=RouterConfig(**settings), replicas=replicas)
    async with running(config, tracer) as router:
        await router.until(lambda: all(each.state == "up" for each in router.replica_set.replicas.values()))
        yield router


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_said_is_recorded_where_it_is_asked_for(stubs: Any, stream: bool) -> None:
    tracer, silent = ListTracer(keeps_content=True), ListTracer()
    for each in (tracer, silent):
        async with routing(replica_configs(await stubs(1)), each) as router:
            answer = await router.chat("my words", stream=stream)
    said = answer.json()["choices"][0]["message"]["content"] if not stream else None
    await until(lambda: bool(tracer.spans))
    [route] = tracer.spans
    assert json.loads(route.attributes[names.CONTENT_REQUEST])["messages"][0]["content"] == "my words"
    assert route.attributes[names.CONTENT_ANSWER]
    assert said in (None, route.attributes[names.CONTENT_ANSWER])
    assert not any(name.startswith(names.CONTENT) for span in silent.spans for name in span.attributes)


def test_an_answer_is_its_words_and_calls_however_it_was_cut() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    deltas = [{"content": "sec"}, {"content": "ret"}, {"tool_calls": [call]}]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    stream = b": ping\n\n" + b"".join(write_data({"id": "x", "choices": [choice]}) for choice in choices)
    assert read_answer("chat", stream) == 'secret\nlook {"a": 1}', "it has not come to its end"
    assert read_answer("completions", b'{"choices": [{"text": "words"}]}') == "words"
    assert read_answer("completions", write_data({"choices": [{"text": "a"}]}) * 2 + b"data: [DONE]\n\n") == "aa"
    assert read_answer("chat", b'{"error": {"message": "no"}}') == ""
    assert read_answer("messages", b"data: \xff\n\n") == ""
