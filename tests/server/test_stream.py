"""A stream, event by event, without a network: what may happen while a write waits."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.server.jobs import make_job
from tests.server.serving import TOKENIZER

from hotloop.core.errors import BackendError
from hotloop.core.request import FinishReason, Request, SamplingParams, TokenEvent, Usage
from hotloop.server.delivery import OutputCollector
from hotloop.server.openai.completions import CompletionRenderer
from hotloop.server.openai.render import ChunkWriter
from hotloop.server.stream import EventStream


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


async def run(outputs: OutputCollector, meanwhile: dict[int, Callable[[], None]]) -> Wire:
    writer = ChunkWriter({"id": "cmpl-1"}, CompletionRenderer(TOKENIZER, [""]), make_job())
    wire = Wire(meanwhile)
    await EventStream(outputs, writer, "req")({"type": "http"}, wire.receive, wire.send)
    return wire


@pytest.fixture
async def outputs() -> OutputCollector:
    outputs = OutputCollector([Request("r", [1], SamplingParams())], lambda *ids: None)
    outputs.add(0, event("one"))
    return outputs


@pytest.mark.parametrize("nth_write", [1, 2])
async def test_an_answer_that_ends_during_a_write_is_sent_whole(outputs: OutputCollector, nth_write: int) -> None:
    wire = await run(outputs, {nth_write: lambda: outputs.add(0, event("two", FinishReason.STOP))})
    assert wire.text.index('"one"') < wire.text.index('"two"') < wire.text.index('"stop"') < wire.text.index("[DONE]")
    assert [message["type"] for message in wire.sent].count("http.response.start") == 1
    assert wire.sent[-1]["more_body"] is False


@pytest.mark.parametrize("nth_write", [1, 2])
async def test_a_failure_during_a_write_is_the_last_event(outputs: OutputCollector, nth_write: int) -> None:
    wire = await run(outputs, {nth_write: lambda: outputs.fail(BackendError("boom"))})
    assert '"one"' in wire.text
    assert '"boom"' in wire.text
    assert "[DONE]" not in wire.text
    assert wire.sent[-1]["more_body"] is False


async def test_a_failure_before_the_first_event_has_a_status_of_its_own() -> None:
    outputs = OutputCollector([Request("r", [1], SamplingParams())], lambda *ids: None)
    outputs.fail(BackendError("boom"))
    with pytest.raises(BackendError):
        await run(outputs, {})
