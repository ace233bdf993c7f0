"""An answer that a content filter ended does not confirm its last call: it is never run."""

from typing import Any

import pytest
from tests.agent.runs import end_of, listen, of
from tests.agent.wire.streams import (
    RESPONSE,
    WireServer,
    call_block,
    call_item,
    chunk,
    data,
    events,
    opened,
    response,
    started,
    stopped,
)

from hotloop.agent.agent import Agent
from hotloop.agent.events import CallFinished
from hotloop.agent.open_model import open_model
from hotloop.agent.tools.tool import tool
from hotloop.core.stream import CallClosed
from hotloop.wire.chat.reader import ChatReader
from hotloop.wire.event import Ended
from hotloop.wire.messages.reader import MessagesReader
from hotloop.wire.reader import Reader
from hotloop.wire.responses.reader import ResponsesReader
from hotloop.wire.sse import EventReader

PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
LAST: dict[str, Any] = {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "weather", "arguments": ROME}}]}
CHAT = [opened(0, "a", "weather", PARIS), opened(1, "b", "weather", ROME), chunk(finish="content_filter")]
MESSAGES = [
    started(),
    *call_block(0, "a", "weather", PARIS),
    *call_block(1, "b", "weather", ROME),
    *stopped("refusal"),
]


def incomplete(**ending: Any) -> bytes:
    calls = call_item(0, "a", "weather", PARIS), call_item(1, "b", "weather", ROME)
    return events(*response(*calls)[:-1], {"type": "response.incomplete", "response": {**RESPONSE, **ending}})


def with_reason(reason: str, status: str | None = "incomplete") -> bytes:
    return incomplete(status=status, incomplete_details={"reason": reason})


@pytest.mark.parametrize(
    ("reader", "wire", "reason"),
    [
        (ChatReader(), data(*CHAT), "refusal"),
        (ChatReader(), data(CHAT[0], opened(1, "b", "weather"), CHAT[2]), "refusal"),
        (ChatReader(), data(CHAT[0], chunk(LAST, finish="content_filter"), chunk({"content": "No."})), "refusal"),
        (MessagesReader(), events(*MESSAGES), "refusal"),
        (ResponsesReader(), with_reason("content_filter"), "refusal"),
        (ResponsesReader(), with_reason("content_filter", status=None), "refusal"),
        (ResponsesReader(), with_reason("max_output_tokens"), "length"),
        (ResponsesReader(), with_reason("something_new"), "length"),
    ],
)
def test_the_last_call_is_not_confirmed(reader: Reader, wire: bytes, reason: str) -> None:
    heard = [event for sent in EventReader().push(wire) for event in reader.push(sent)]
    assert CallClosed(1) not in heard
    assert isinstance(heard[-1], Ended)
    assert heard[-1].reason == reason


@pytest.mark.parametrize(
    ("api", "wire"),
    [
        ("{}/v1#m", data(*CHAT)),
        ("anthropic:{}#m", events(*MESSAGES)),
        ("responses:{}/v1#m", with_reason("content_filter")),
    ],
)
async def test_an_agent_runs_what_came_before_and_not_the_last_call(api: str, wire: bytes) -> None:
    """A call that others follow runs at once; what it did is in the conversation, though the run has failed."""
    asked = []

    @tool
    async def weather(city: str) -> str:
        asked.append(city)
        return "sun"

    async with WireServer(wire) as server, Agent(open_model(api.format(server.url)), [weather]) as agent:
        told = await listen(agent, "Paris and Rome?")
    assert end_of(told).end == "failed"
    assert "content filter" in str(end_of(told).error)
    assert set(asked) <= {"Paris"}
    assert {event.call_id for event in of(CallFinished, told)} <= {"a"}
