"""How the tests ask for responses, and what they hold every stream of events to."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from tests.server.calls import WEATHER
from tests.server.serving import Serving, only

STREAM_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def function(name: str, parameters: Any = None, **fields: Any) -> Any:
    return {"type": "function", "name": name, "parameters": parameters, "strict": True, **fields}


TOOLS: list[Any] = [function("weather", WEATHER), function("clock")]
ENDLESS = {"ignore_eos": True} | only("a")


def ask(serving: Serving, **fields: Any) -> httpx.Response:
    return serving.http.post("/v1/responses", json={"input": "hello", "max_output_tokens": 4, **fields})


def check_events(text: str) -> list[dict[str, Any]]:
    """Every event is one of the client's own types, named as its data says and numbered. Comments are left out: how
    many there are depends on how long an answer takes."""
    events = []
    blocks = (block for block in text.strip().split("\n\n") if not block.startswith(":"))
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        STREAM_EVENT.validate_python(event, strict=True)
        events.append(event)
    return events


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    """Their types, runs of the same one taken together."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
