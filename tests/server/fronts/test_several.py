"""Several fronts of one engine: whichever of them is asked, it knows what the others have said."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.loopback import http_at
from tests.server.asking import ENDLESS
from tests.server.calls import TOOLS as CHAT_TOOLS
from tests.server.calls import write_call
from tests.server.serving import HELLO, MODEL, Serving, check_error, until
from tests.server.test_late_tools import SCRIPT as SEARCHES
from tests.server.test_late_tools import TARGET, Chat, run_search_session

from hotloop.core.config import ServerConfig
from hotloop.core.request import Priority
from hotloop.server.service import Service
from hotloop.trace.tracer import ListTracer

CALL = write_call("weather", city="Rome", days=1)


class Apart:
    """A client for each front, and one that goes to another front with every request."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.fronts = [http_at(url) for url in serving.urls]
        self._num_asked = 0
        self.in_turn = httpx.Client(
            base_url=serving.url, timeout=60, verify=False, event_hooks={"request": [self._turn]}
        )

    def _turn(self, request: httpx.Request) -> None:
        self._num_asked += 1
        url = httpx.URL(self.serving.urls[self._num_asked % len(self.fronts)])
        request.url = request.url.copy_with(host=url.host, port=url.port)

    def services(self) -> list[Service]:
        apps: list[Any] = [server.config.app for server in self.serving.servers]
        while not hasattr(apps[0], "state"):
            apps = [getattr(app, "app", None) or app._app for app in apps]
        return [app.state.service for app in apps]


@pytest.fixture
def apart() -> Iterator[Apart]:
    with Serving(num_fronts=3) as serving:
        yield Apart(serving)


def saying(*script: str, **fields: Any) -> Serving:
    return Serving(script=script, num_fronts=2, num_blocks=16_384, **fields)


def create(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/responses", json={"model": MODEL, "input": "hello", "max_output_tokens": 2, **fields})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_a_chain_of_responses_goes_on_at_any_front_and_each_can_be_looked_at_and_deleted(apart: Apart) -> None:
    a, b, c = apart.fronts
    first = create(a)
    second = create(b, previous_response_id=first["id"])
    assert [http.get(f"/v1/responses/{second['id']}").json() for http in (a, c)] == [second] * 2
    listed = c.get(f"/v1/responses/{second['id']}/input_items", params={"order": "asc"}).json()["data"]
    assert [item["role"] for item in listed] == ["user", "assistant", "user"]
    create(c, input=[{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "again"}])
    assert c.delete(f"/v1/responses/{first['id']}").json()["deleted"]
    for http in apart.fronts:
        check_error(http.get(f"/v1/responses/{first['id']}"), 404)
        check_error(http.delete(f"/v1/responses/{first['id']}"), 404)


def test_a_response_that_is_still_written_is_looked_at_followed_and_cancelled_at_another_front(apart: Apart) -> None:
    a, b, c = apart.fronts
    with a.stream(
        "POST", "/v1/responses", json={"input": "hello", **ENDLESS, "background": True, "stream": True}
    ) as stream:
        lines = stream.iter_lines()
        made = json.loads(next(line for line in lines if line.startswith("data: "))[6:])["response"]
        where = f"/v1/responses/{made['id']}"
        assert b.get(where).json()["status"] in ("queued", "in_progress")
        with c.stream("GET", where, params={"stream": "true"}) as followed:
            others = followed.iter_lines()
            next(others)
            assert b.post(f"{where}/cancel").json()["status"] == "cancelled"
            ends = [[line for line in each if line.startswith("data: ")][-1] for each in (lines, others)]
    assert ends[0] == ends[1]
    assert {http.get(where).json()["status"] for http in apart.fronts} == {"cancelled"}
    with c.stream("GET", where, params={"stream": "true"}) as again:
        assert [line for line in again.iter_lines() if line.startswith("data: ")][-1] == ends[0]


def test_only_its_owner_finds_a_response_at_another_front() -> None:
    config = ServerConfig(port=0, api_key="one", api_key_file=None)
    with Serving(config, num_fronts=2) as serving:
        a, b = Apart(serving).fronts
        body = {"model": MODEL, "input": "hello", "max_output_tokens": 2}
        made = a.post("/v1/responses", json=body, headers={"authorization": "Bearer one"}).json()
        assert b.get(f"/v1/responses/{made['id']}", headers={"authorization": "Bearer one"}).status_code == 200
        check_error(b.get(f"/v1/responses/{made['id']}", headers={"authorization": "Bearer two"}), 401)
        check_error(b.get(f"/v1/cache/explain/{made['id']}"), 401)


def test_an_answer_is_explained_at_any_front_and_compared_with_what_another_has_prefilled(apart: Apart) -> None:
    a, b, c = apart.fronts
    question: Any = [{"role": "user", "content": "Which of them is the oldest? " * 20}]
    body = {"messages": question, "max_tokens": 4}
    first = a.post("/v1/chat/completions", json=body).json()
    question[0]["content"] = "Tell me. " + question[0]["content"]
    second = b.post("/v1/chat/completions", json=body).json()
    told = c.get(f"/v1/cache/explain/{second['id']}").json()
    assert told == b.get(f"/v1/cache/explain/{second['id']}").json()
    assert told["compared_with"] == first["id"]
    before = counted(apart.in_turn, "hotloop_http_errors_total")
    check_error(a.get("/v1/cache/explain/nobody"), 404)
    assert counted(apart.in_turn, "hotloop_http_errors_total") == before + 1


@pytest.mark.parametrize("declares_all", [False, True])
@pytest.mark.long
def test_a_session_with_deferred_tools_finds_its_prefix_whichever_front_it_asks(declares_all: bool) -> None:
    with saying(*SEARCHES) as serving:
        turns = run_search_session(Apart(serving).in_turn, declares_all=declares_all)
    assert min(turns.shares) >= TARGET, turns.counts


def test_tools_that_appear_are_told_of_where_they_came_whichever_front_is_asked() -> None:
    with saying("One.", "Two.", "Three.") as serving:
        turns = Chat(Apart(serving).in_turn)
        tools = [turns.tool(f"tool_{i}") for i in range(4)]
        turns.ask([{"role": "user", "content": "a"}], tools[:3])
        turns.ask([{"role": "user", "content": "b"}], tools)
        turns.ask([{"role": "user", "content": "c"}], tools)
    for (before, _), (_, cached) in pairwise(turns.counts):
        assert cached >= before - 16, turns.counts


def test_a_call_comes_back_as_it_was_written_and_its_tool_is_learnt_at_every_front() -> None:
    pretty = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 1}}\n</tool_call>'
    with saying(pretty, "Rain.") as serving:
        apart = Apart(serving)
        messages: list[Any] = [*HELLO]
        for http in apart.fronts:
            body = {"messages": messages, "tools": CHAT_TOOLS, "max_tokens": 200, "session_id": "s", "temperature": 0}
            answer = http.post("/v1/chat/completions", json=body).json()
            said = answer["choices"][0]["message"]
            for call in said.get("tool_calls") or ():
                arguments = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
                call["function"]["arguments"] = arguments
                messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]
        usage = answer["usage"]
        gaps = [service.retention_hints.gaps for service in apart.services()]
        until(lambda: all(not each._open and len(each._recent.get("weather", ())) == 1 for each in gaps))
    assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 80


def test_a_time_of_day_that_changes_stays_where_it_was_whichever_front_is_asked() -> None:
    with saying("One.", "Two.", "Three.", "Four.") as serving:
        http, messages, counts = Apart(serving).in_turn, list[Any](), []
        for i in range(4):
            messages.append({"role": "user", "content": f"Question {i}? " + "Please. " * 40})
            system = {"role": "system", "content": f"Be brief.\nCurrent date and time: Tuesday, 03:0{i}:20 PM\n"}
            answer = http.post("/v1/chat/completions", json={"messages": [system, *messages], "max_tokens": 20}).json()
            messages.append(answer["choices"][0]["message"])
            counts.append((answer["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]))
    (before, _), (_, cached) = counts[-2:]
    assert cached >= before - 16, counts


def counted(http: httpx.Client, name: str) -> float:
    families = text_string_to_metric_families(http.get("/metrics").text)
    return sum(each.value for family in families for each in family.samples if each.name == name)


def test_one_page_of_metrics_for_all_of_them_and_for_one_that_is_gone(apart: Apart) -> None:
    for http in apart.fronts:
        http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 4})
    for http in apart.fronts:
        assert counted(http, "hotloop_requests_total") == 3
        assert counted(http, "hotloop_request_seconds_count") == 3
        names = [line for line in http.get("/metrics").text.splitlines() if line.startswith("# TYPE")]
        assert len(names) == len({*names})
    apart.serving.servers[0].stop()
    until(lambda: len(apart.serving.hub.hosts) == 2)
    assert counted(apart.fronts[1], "hotloop_requests_total") == 3


def test_a_session_is_one_trace_and_is_closed_whichever_front_is_asked() -> None:
    tracer = ListTracer()
    with Serving(num_fronts=2, tracer=tracer) as serving:
        http = Apart(serving).in_turn
        for _ in range(4):
            http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 4, "session_id": "one"})
        assert http.post("/v1/sessions/one/close").json()["freed_blocks"] > 0
    assert len({span.trace_id for span in tracer.spans}) == 1
    assert len([span for span in tracer.spans if span.name == "request"]) == 4


def test_what_one_front_cannot_tell_the_others_is_no_error(apart: Apart) -> None:
    huge = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 10**30}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": huge}}]
    for http in apart.fronts:
        body = {"messages": HELLO, "tools": tools, "max_tokens": 4}
        assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_many_at_once_are_all_answered_and_nothing_is_left(apart: Apart) -> None:
    def ask(i: int) -> int:
        body = {"messages": [{"role": "user", "content": f"{i} " * 50}], "max_tokens": 20, "priority": i % 3}
        return apart.fronts[i % 3].post("/v1/chat/completions", json=body).status_code

    assert len(Priority) == 3
    with ThreadPoolExecutor(12) as pool:
        assert {*pool.map(ask, range(60))} <= {200}
    engine = apart.serving.engine
    until(lambda: not engine.stats().num_running and not engine.stats().num_blocks_used)
    until(lambda: not apart.serving.num_hosted)


@pytest.mark.parametrize("path", [b"%ff", b"..%2f..%2fready", b"\xff\xfe", b"a b", b"x?" + b"x" * 9000, b"%00"])
def test_whatever_id_is_asked_for_is_unknown_or_refused(apart: Apart, path: bytes) -> None:
    for where in (b"/v1/responses/", b"/v1/cache/explain/"):
        with socket.create_connection(("127.0.0.1", apart.fronts[0].base_url.port or 0), timeout=60) as connected:
            connected.sendall(
                b"GET " + where + path + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            )
            assert connected.recv(12).split()[1] in (b"400", b"404", b"405")
