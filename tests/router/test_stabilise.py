"""What replicas are sent with `--stabilise`, and what is told of it."""

import asyncio
import json
from typing import Any

import pytest
from tests.router.conftest import Mirror

from hotloop.router.config import ReplicaConfig
from hotloop.router.request import parse_request
from hotloop.router.stabilise import StablePrompts
from hotloop.wire.usage import ApiUsage

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("b", "a")]


def talk(number: int, *, words: int = 900) -> dict[str, Any]:
    """A conversation whose system text tells the time, after so many answers."""
    system = f"Current time: 10:{number:02d}\n" + "Be kind. " * words
    said = [{"role": role, "content": f"{role} {i}"} for i in range(number) for role in ("user", "assistant")]
    newest = {"role": "user", "content": f"user {number}"}
    tools = TOOLS[:: -1 if number % 2 else 1]
    return {"model": "own-name", "messages": [{"role": "system", "content": system}, *said, newest], "tools": tools}


async def put(router: Any, body: dict[str, Any]) -> Any:
    response = await router.client.post(CHAT, json=body, headers={"x-session-id": "s"})
    assert response.status_code == 200, response.text
    return response


async def test_every_replica_is_sent_what_begins_as_before(mirror: Mirror, route: Any) -> None:
    router = await route((ReplicaConfig(url=mirror.url, name="r", kind="vllm"),), stabilise=True)
    for number in range(4):
        response = await put(router, talk(number))
    sent = [json.loads(each["raw"]) for each in mirror.seen]
    assert len({json.dumps(body["tools"]) for body in sent}) == 1
    heads = {body["messages"][0]["content"] for body in sent[1:]}
    assert len(heads) == 1
    assert "10:03" in sent[3]["messages"][-1]["content"]
    assert sent[3]["messages"][1 : len(sent[2]["messages"])] == sent[2]["messages"][1:]
    told = response.headers["x-hotloop-stabilised"]
    assert told.startswith("saved=")
    assert int(told.partition(";")[0].removeprefix("saved=")) > 1000
    assert "the time of day was moved behind the newest message" in told
    route_told = response.headers["x-hotloop-route"]
    matched, total = route_told.partition("matched=")[2].partition(";")[0].split("/")
    assert int(matched) > 0.9 * int(total), "it is placed by what is sent"
    page = (await router.client.get("/metrics")).text
    assert 'hotloop_router_stabilised_total{change="tools"}' in page
    assert "hotloop_router_stabilised_tokens_total" in page


async def test_what_is_saved_is_told_in_money_where_there_is_a_price() -> None:
    def cost(model: str, usage: ApiUsage) -> float:
        assert model == "own-name"
        return (usage.num_prompt - 0.9 * (usage.num_cached or 0)) / 1e6

    stable = StablePrompts(cost)
    for number in range(3):
        done = await stable.apply(parse_request(CHAT, {"x-session-id": "s"}, json.dumps(talk(number)).encode()), ())
    assert done.num_saved > 1000
    assert done.money_saved == pytest.approx(0.9 * done.num_saved / 1e6)
    assert f"; money={done.money_saved:.6f}; " in done.render().decode()
    assert stable.money_saved == pytest.approx(0.9 * stable.num_saved / 1e6)
    done = await StablePrompts().apply(parse_request(CHAT, {}, json.dumps(talk(1)).encode()), ())
    assert b"money" not in done.render()


@pytest.mark.parametrize(("num_words", "is_aside"), [(10, False), (20_000, True)])
async def test_a_large_body_is_rewritten_beside_the_event_loop(num_words: int, is_aside: bool) -> None:
    request = parse_request(CHAT, {}, json.dumps(talk(0, words=num_words)).encode())
    doing = asyncio.create_task(StablePrompts().apply(request, ()))
    await asyncio.sleep(0)  # one turn of the loop: enough for what is done on it, and too few to hear of a thread
    assert doing.done() is not is_aside
    assert "tools: put into one order" in (await doing).changes


async def test_without_it_bodies_pass_byte_for_byte(mirror: Mirror, route: Any) -> None:
    router = await route((ReplicaConfig(url=mirror.url, name="r", kind="vllm"),))
    response = await put(router, talk(1))
    assert "x-hotloop-stabilised" not in response.headers
    assert json.loads(mirror.seen[0]["raw"]) == talk(1)


async def test_arguments_are_learnt_from_answers_that_go_by(mirror: Mirror, route: Any) -> None:
    call = {"id": "call_5", "type": "function", "function": {"name": "a", "arguments": '{"x":1,  "y":2}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    mirror.reply = (
        200,
        {"id": "1", "model": "own-name", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]},
    )
    router = await route((ReplicaConfig(url=mirror.url, name="r", kind="vllm"),), stabilise=True)
    await put(router, talk(0, words=1))
    rewritten = {**call, "function": {"name": "a", "arguments": '{"x": 1, "y": 2}'}}
    body = talk(0, words=1)
    body["messages"] += [
        {**message, "tool_calls": [rewritten]},
        {"role": "tool", "tool_call_id": "call_5", "content": "3"},
    ]
    await put(router, body)
    sent = json.loads(mirror.seen[-1]["raw"])
    assert sent["messages"][2]["tool_calls"] == [call]


async def test_hosted_apis_get_marks_and_keys(mirror: Mirror, route: Any) -> None:
    mirror.reply = 200, {"id": "1", "type": "message", "content": [], "model": "own-name", "stop_reason": "end_turn"}
    router = await route((ReplicaConfig(url=mirror.url, name="r", kind="anthropic"),), stabilise=True)
    body = {"model": "own-name", "max_tokens": 5, "system": "Help.", "messages": [{"role": "user", "content": "hi"}]}
    await router.client.post("/v1/messages", json=body)
    sent = json.loads(mirror.seen[-1]["raw"])
    assert sent["system"][0]["cache_control"] == sent["messages"][0]["content"][0]["cache_control"]
    router = await route((ReplicaConfig(url=mirror.url, name="r", kind="openai"),), stabilise=True)
    await put(router, talk(0, words=1))
    assert json.loads(mirror.seen[-1]["raw"])["prompt_cache_key"].startswith("hotloop-")


def call_body(names: str, said: int, **more: Any) -> dict[str, Any]:
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    turns = [{"role": role, "content": f"{role} {i}"} for i in range(said) for role in ("user", "assistant")]
    messages = [*turns, {"role": "user", "content": f"user {said}"}]
    return {"model": "own-name", "max_tokens": 5, "messages": messages, "tools": tools, **more}


@pytest.mark.parametrize(
    ("kinds", "is_told"),
    [(("vllm",), True), (("vllm", "vllm"), True), (("vllm", "sglang"), False), (("sglang",), False)],
)
async def test_late_tools_are_told_where_every_replica_can_be_told(
    mirror: Mirror, route: Any, kinds: tuple[Any, ...], is_told: bool
) -> None:
    replicas = tuple(ReplicaConfig(url=mirror.url, name=f"r{i}", kind=kind) for i, kind in enumerate(kinds))
    router = await route(replicas, stabilise=True, tell_late_tools=True)
    for number, names in enumerate(("a", "a", "ab")):
        body = talk(number, words=1) | {"tools": [{"type": "function", "function": {"name": name}} for name in names]}
        response = await put(router, body)
    sent = json.loads(mirror.seen[-1]["raw"])
    assert len(sent["tools"]) == (1 if is_told else 2)
    assert ("can also call" in sent["messages"][-1]["content"]) is is_told
    assert ("described after the history" in response.headers["x-hotloop-stabilised"]) is is_told


async def test_anthropic_is_told_of_late_tools_with_the_betas_that_takes(mirror: Mirror, route: Any) -> None:
    mirror.reply = 200, {"id": "1", "type": "message", "content": [], "model": "own-name", "stop_reason": "end_turn"}
    router = await route(
        (ReplicaConfig(url=mirror.url, name="r", kind="anthropic"),), stabilise=True, tell_late_tools=True
    )
    for number, names in enumerate(("a", "ab", "ab")):
        choice = {"tool_choice": {"type": "any"}} if number == 2 else {}
        body = call_body(names, number, **choice)
        response = await router.client.post("/v1/messages", json=body, headers={"anthropic-beta": "mine"})
        assert response.status_code == 200
    sent = [json.loads(each["raw"]) for each in mirror.seen]
    betas = [each["headers"]["anthropic-beta"] for each in mirror.seen]
    assert [len(body["tools"]) for body in sent] == [1, 1, 2], "one of the list has to be called"
    assert sent[1]["messages"][-1]["content"][0]["type"] == "tool_addition"
    assert betas == ["mine", "mine,mid-conversation-tool-changes-2026-07-01,inline-tools-2026-09-15", "mine"]


async def test_the_session_stays_the_same() -> None:
    raw = json.dumps({**talk(1), "session_id": "mine"}).encode()
    request = parse_request(CHAT, {}, raw)
    assert (await StablePrompts().apply(request, ())).request.session == "mine"


async def test_a_body_that_cannot_be_read_is_refused_and_a_strange_one_left_alone(mirror: Mirror, route: Any) -> None:
    router = await route((ReplicaConfig(url=mirror.url, name="r", kind="vllm"),), stabilise=True)
    deep = b'{"model": "own-name", "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    response = await router.client.post(CHAT, content=deep, headers={"content-type": "application/json"})
    assert response.status_code == 400
    await put(router, {"model": "own-name", "messages": [1, {"role": "user"}], "tools": [3]})
