"""An agent behind HTTP, asked by the clients it is there for: openai's, and MCP's."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.loopback import openai_at
from tests.threads import ThreadedServer

from hotloop.agent.agent import Agent
from hotloop.agent.model import Ask
from hotloop.agent.past import decide, read_past
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.service.server import AgentServer
from hotloop.agent.tools.consent import Approval
from hotloop.agent.tools.tool import tool
from hotloop.core.config import AgentServerConfig
from hotloop.http.keys import ApiKeys, Key, Keys
from hotloop.trace.store import StoreTracer


class Desk:
    """A tool that waits until it is let go on."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.is_open = threading.Event()
        self.done: list[str] = []

    def write(self, line: str) -> str:
        self.has_begun.set()
        assert self.is_open.wait(60)
        self.done.append(line)
        return f"wrote {line}"


@tool(read_only=True)
def look(at: str) -> str:
    return f"{at} is there"


@pytest.fixture
def tracer(tmp_path: Path) -> Iterator[StoreTracer]:
    tracer = StoreTracer(tmp_path / "trace.db")
    yield tracer
    tracer.close()


def serve(agent: Agent[Any], keys: Keys | None = None, **settings: Any) -> ThreadedServer:
    config = AgentServerConfig(**{"drain_timeout_s": 5.0, **settings})
    return ThreadedServer(AgentServer(agent, config, keys=ApiKeys(keys or Keys())))


def make(tracer: StoreTracer, script: Any, tools: Any = (look,), **about: Any) -> Agent[Any]:
    return Agent(ScriptedModel(script), tools, "Be brief.", name="helper", tracer=tracer, **about)


GO = [{"role": "user", "content": "go"}]
FILE = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
SCRIPT = [["Let me look. ", ScriptedCall("look", at="home")], "It is there."]


def test_chat_completions_whole(tracer: StoreTracer):
    agent = make(tracer, SCRIPT)
    with serve(agent) as server, openai_at(server.url) as openai_client:
        answer = openai_client.chat.completions.create(model="helper", messages=[{"role": "user", "content": "Where?"}])
        assert [model.id for model in openai_client.models.list()] == ["helper"]
    assert answer.choices[0].message.content == "It is there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage
    assert answer.usage.completion_tokens > 0
    assert answer.model == "helper"


def test_chat_completions_streamed_with_notes_of_the_tools(tracer: StoreTracer):
    with serve(make(tracer, SCRIPT)) as server, openai_at(server.url) as openai_client:
        stream = openai_client.chat.completions.create(
            model="helper", messages=[{"role": "user", "content": "Where?"}], stream=True
        )
        chunks = [*stream]
        assert stream.response.headers["x-hotloop-run"].startswith("run-")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Let me look. \n\nIt is there."
    notes = [chunk.model_extra["hotloop"] for chunk in chunks if "hotloop" in (chunk.model_extra or {})]
    assert [note["event"] for note in notes] == ["turn_started", "call_dispatched", "call_finished", "turn_started"]
    assert notes[1]["name"] == "look"
    assert "home" not in json.dumps(notes), "what was said to tools stays here"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_responses_whole_and_streamed(tracer: StoreTracer):
    with serve(make(tracer, SCRIPT)) as server, openai_at(server.url) as openai_client:
        whole = openai_client.responses.create(model="helper", input="Where?")
        with openai_client.responses.stream(model="helper", input="Where?") as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
    assert whole.output_text == "It is there."
    assert final.output_text == "Let me look. \n\nIt is there."
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert kinds.count("response.in_progress") == 5


def test_the_conversation_is_the_clients(tracer: StoreTracer):
    asks: list[Ask] = []

    def answer(ask: Ask) -> str:
        asks.append(ask)
        return "Yes."

    said = [
        {"role": "system", "content": "Speak French."},
        {"role": "user", "content": "Is it?"},
        {"role": "assistant", "content": "It was."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Now?"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            ],
        },
    ]
    with serve(make(tracer, answer)) as server:
        got = httpx.post(
            f"{server.url}/v1/chat/completions",
            verify=False,
            json={"messages": said},
            headers={"x-session-id": "s-1"},
        )
    assert got.json()["choices"][0]["message"]["content"] == "Yes."
    [ask] = asks
    assert [(m.role, m.content) for m in ask.messages] == [
        ("system", "Be brief."),
        ("system", "Speak French."),
        ("user", "Is it?"),
        ("assistant", "It was."),
        ("user", "Now?"),
    ]
    assert ask.messages[-1].attachments[0].url == "https://example.org/a.png"
    assert ask.session_id == "s-1"


def test_an_answer_of_a_type_is_json(tracer: StoreTracer):
    agent = make(tracer, [ScriptedCall("final_answer", value=[1, 2])], output=list[int])
    with serve(agent) as server, openai_at(server.url) as openai_client:
        messages: Any = [{"role": "user", "content": "Count."}]
        whole = openai_client.chat.completions.create(model="helper", messages=messages)
        chunks = [*openai_client.chat.completions.create(model="helper", messages=messages, stream=True)]
    assert whole.choices[0].message.content == "[1,2]"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "[1,2]"


async def test_mcp_runs_it_as_a_tool(tracer: StoreTracer):
    told: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    with serve(make(tracer, SCRIPT)) as server:
        async with Client(streamable_http_client(f"{server.url}/mcp")) as mcp:
            [offered] = (await mcp.list_tools()).tools
            assert offered.name == "run"
            plain = await mcp.call_tool("run", {"prompt": "Where?"})
            watched = await mcp.call_tool("run", {"prompt": "Where?"}, progress_callback=hear)
            assert [each.content[0].text for each in (plain, watched)] == ["It is there."] * 2  # type: ignore[union-attr]
            with pytest.raises(Exception, match="prompt"):
                await mcp.call_tool("run", {"question": "Where?"})
    assert any(message and message.startswith("call_dispatched") for message in told)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"messages": []}, 400, "at least one message"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "the last turn must be the user's"),
        ({"messages": GO, "tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "the agent runs its own"),
        ({"messages": GO, "n": 2}, 400, "one answer at a time"),
        ({"messages": GO, "response_format": {"type": "json_object"}}, 400, "response_format: not accepted"),
        ([], 400, "must be a JSON object"),
        ({"messages": [{"role": "user", "content": [FILE]}]}, 400, "data URL"),
    ],
)  # fmt: skip
def test_what_it_cannot_be_asked(tracer: StoreTracer, body: Any, status: int, words: str):
    with serve(make(tracer, SCRIPT), max_body="64KiB") as server:
        got = httpx.post(f"{server.url}/v1/chat/completions", verify=False, json=body)
        assert (got.status_code, words in got.json()["error"]["message"]) == (status, True), got.text
        assert httpx.post(f"{server.url}/v1/chat/completions", verify=False, content=b"x").status_code == 415
        long = {"messages": [{"role": "user", "content": "x" * 70_000}]}
        assert httpx.post(f"{server.url}/v1/chat/completions", verify=False, json=long).status_code == 413
        assert httpx.get(f"{server.url}/health", verify=False).status_code == 200
        assert httpx.get(f"{server.url}/nothing", verify=False).status_code == 404


def test_a_call_that_waits_for_approval_is_gone_on_with_by_its_run(tracer: StoreTracer):
    desk = Desk()
    desk.is_open.set()
    script = [ScriptedCall("write", line="a"), "It is written."]
    agent = make(tracer, script, [tool(needs_approval=True)(desk.write)], approve=lambda call: Approval.later())
    with serve(agent) as server:
        url, body = f"{server.url}/v1/chat/completions", {"messages": [{"role": "user", "content": "Write."}]}
        waits = httpx.post(url, verify=False, json=body)
        assert waits.status_code == 409
        assert "hotloop runs approve" in waits.json()["error"]["message"]
        run = waits.headers["x-hotloop-run"]
        past = read_past(*tracer.journal.read(run).result())
        assert past.open
        [call] = past.open.calls
        asyncio.run(decide(tracer.journal, run, call, True))
        done = httpx.post(url, verify=False, json=body, headers={"x-hotloop-run": run})
        assert done.json()["choices"][0]["message"]["content"] == "It is written."
        assert done.headers["x-hotloop-run"] == run
        for name in (run, run[:8], "run-nobody"):
            assert httpx.post(url, verify=False, json=body, headers={"x-hotloop-run": name}).status_code == 404
    assert desk.done == ["a"]


def test_a_client_that_leaves_lets_effects_finish_and_may_come_back(tracer: StoreTracer):
    desk = Desk()
    agent = make(tracer, [ScriptedCall("write", line="a"), "It is written."], [tool(desk.write)])
    with serve(agent) as server:
        url, body = f"{server.url}/v1/chat/completions", {"messages": [{"role": "user", "content": "Write."}]}
        with httpx.stream("POST", url, verify=False, json=body | {"stream": True}) as response:
            run = response.headers["x-hotloop-run"]
            assert desk.has_begun.wait(60)
        state = _state(tracer, run)
        desk.is_open.set()
        while state == "running":
            state = _state(tracer, run)
        assert (state, desk.done) == ("cancelled", ["a"])
        done = httpx.post(url, verify=False, json=body, headers={"x-hotloop-run": run})
        assert done.json()["choices"][0]["message"]["content"] == "It is written."
    assert desk.done == ["a"]


def _state(tracer: StoreTracer, run: str) -> str:
    return tracer.journal.read(run).result()[0].state


def test_a_server_that_stops_pauses_its_runs_for_the_next_one(tracer: StoreTracer):
    desk = Desk()
    body = {"messages": [{"role": "user", "content": "Write."}]}
    script = [ScriptedCall("write", line="a"), ScriptedCall("write", line="b"), "Both."]
    http = AgentServer(make(tracer, script, [tool(desk.write)]), AgentServerConfig(drain_timeout_s=30.0))
    with ThreadedServer(http) as server:
        answers: list[httpx.Response] = []
        url = f"{server.url}/v1/chat/completions"
        asking = threading.Thread(target=lambda: answers.append(httpx.post(url, verify=False, json=body, timeout=60)))
        asking.start()
        assert desk.has_begun.wait(60)
        http.stop()
        while not http.app.running.is_closing:
            assert asking.is_alive()
        desk.is_open.set()
        asking.join(60)
        [paused] = answers
    assert paused.status_code == 503
    assert "was paused" in paused.json()["error"]["message"]
    run = paused.headers["x-hotloop-run"]
    with serve(make(tracer, script, [tool(desk.write)])) as server:
        done = httpx.post(f"{server.url}/v1/chat/completions", verify=False, json=body, headers={"x-hotloop-run": run})
    assert done.json()["choices"][0]["message"]["content"] == "Both."
    assert desk.done == ["a", "b"]


def test_keys_and_tenants(tracer: StoreTracer):
    """A run is gone on with by its own tenant alone."""
    keys = Keys((Key(b"one"), Key(b"two")))
    script, writer = [ScriptedCall("write", line="a"), "ok"], tool(needs_approval=True)(Desk().write)
    body, ping = {"messages": [{"role": "user", "content": "go"}]}, {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    with serve(make(tracer, script, [writer], approve=lambda call: Approval.later()), keys) as server:
        url = f"{server.url}/v1/chat/completions"
        assert httpx.post(url, verify=False, json=body).status_code == 401
        assert httpx.get(f"{server.url}/v1/models", verify=False).status_code == 401
        assert httpx.post(f"{server.url}/mcp", verify=False, json=ping).status_code == 401
        assert httpx.post(f"{server.url}/mcp", verify=False, json=ping, headers=two).json()["result"] == {}
        run = httpx.post(url, verify=False, json=body, headers=one).headers["x-hotloop-run"]
        assert httpx.post(url, verify=False, json=body, headers=two | {"x-hotloop-run": run}).status_code == 404
        assert httpx.post(url, verify=False, json=body, headers=one | {"x-hotloop-run": run}).status_code == 409


def test_more_runs_than_there_may_be(tracer: StoreTracer):
    desk = Desk()
    agent = make(tracer, [ScriptedCall("write", line="a"), "ok"], [tool(desk.write)])
    body = {"messages": [{"role": "user", "content": "go"}]}
    with serve(agent, max_runs=1) as server:
        url = f"{server.url}/v1/chat/completions"
        first = threading.Thread(target=lambda: httpx.post(url, verify=False, json=body, timeout=60))
        first.start()
        assert desk.has_begun.wait(60)
        refused = httpx.post(url, verify=False, json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        desk.is_open.set()
        first.join(60)
        assert httpx.post(url, verify=False, json=body).status_code == 200


def scrape(url: str, key: str = "none") -> str:
    response = httpx.get(f"{url}/metrics", verify=False, headers={"authorization": f"Bearer {key}"})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return response.text


def test_what_is_measured_is_documented(tracer: StoreTracer):
    with serve(make(tracer, SCRIPT)) as server:
        exported = re.findall(r"^# HELP (\w+)", scrape(server.url), re.MULTILINE)
    page = (Path(__file__).parents[3] / "docs" / "agents.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`hotloop_.*?) \|", page, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(exported)


def test_runs_are_measured(tracer: StoreTracer):
    inner = Agent(ScriptedModel([ScriptedCall("look", at="sea"), "Blue."]), [look], name="inner", tracer=tracer)
    ask = [ScriptedCall("look", at="home"), ScriptedCall("made_up", x=1), ScriptedCall("ask", prompt="Sea?")]
    agent = make(tracer, [ask, "It is there."], tools=(look, inner.as_tool("ask", "Knows the sea.")))
    with serve(agent) as server, openai_at(server.url) as openai_client:
        openai_client.chat.completions.create(model="helper", messages=GO)
        with pytest.raises(openai.BadRequestError):
            openai_client.chat.completions.create(model="helper", messages=[])
        lines = dict(line.rsplit(" ", 1) for line in scrape(server.url).splitlines() if not line.startswith("#"))
    measured = {name.removeprefix("hotloop_agent_"): float(value) for name, value in lines.items()}
    assert measured["runs_begun_total"] == measured['runs_ended_total{end="done"}'] == 1
    assert measured["runs_running"] == 0
    assert measured["run_seconds_count"] == 1
    assert measured["turns_total"] == measured["time_to_first_token_seconds_count"] == 4
    assert measured['calls_total{outcome="ok",tool="look"}'] == 2
    assert measured['calls_total{outcome="error",tool=""}'] == 1, "a name that a model made up is no label"
    assert measured['calls_total{outcome="ok",tool="ask"}'] == 1
    assert measured['tokens_total{kind="output"}'] > 0
    assert measured['http_errors_total{status="400"}'] == 1


def test_a_tenant_does_not_see_what_is_measured(tracer: StoreTracer):
    keys = Keys((Key(b"one"), Key(b"two"), Key(b"seen", "metrics")))
    with serve(make(tracer, SCRIPT), keys) as server:
        assert (
            httpx.get(f"{server.url}/metrics", verify=False, headers={"authorization": "Bearer one"}).status_code == 403
        )
        assert (
            httpx.get(f"{server.url}/v1/models", verify=False, headers={"authorization": "Bearer seen"}).status_code
            == 403
        )
        assert "hotloop_agent_runs_begun_total 0.0" in scrape(server.url, "seen")
