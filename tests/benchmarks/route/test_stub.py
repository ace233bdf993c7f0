"""The stub over real sockets: what it says, and how it fails when told to."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from benchmarks.route.answers import CHAT, MESSAGES
from benchmarks.route.stub import Manner
from tests.router.faults import Fault, FaultyStub

ASK = {"model": "stub", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}


@pytest.fixture
async def stub() -> AsyncIterator[FaultyStub]:
    stub = FaultyStub("stub-7", Manner(num_events=4))
    await stub.start()
    yield stub
    await stub.close()


@pytest.fixture
async def http(stub: FaultyStub) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stub.url, timeout=10, verify=False) as client:
        yield client


def parse_events(text: str) -> list[dict]:
    lines = (line for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]")
    return [json.loads(line[6:]) for line in lines]


async def test_chat_whole_and_streamed_say_the_same(http: httpx.AsyncClient):
    whole = (await http.post(CHAT, json=ASK)).json()
    streamed = (await http.post(CHAT, json=ASK | {"stream": True, "stream_options": {"include_usage": True}})).text
    chunks = parse_events(streamed)
    words = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk["choices"])
    assert words == whole["choices"][0]["message"]["content"] == " word0 word1 word2 word3"
    assert chunks[-1]["usage"] == whole["usage"]
    assert streamed.endswith("data: [DONE]\n\n")


async def test_messages_whole_and_streamed_say_the_same(http: httpx.AsyncClient):
    whole = (await http.post(MESSAGES, json=ASK)).json()
    events = parse_events((await http.post(MESSAGES, json=ASK | {"stream": True})).text)
    words = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert words == whole["content"][0]["text"]
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    assert events[0]["message"]["id"].startswith("msg_stub-7.")


async def test_every_answer_has_an_id_of_its_own(http: httpx.AsyncClient):
    ids = {(await http.post(CHAT, json=ASK)).json()["id"] for _ in range(5)}
    assert len(ids) == 5
    assert all(each.startswith("chatcmpl-stub-7.") for each in ids)


async def test_a_stream_in_pieces_is_the_same_stream(http: httpx.AsyncClient):
    stub = FaultyStub("stub-7", Manner(num_events=4, gap_s=0.001))
    await stub.start()
    async with httpx.AsyncClient(base_url=stub.url, verify=False) as other:
        slow = (await other.post(CHAT, json=ASK | {"stream": True})).text
    fast = (await http.post(CHAT, json=ASK | {"stream": True})).text
    await stub.close()
    assert slow == fast


async def test_it_looks_like_a_hotloop_from_outside(http: httpx.AsyncClient):
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/v1/models")).json()["data"][0]["id"] == "stub"
    await http.post(CHAT, json=ASK)
    page = (await http.get("/metrics")).text
    assert "hotloop_requests_running 0\n" in page
    assert "hotloop_requests_total 1\n" in page


@pytest.mark.parametrize(("path", "body"), [("/nowhere", b"{}"), (CHAT, b"{")])
async def test_what_it_does_not_understand_is_an_error(http: httpx.AsyncClient, path: str, body: bytes):
    response = await http.post(path, content=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["message"]


async def test_what_is_no_http_ends_the_connection(stub: FaultyStub):
    reader, writer = await asyncio.open_connection("127.0.0.1", stub.port)
    writer.write(b"what?\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_half_an_answer_breaks_off(stub: FaultyStub, http: httpx.AsyncClient, is_stream: bool):
    await stub.set_fault(Fault("half", 60))
    request = http.build_request("POST", CHAT, json=ASK | {"stream": is_stream})
    response = await http.send(request, stream=True)
    assert response.status_code == 200
    with pytest.raises(httpx.RemoteProtocolError):
        await response.aread()


async def test_a_hung_one_answers_nothing(stub: FaultyStub, http: httpx.AsyncClient):
    await stub.set_fault(Fault("hang", 60))
    with pytest.raises(httpx.ReadTimeout):
        await http.get("/health", timeout=0.05)
    waiting = asyncio.create_task(http.post(CHAT, json=ASK))
    while CHAT not in stub.paths:  # noqa: ASYNC110 - the other side of a socket has no event to wait for
        await asyncio.sleep(0)
    assert not waiting.done()
    await stub.set_fault(None)
    assert (await waiting).status_code == 200
    assert stub.paths[CHAT] == 1


async def test_a_slow_one_gives_the_whole_answer(stub: FaultyStub, http: httpx.AsyncClient):
    await stub.set_fault(Fault("slow", 60, delay_s=0.01))
    assert (await http.post(CHAT, json=ASK | {"stream": True})).text.endswith("data: [DONE]\n\n")
    assert (await http.post(CHAT, json=ASK)).json()["choices"]


async def test_one_that_refuses_is_there_again_afterwards(stub: FaultyStub, http: httpx.AsyncClient):
    await http.get("/health")
    await stub.set_fault(Fault("refuse", 60))
    with pytest.raises(httpx.TransportError):
        await http.get("/health")
    await stub.set_fault(None)
    assert (await http.get("/health")).status_code == 200
