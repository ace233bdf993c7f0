"""Thoughts, named items and compactions through a router: to replicas that know them, and translated for others."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.chat.reasoning_templates import thinking_template
from tests.router.conftest import Page, Router
from tests.server.asking import function
from tests.server.calls import WEATHER
from tests.server.serving import MODEL, Routing, Serving, check_error, http_at
from tests.server.test_responses_compact import SCRIPT as COMPACTED
from tests.server.test_responses_compact import SUMMARY
from tests.server.test_responses_reasoning import HELLO, NAMED, SCRIPT, THOUGHT, check_exact

from hotloop.router.config import ReplicaConfig
from hotloop.router.request import parse_request
from hotloop.wire.field import Json
from hotloop.wire.part import unseal_text

TOOLS = [function("weather", WEATHER)]
ROOM: Json = {"model": MODEL, "tools": TOOLS, "max_output_tokens": 900}
RESPONSES, COMPACT = "/v1/responses", "/v1/responses/compact"


def serve(script: list[str] = SCRIPT) -> Serving:
    return Serving(script=script, template=thinking_template())


@pytest.fixture
def thinker() -> Iterator[Serving]:
    with serve() as serving:
        yield serving


def only(serving: Serving, *apis: Any, **fields: Any) -> tuple[ReplicaConfig]:
    return (ReplicaConfig(url=serving.url, name="r", kind="hotloop", apis=frozenset(apis), **fields),)


async def respond(router: Router, **fields: Any) -> Json:
    answer = await router.client.post(RESPONSES, json={**ROOM, **fields})
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return answer.json()
    *_, last = answer.text.strip().split("\n")
    return json.loads(last.removeprefix("data: "))["response"]


def result_of(response: Json) -> Json:
    return {"type": "function_call_output", "call_id": response["output"][-1]["call_id"], "output": "ok"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", NAMED.values(), ids=NAMED)
async def test_items_of_translated_answers_are_found_by_their_names(
    thinker: Serving, route: Any, name: Any, is_stream: bool
) -> None:
    """The replica knows chats only, and no items: the router does."""
    router = await route(only(thinker, "chat"))
    first = await respond(router, input=[HELLO], stream=is_stream)
    named = [name(item) for item in first["output"]]
    check_exact(first, await respond(router, input=[HELLO, *named, result_of(first)]))


async def test_a_signed_thought_is_found_by_its_id(thinker: Serving, route: Any) -> None:
    """What a messages API has signed is no use without the text, which some clients do not keep."""
    router = await route(only(thinker, "messages"))
    first = await respond(router, input=[HELLO])
    thought, call = first["output"]
    named = {name: thought[name] for name in ("type", "id", "summary", "encrypted_content")}
    check_exact(first, await respond(router, input=[HELLO, named, call, result_of(first)]))


async def test_items_of_translated_answers_that_are_not_there(thinker: Serving, route: Any) -> None:
    router = await route(only(thinker, "chat"))
    first = await respond(router, input=[HELLO], store=False)
    given = {"type": "item_reference", "id": first["output"][-1]["id"]}
    answer = await router.client.post(RESPONSES, json={**ROOM, "input": [HELLO, given]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "item_not_found")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("apis", [("chat",), ("messages",)])
@pytest.mark.parametrize("returned", [("content", "summary", "encrypted_content"), ("id", "encrypted_content")])
@pytest.mark.parametrize("fields", [{}, {"reasoning": {"summary": "auto"}}], ids=str)
async def test_a_translated_loop_that_stores_nothing_is_exact(
    thinker: Serving, route: Any, apis: Any, returned: tuple[str, ...], fields: Json
) -> None:
    router = await route(only(thinker, *apis))
    first = await respond(router, input=[HELLO], store=False, **fields)
    thought, call = first["output"]
    texts = thought["summary"] if fields else thought["content"]
    assert [part["text"] for part in texts] == [THOUGHT]
    assert thought["encrypted_content"]
    kept = {"type": "reasoning", **{name: thought[name] for name in returned if name in thought}}
    second = await respond(router, input=[HELLO, kept, call, result_of(first)], store=False, **fields)
    check_exact(first, second)


async def test_a_summary_that_is_none_is_noted(thinker: Serving, route: Any) -> None:
    router = await route(only(thinker, "chat"))
    answer = await router.client.post(RESPONSES, json={**ROOM, "input": "hello", "reasoning": {"summary": "auto"}})
    assert "reasoning.summary: it is the reasoning itself" in answer.headers["x-hotloop-notes"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_translated_thought_that_is_not_shown_comes_back(thinker: Serving, route: Any, is_stream: bool) -> None:
    router = await route(only(thinker, "chat"))
    asked: Json = {"model": MODEL, "max_tokens": 900, "tools": [{"name": "weather", "input_schema": WEATHER}]}
    asked |= {"thinking": {"type": "adaptive", "display": "omitted"}}
    first = (await router.client.post("/v1/messages", json={**asked, "messages": [HELLO]})).json()
    thought, call = first["content"]
    assert (thought["thinking"], unseal_text(thought["signature"])) == ("", THOUGHT)
    if is_stream:
        told = await router.client.post("/v1/messages", json={**asked, "messages": [HELLO], "stream": True})
        assert "thinking_delta" not in told.text
        assert thought["signature"] in told.text
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "ok"}
    messages = [HELLO, {"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]
    second = (await router.client.post("/v1/messages", json={**asked, "messages": messages})).json()
    num_first = first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    assert second["usage"]["cache_read_input_tokens"] >= num_first - 32


@pytest.mark.sampled(2)
@pytest.mark.parametrize("apis", [(), ("responses",), ("chat",), ("messages",)])
async def test_a_conversation_is_made_shorter(route: Any, apis: Any) -> None:
    with serve(COMPACTED) as serving:
        router = await route(only(serving, *apis))
        first = await respond(router, input=[HELLO], store=False)
        given = [HELLO, *first["output"], result_of(first)]
        made = (await router.client.post(COMPACT, json={"model": MODEL, "input": given, "tools": TOOLS})).json()
        said, compaction = made["output"]
        assert (made["object"], said["content"][0]["text"]) == ("response.compaction", "hello")
        assert unseal_text(compaction["encrypted_content"]) == SUMMARY
        assert made["usage"]["input_tokens"] > first["usage"]["total_tokens"]
        again = [*made["output"], {"role": "user", "content": "So?"}]
        assert (await respond(router, input=again))["status"] in ("completed", "incomplete")


async def test_what_cannot_be_made_shorter_elsewhere(thinker: Serving, route: Any) -> None:
    router = await route(only(thinker, "chat"))
    for body in ({"input": 7}, {"input": [7]}, {}, {"input": "x", "previous_response_id": "resp_1"}):
        answer = await router.client.post(COMPACT, json={"model": MODEL, **body})
        assert answer.status_code == 400, body


async def test_a_replica_without_the_path_is_asked_for_a_summary(scripted: Any, route: Any) -> None:
    """vLLM has responses, and no compaction: its responses are not given up for that."""
    text = {"type": "output_text", "text": "It rains.", "annotations": []}
    said = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    answer = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": [said]}
    scripted.pages[RESPONSES] = Page(str(answer).replace("'", '"').encode())
    router = await route((ReplicaConfig(url=scripted.url, name="r", kind="vllm"),))
    made = (await router.client.post(COMPACT, json={"model": "m", "input": "hello"})).json()
    assert unseal_text(made["output"][-1]["encrypted_content"]) == "It rains."
    assert scripted.paths == [RESPONSES]
    assert "responses" in (await router.client.get("/router/replicas")).json()["replicas"][0]["apis"]


@pytest.mark.long
def test_a_named_item_is_asked_for_where_it_was_made() -> None:
    with serve() as one, serve() as other, Routing(one.url, other.url) as url, http_at(url) as http:
        made = []
        for i in range(6):
            first = http.post(RESPONSES, json={**ROOM, "input": "hello", "session_id": f"s{i}"})
            made.append((first.headers["x-hotloop-route"].partition(";")[0], first.json()))
        assert len({route for route, _ in made}) == 2
        for where, first in made:
            named = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
            body = {**ROOM, "input": [HELLO, *named, result_of(first)]}
            second = http.post(RESPONSES, json=body)
            assert second.headers["x-hotloop-route"].partition(";")[0] == where
            check_exact(first, second.json())
        unknown = {"type": "item_reference", "id": f"fc_{'0' * 48}_1"}
        check_error(http.post(RESPONSES, json={**ROOM, "input": [unknown]}), 404, "item_not_found")


STEM = "ab" * 24


@pytest.mark.parametrize(
    ("given", "follows"),
    [
        (b'[{"type":"item_reference","id":"fc_%s_1"}]', f"resp_{STEM}"),
        (b'[{"type":"item_reference","id":"fc_1"},{"type":"item_reference","id":"rs_%s_12"},7]', f"resp_{STEM}"),
        (b'[{"type":"item_reference","id":"fc_1"}]', None),
        (b'[{"type":"item_reference","id":7}]', None),
        (b'[{"type":"item_reference"}]', None),
        (b'[{"role":"user","content":"rs_%s_12"}]', None),
        (b'"item_reference"', None),
        (b"7", None),
    ],
)
def test_which_response_an_item_is_of(given: bytes, follows: str | None) -> None:
    raw = b'{"model":"m","input":%s}' % given.replace(b"%s", STEM.encode())
    assert parse_request(RESPONSES, {}, raw).follows == follows
