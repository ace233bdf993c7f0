"""What `/openapi.json` says is what is read."""

from collections.abc import Callable, Mapping
from typing import Any

import jsonschema
import msgspec
import pytest
from tests.server.serving import HELLO, Serving

from hotloop.server.app import ROUTES
from hotloop.server.openapi import (
    BODIES,
    ChatWire,
    CompletionWire,
    MessagesWire,
    ResponsesWire,
    describe,
)
from hotloop.wire import field
from hotloop.wire.chat.parse import parse_completion
from hotloop.wire.chat.parse import parse_request as parse_chat
from hotloop.wire.messages.parse import parse_request as parse_messages
from hotloop.wire.responses.parse import parse_request as parse_responses

DESCRIPTION = describe(ROUTES)
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/v1/responses": {"input": "hello"},
    "/v1/responses/input_tokens": {"input": "hello"},
    "/v1/responses/compact": {"input": "hello"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1]},
}


def schema_of(path: str) -> dict[str, Any]:
    operation = DESCRIPTION["paths"][path]["post"]
    return {
        **operation["requestBody"]["content"]["application/json"]["schema"],
        "components": DESCRIPTION["components"],
    }


def test_every_endpoint_is_described(serving: Serving) -> None:
    served = serving.http.get("/openapi.json").json()
    assert served == msgspec.json.decode(msgspec.json.encode(DESCRIPTION))
    assert {*served["paths"]} == {route.path.replace(":path}", "}") for route in ROUTES}
    assert {path for path, methods in served["paths"].items() if "requestBody" in methods.get("post", {})} == {*BODIES}
    assert {*served["paths"]["/v1/responses/{id}"]} == {"get", "delete"}
    for path in BODIES:
        jsonschema.Draft202012Validator.check_schema(schema_of(path))


@pytest.mark.parametrize("path", BODIES)
def test_the_least_that_is_described_is_answered_and_less_is_refused(serving: Serving, path: str) -> None:
    body = LEAST[path]
    validator = jsonschema.Draft202012Validator(schema_of(path))
    validator.validate(body)
    assert serving.http.post(path, json=body).status_code == 200
    for name in body:
        less = {other: value for other, value in body.items() if other != name}
        if not validator.is_valid(less):
            assert serving.http.post(path, json=less).status_code == 400


class Reading(field.Body):
    """Remembers all that was asked for."""

    names: set[str]

    def split_rest(self, own: Any) -> Any:
        Reading.names = set(self._read)
        return super().split_rest(own)


Parse = Callable[[Mapping[str, Any]], object]


@pytest.mark.parametrize(
    ("parse", "kind", "body"),
    [
        (parse_chat, ChatWire, {"messages": HELLO}),
        (parse_completion, CompletionWire, {}),
        (parse_messages, MessagesWire, {"messages": HELLO, "max_tokens": 1}),
        (parse_responses, ResponsesWire, {"input": "hello"}),
    ],
)
def test_what_the_wire_reads_is_what_is_described(
    parse: Parse, kind: type[msgspec.Struct], body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("chat", "messages", "responses"):
        monkeypatch.setattr(f"hotloop.wire.{module}.parse.Body", Reading)
    parse({"model": "m", **body})
    options = {"prompt_cache_retention", "prompt_cache_options"}  # which the options describe as well
    legacy = {"functions", "function_call"}  # asked for where they come
    beside = {"previous_response_id"}  # read before the rest is
    assert Reading.names - options - legacy == {*kind.__struct_fields__} - legacy - beside
