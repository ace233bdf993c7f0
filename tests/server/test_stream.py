"""A stream, event by event, without a network: what may happen while a write waits."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.server.jobs import make_job
from tests.server.serving import TOKENIZER

from hotloop.core.errors import BackendError
from hotloop.core.request import FinishReason, Request, SamplingParams, TokenEvent, Usage
from hotloop.server.delivery import OutputCollector
from hotloop.server.messages import MessageStream
from hotloop.server.openai.completions import CompletionRenderer
from hotloop.server.openai.render import ChunkWriter
from hotloop.server.responses.render import Composer
from hotloop.server.stream import EventStream, StreamWriter
from hotloop.wire.request import ApiRequest


class Wire:
    """A client whose n-th write is interrupted by what the engine does meanwhile."""

    def __init__(self, meanwhile: dict[int, Callable[[], None]]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._meanwhile = meanwhile

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self._meanwhile.get(len(self.sent), lambda: None)()
        await asyncio.sleep(0)


def event(text: str, finish: FinishReason | None = None) -> TokenEvent:
    return TokenEvent("r", (1,), text, Usage(1, 0, 1), finish_reason=finish)


END = event("end", FinishReason.STOP)


async def run(outputs: OutputCollector, meanwhile: dict[int, Callable[[], None]]) -> Wire:
    writer = ChunkWriter({"id": "cmpl-1"}, CompletionRenderer(TOKENIZER, [""]), make_job())
    wire = Wire(meanwhile)
    await EventStream(outputs, writer, "req", ping_s=0.05)({"type": "http"}, wire.receive, wire.send)
    return wire


@pytest.fixture
async def outputs() -> OutputCollector:
    outputs = OutputCollector([Request("r", [1], SamplingParams())], lambda *ids: None)
    outputs.add(0, event("one"))
    return outputs


@pytest.mark.parametrize("nth_write", [3, 4])  # behind the head and the ping: what was said, and another ping
async def test_an_answer_that_ends_during_a_write_is_sent_whole(outputs: OutputCollector, nth_write: int) -> None:
    wire = await run(outputs, {nth_write: lambda: outputs.add(0, event("two", FinishReason.STOP))})
    assert wire.text.index('"one"') < wire.text.index('"two"') < wire.text.index('"stop"') < wire.text.index("[DONE]")
    assert [message["type"] for message in wire.sent].count("http.response.start") == 1
    assert wire.sent[-1]["more_body"] is False


@pytest.mark.parametrize("nth_write", [3, 4])
async def test_a_failure_during_a_write_is_the_last_event(outputs: OutputCollector, nth_write: int) -> None:
    wire = await run(outputs, {nth_write: lambda: outputs.fail(BackendError("boom"))})
    assert '"one"' in wire.text
    assert '"boom"' in wire.text
    assert "[DONE]" not in wire.text
    assert wire.sent[-1]["more_body"] is False


async def test_a_failure_before_the_first_token_is_an_event() -> None:
    outputs = OutputCollector([Request("r", [1], SamplingParams())], lambda *ids: None)
    outputs.fail(BackendError("boom"))
    wire = await run(outputs, {})
    assert wire.sent[0]["status"] == 200
    assert wire.text.startswith(": ping\n\ndata: ")
    assert '"boom"' in wire.text


def writers() -> dict[str, tuple[StreamWriter, list[str]]]:
    """Of each API, and the events of its first three pings."""
    job, head = make_job(), {"id": "resp_1", "created_at": 1, "model": "tiny"}
    chunks = ChunkWriter({"id": "cmpl-1"}, CompletionRenderer(TOKENIZER, [""]), job)
    created = "response.created response.in_progress"
    return {
        "openai": (chunks, ["", "", ""]),
        "messages": (
            MessageStream("msg_1", "tiny", ApiRequest(api="messages", model="tiny", turns=()), job),
            ["ping"] * 3,
        ),
        "responses": (Composer(head, TOKENIZER), ["", created, "response.in_progress"]),
    }


@pytest.mark.parametrize("api", ["openai", "messages", "responses"])
async def test_a_silent_stream_is_kept_alive(api: str) -> None:
    outputs = OutputCollector([Request("r", [1], SamplingParams())], lambda *ids: None)
    writer, events = writers()[api]

    def speak() -> None:
        outputs.add(0, event("one", FinishReason.STOP))

    wire = Wire({4: speak})  # head, three pings
    await EventStream(outputs, writer, "req", ping_s=0.01)({"type": "http"}, wire.receive, wire.send)
    pings = [message["body"].decode() for message in wire.sent[1:4]]
    assert [" ".join(re.findall("^event: (.*)$", ping, re.M)) for ping in pings] == events
    assert all(ping.startswith(": ") for ping, names in zip(pings, events, strict=True) if not names)
    assert "one" in wire.text
    assert len(wire.sent) == 5, "and not a ping more"


async def test_a_stream_that_speaks_is_not_pinged(outputs: OutputCollector) -> None:
    """However often it is looked at in between: something came each time."""
    wire = Wire({i: lambda: outputs.add(0, event("one")) for i in range(2, 50)} | {50: lambda: outputs.add(0, END)})
    writer, _ = writers()["openai"]
    await EventStream(outputs, writer, "req", ping_s=1.0)({"type": "http"}, wire.receive, wire.send)
    assert wire.text.count(": ping") == 1
