"""A replica that is lost in the middle of an answer: the client hears each word once, as if nothing had happened."""

import json
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from tests.chat.reasoning_templates import thinking_template
from tests.router.cutter import Cutter
from tests.server.calls import TOOLS, WEATHER, write_call
from tests.server.serving import HELLO, MODEL, Serving

from hotloop.router.config import ReplicaConfig
from hotloop.wire.event import Answer, gather
from hotloop.wire.formats import FORMATS
from hotloop.wire.sse import EventReader

THINKING = "<think>\nThey want the weather, so I call.\n</think>\n\n"
SCRIPT = [THINKING + "Let me look — in Rome.\n" + write_call("weather", city="Rome", days=3) + write_call("clock")]
TEMPLATE = thinking_template(is_opened=False)
FUNCTION = {"type": "function", **TOOLS[0]["function"]}
CLOCK = {"type": "function", "name": "clock", "parameters": {}}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": HELLO, "tools": TOOLS}),
    "messages": (
        "/v1/messages",
        {
            "messages": HELLO,
            "tools": [
                {"name": "weather", "input_schema": WEATHER},
                {"name": "clock", "input_schema": {"type": "object"}},
            ],
            "max_tokens": 400,
        },
    ),
    "responses": ("/v1/responses", {"input": "hello", "tools": [FUNCTION, CLOCK]}),
}


def read(api: str, data: bytes) -> Answer:
    """What a client makes of a stream; it must be whole and in order."""
    reader, events = FORMATS[api].reader(lambda stem, number: f"{stem}-{number}"), EventReader()
    told = [event for read in (*events.push(data), *events.finish()) for event in reader.push(read)]
    return gather([*told, *reader.finish()])


def words(answer: Answer) -> list[Any]:
    """Without ids, which differ between any two answers."""
    said = [getattr(part, "text", None) or (part.name, part.arguments) for part in answer.parts]
    return [*said, answer.ended.reason, answer.ended.usage.num_prompt, answer.ended.usage.num_output]


def check_order(api: str, data: bytes) -> None:
    """What no reader looks at: one beginning, one end, blocks and numbers without a gap."""
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    if api == "chat":
        assert len({(event["id"], event["created"], event["system_fingerprint"]) for event in events}) == 1
        assert data.count(b"data: [DONE]") == 1
        assert data.endswith(b"data: [DONE]\n\n")
    elif api == "messages":
        kinds = [(event["type"], event.get("index")) for event in events if "delta" not in event]
        blocks = [kind for kind in kinds if kind[0].startswith("content_block")]
        wanted = [(f"content_block_{what}", i) for i in range(len(blocks) // 2) for what in ("start", "stop")]
        assert blocks == wanted
        assert [kind for kind, _ in kinds if kind.startswith("message")] == ["message_start", "message_stop"]
    else:
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        assert [event["type"] for event in events].count("response.created") == 1
        assert events[-1]["type"] == "response.completed"
        ids = [item["id"] for item in events[-1]["response"]["output"]]
        added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
        assert ids == added


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Serving]]:
    with Serving(script=SCRIPT, template=TEMPLATE) as one, Serving(script=SCRIPT, template=TEMPLATE) as two:
        yield [one, two]


@pytest.fixture
async def cutters(servers: list[Serving]) -> AsyncIterator[list[Cutter]]:
    async with Cutter(servers[0].url) as one, Cutter(servers[1].url) as two:
        yield [one, two]


def behind(cutters: list[Cutter], **fields: Any) -> tuple[ReplicaConfig, ...]:
    return tuple(ReplicaConfig(url=each.url, name=f"r{i}", **fields) for i, each in enumerate(cutters))


async def ask(client: httpx.AsyncClient, api: str, **fields: Any) -> bytes:
    path, body = ASKED[api]
    asked = {"model": MODEL, "stream": True, "temperature": 0, **body, **fields}
    response = await client.post(path, json=asked)
    assert response.status_code == 200, response.text
    return response.content


@pytest.mark.sampled(3)
@pytest.mark.parametrize("api", ASKED)
@pytest.mark.parametrize("num_places", [3, pytest.param(10, marks=pytest.mark.long)])
async def test_a_replica_lost_at_any_byte_is_not_noticed(api, num_places, cutters, route):
    router = await route(behind(cutters), max_retries=9, retry_share=9.0)
    usage = {"stream_options": {"include_usage": True}} if api == "chat" else {}
    undisturbed = await ask(router.client, api, **usage)
    num_bytes = max(cutter.num_bytes for cutter in cutters)
    rng = random.Random(api)
    parts = range(250, 900), range(900, num_bytes), range(num_bytes - 500, num_bytes)
    places = [place for part in parts for place in rng.sample(part, num_places)]
    for place in (*places, num_bytes - 8, num_bytes - 1):
        for cutter in cutters:
            cutter.cut_after = place
        data = await ask(router.client, api, **usage, session_id=f"s{place}")
        assert words(read(api, data)) == words(read(api, undisturbed)), place
        check_order(api, data)
        assert b": tokens" not in data
    assert sum(cutter.num_cut for cutter in cutters) >= 8, "how a stream is cut into events is for time to say"
    assert 'how="tokens"' in (await router.client.get("/metrics")).text
    assert all(not each.num_running for each in router.replica_set.replicas.values())


async def test_an_answer_may_lose_several_replicas(cutters, route):
    router = await route(behind(cutters), max_retries=9)
    undisturbed = await ask(router.client, "chat")
    for cutter, place in zip(cutters, (900, 900), strict=True):
        cutter.cut_after = place
    data = await ask(router.client, "chat")
    assert [cutter.num_cut for cutter in cutters] == [1, 1]
    assert words(read("chat", data))[:-2] == words(read("chat", undisturbed))[:-2]


async def test_a_client_who_asked_for_no_usage_is_told_none(cutters, route):
    router = await route(behind(cutters))
    for cutter in cutters:
        cutter.cut_after = 900
    data = await ask(router.client, "chat")
    assert b'"usage"' not in data
    page = (await router.client.get("/metrics")).text
    resumed = [line for line in page.splitlines() if line.startswith("hotloop_router_resumed_streams_total{")]
    assert sum(float(line.split()[-1]) for line in resumed) == sum(cutter.num_cut for cutter in cutters)


async def test_without_it_the_client_hears_that_the_replica_was_lost(cutters, route):
    router = await route(behind(cutters), resume_streams=False)
    for cutter in cutters:
        cutter.cut_after = 900
    data = await ask(router.client, "chat")
    assert b"replica_lost" in data
    assert b"[DONE]" not in data
