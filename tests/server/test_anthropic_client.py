"""Anthropic's messages, through the real `anthropic` client.

The shared server's model writes nonsense; where it matters what is said, there is a script.
"""

import json
import socket
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import ModelInfo
from pydantic import BaseModel
from tests.server.claude import TOOLS, ask, blocks_of, claude, post, prompt_tokens, read_events, saying
from tests.server.serving import HELLO, MODEL, Serving, until

from hotloop.core.config import EngineConfig
from hotloop.core.request import Priority
from hotloop.server.messages import MessageOptions
from hotloop.server.options import parse_hints, parse_options
from hotloop.wire.messages.parse import parse_request
from hotloop.wire.policy import Notes
from hotloop.wire.request import ApiRequest

PROMPT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


@pytest.fixture
def client(serving: Serving) -> Iterator[anthropic.Anthropic]:
    with claude(serving) as client:
        yield client


def test_a_whole_answer() -> None:
    with saying("Hello there.") as client:
        answer = ask(client)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    assert answer.id.startswith("msg_")
    assert blocks_of(answer) == ["Hello there."]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.usage.output_tokens == len("Hello there.") + 1


def test_a_streamed_answer() -> None:
    with saying("Hello there.") as client:
        with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=99) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        whole = ask(client)
    assert text == "Hello there."
    assert blocks_of(final) == blocks_of(whole)
    assert (final.stop_reason, final.stop_sequence) == ("end_turn", None)
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_the_asynchronous_client(serving: Serving) -> None:
    async with (
        anthropic.AsyncAnthropic(
            base_url=serving.url,
            api_key="none",
            max_retries=0,
            http_client=anthropic.DefaultAsyncHttpxClient(verify=False),
        ) as client,
        client.messages.stream(model=MODEL, messages=HELLO, max_tokens=5) as stream,
    ):
        kinds = [event.type async for event in stream]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


class Forecast(BaseModel):
    is_sunny: bool


def test_an_answer_of_a_given_shape(client: anthropic.Anthropic) -> None:
    answer = client.messages.parse(model=MODEL, messages=HELLO, max_tokens=99, output_format=Forecast)
    assert isinstance(answer.parsed_output, Forecast)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences(stream: bool) -> None:
    with Serving(script=["one two three"]) as serving:
        response = post(serving, stop_sequences=["zzz", " two"], stream=stream, max_tokens=50)
    last = read_events(response.text)[-2]["delta"] if stream else response.json()
    assert (last["stop_reason"], last["stop_sequence"]) == ("stop_sequence", " two")
    assert stream or response.json()["content"] == [{"type": "text", "text": "one"}]


def test_a_limit_beyond_the_context_is_no_error() -> None:
    with Serving(engine_config=EngineConfig(max_context=256)) as serving, claude(serving) as client:
        answer = ask(client, max_tokens=20_000, extra_body={"ignore_eos": True})
        assert prompt_tokens(answer) + answer.usage.output_tokens == 256
        assert answer.stop_reason == "model_context_window_exceeded"
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* tokens > 255 maximum"):
            ask(client, system="x" * 300)


def test_count_tokens_is_what_the_usage_says(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"system": "Be brief.", "tools": TOOLS, "messages": HELLO}
    counted = client.messages.count_tokens(model=MODEL, **fields).input_tokens
    assert counted > len("Be brief.")
    for extra in ({}, EPHEMERAL):
        assert prompt_tokens(ask(client, **fields, extra_body=extra, max_tokens=1)) == counted


def test_the_usage_tells_what_was_cached(client: anthropic.Anthropic) -> None:
    text = "Only this test says so. " * 20
    block = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    first, second = (ask(client, messages=[{"role": "user", "content": block}], max_tokens=1).usage for _ in range(2))
    assert first.cache_read_input_tokens == 0
    assert first.cache_creation_input_tokens
    assert 0 < first.input_tokens < 20, "what the template writes behind the last breakpoint"
    assert first.cache_creation_input_tokens > len(text)
    assert first.cache_creation
    assert first.cache_creation.ephemeral_1h_input_tokens == first.cache_creation_input_tokens
    assert first.cache_creation.ephemeral_5m_input_tokens == 0
    assert second.cache_read_input_tokens
    assert second.cache_read_input_tokens >= len(text)
    num_prompt = first.cache_creation_input_tokens + first.input_tokens
    assert sum(second.model_dump()[name] for name in PROMPT_COUNTS) == num_prompt
    plain = ask(client, messages=[{"role": "user", "content": text}], max_tokens=1).usage
    assert plain.cache_creation_input_tokens == 0
    assert sum(plain.model_dump()[name] for name in PROMPT_COUNTS) == num_prompt


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_at_all_warm_the_cache(serving: Serving, stream: bool) -> None:
    messages = [{"role": "user", "content": f"Warm this up, please, streaming or not: {stream}. " * 5}]
    response = post(serving, messages=messages, max_tokens=0, stream=stream)
    usage = read_events(response.text)[-2]["usage"] if stream else response.json()["usage"]
    assert usage["output_tokens"] == 0
    if not stream:
        assert (response.json()["content"], response.json()["stop_reason"]) == ([], "max_tokens")
    assert post(serving, messages=messages).json()["usage"]["cache_read_input_tokens"] > 200


@pytest.mark.parametrize(
    ("fields", "headers", "session_id"),
    [
        ({"metadata": {"user_id": "user_1_session_2"}}, {}, "user_1_session_2"),
        ({"metadata": {"user_id": "u"}}, {"x-claude-code-session-id": "s"}, "s"),
        ({"session_id": "mine"}, {"x-claude-code-session-id": "s"}, "mine"),
        ({"metadata": {}}, {}, ""),
    ],
)
def test_sessions(fields: dict[str, Any], headers: dict[str, str], session_id: str) -> None:
    assert parse_hints(*read(**fields), headers).session == session_id


def test_priorities() -> None:
    assert parse_hints(*read(service_tier="auto"), {}).priority is Priority.INTERACTIVE
    assert parse_hints(*read(), {"x-hotloop-priority": "workflow"}).priority is Priority.WORKFLOW
    assert parse_hints(*read(priority="background"), {}).priority is Priority.BACKGROUND


def read(**fields: Any) -> tuple[ApiRequest, MessageOptions]:
    request = parse_request({"model": "m", "messages": HELLO, "max_tokens": 1, **fields}, Notes())
    return request, parse_options(request, MessageOptions)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks(stream: bool) -> None:
    def is_idle() -> bool:
        stats = serving.engine.stats()
        return not stats.num_running and not stats.num_blocks_used

    with Serving() as serving:
        body = json.dumps({"messages": HELLO, "max_tokens": 3000, "ignore_eos": True, "stream": stream})
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        client = socket.create_connection(("127.0.0.1", int(serving.url.rpartition(":")[2])))
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        until(lambda: serving.engine.stats().num_running > 0)
        client.close()
        until(is_idle)
        assert serving.engine.stats().num_finished["abort"] == 1


def test_closing_the_stream_frees_its_blocks(serving: Serving, client: anthropic.Anthropic) -> None:
    body = {"ignore_eos": True}
    with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=3000, extra_body=body) as stream:
        next(iter(stream))
        assert serving.engine.stats().num_running
    until(lambda: not serving.engine.stats().num_running)


def test_the_models_in_anthropics_shape(serving: Serving) -> None:
    with claude(serving) as client:
        [model] = client.models.list()
        assert ModelInfo.model_validate_json(model.model_dump_json(), strict=True) == model
        assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
        assert model.max_input_tokens in (serving.engine.max_context, None)  # a router does not know it
        assert client.models.retrieve(MODEL) == model
        with pytest.raises(anthropic.NotFoundError):
            client.models.retrieve("other")
