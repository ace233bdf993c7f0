"""What becomes of responses after they were asked for: continued, looked at, cancelled, abandoned."""

import json
from collections.abc import AsyncIterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from tests.loopback import async_openai_at, openai_at
from tests.server.asking import ENDLESS, TOOLS, ask, check_events
from tests.server.calls import write_call
from tests.server.serving import MODEL, Routing, Serving, only, until
from tests.server.test_lifecycle import is_busy, is_idle

from hotloop.core.config import ServerConfig

BLOCK_SIZE = 16
FORECAST = write_call("weather", city="Rome", days=1)
SCRIPT = (f"Let me see.\n{FORECAST}", "It rains.", "Take an umbrella.")


def run_tools(response: Response) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in response.output
        if item.type == "function_call"
    ]


def run_loop(*, is_chained: bool) -> list[tuple[int, int]]:
    """Three turns, with the whole history sent again or by the id of the last response. Returns their token counts."""
    history: list[Any] = [{"role": "user", "content": "Rome?"}]
    given, previous, counts = history, None, []
    with Serving(script=SCRIPT) as serving, serving.openai() as client:
        for _ in SCRIPT:
            response = client.responses.create(
                model=MODEL, input=given, tools=TOOLS, instructions="Help.", previous_response_id=previous
            )
            assert response.usage
            num_read = sum(counts[-1]) if counts else 0
            assert response.usage.input_tokens_details.cached_tokens >= num_read - BLOCK_SIZE, (
                "something was read twice"
            )
            counts.append((response.usage.input_tokens, response.usage.output_tokens))
            news = run_tools(response) or [{"role": "user", "content": "And now?"}]
            history += [*response.output, *news]
            given, previous = (news, response.id) if is_chained else (history, None)
    assert response.output_text == SCRIPT[-1]
    return counts


def test_a_loop_of_tools() -> None:
    assert run_loop(is_chained=True) == run_loop(is_chained=False)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_agent_of_pydantic_ai(is_streamed: bool) -> None:
    asked: list[str] = []
    seen: list[Any] = []
    with Serving(script=SCRIPT) as serving:
        async with async_openai_at(serving.url) as client:
            agent = Agent(OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=client)))

            @agent.tool_plain
            def weather(city: str, days: int) -> str:
                """The weather of a city."""
                asked.append(f"{city} {days}")
                return "rain"

            async def listen(_: Any, events: AsyncIterable[Any]) -> None:
                seen.extend([event async for event in events])

            result = await agent.run("Rome?", event_stream_handler=listen if is_streamed else None)
    assert bool(seen) == is_streamed
    assert asked == ["Rome 1"]
    assert result.output == SCRIPT[1]


def test_a_chain_forgets_the_instructions_and_keeps_the_rest() -> None:
    with Serving(script=["One.", "Two."]) as serving, serving.openai() as client:
        first = client.responses.create(model=MODEL, input="a", instructions="Help.")
        second = client.responses.create(model=MODEL, input="b", previous_response_id=first.id)
        items = client.responses.input_items.list(second.id, order="asc").data
    assert second.output_text == "Two."
    assert [(item.role, item.content[0].text) for item in items] == [  # type: ignore[union-attr]
        ("user", "a"),
        ("assistant", "One."),
        ("user", "b"),
    ]


def test_retrieve_and_delete(client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="hello", max_output_tokens=2)
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    client.responses.delete(made.id)
    for again in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            again(made.id)


def test_a_streamed_response_is_stored(serving: Serving, client: openai.OpenAI) -> None:
    last = check_events(ask(serving, stream=True).text)[-1]["response"]
    assert serving.http.get(f"/v1/responses/{last['id']}").json() == last
    with pytest.raises(openai.NotFoundError):  # another key's
        client.responses.retrieve(last["id"])


def test_not_stored(client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="hello", max_output_tokens=2, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model=MODEL, input="hello", previous_response_id=made.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_input_items_in_pages(client: openai.OpenAI) -> None:
    given: Any = [{"role": "user", "content": str(i)} for i in range(5)]
    made = client.responses.create(model=MODEL, input=given, max_output_tokens=2)
    listed = list(client.responses.input_items.list(made.id, limit=2))  # the client asks for page after page
    assert [item.content[0].text for item in listed] == ["4", "3", "2", "1", "0"]  # type: ignore[union-attr]


def test_cancel_a_stream(serving: Serving, client: openai.OpenAI) -> None:
    stream = client.responses.create(model=MODEL, input="hello", stream=True, extra_body=ENDLESS)
    first = next(iter(stream))
    assert first.type == "response.created"
    assert client.responses.retrieve(first.response.id).status == "in_progress"
    cancelled = client.responses.cancel(first.response.id)
    assert cancelled.status == "cancelled"
    last = list(stream)[-1]
    assert last.type == "response.failed"
    assert last.response.status == "cancelled"
    assert client.responses.retrieve(first.response.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="was cancelled"):
        client.responses.create(model=MODEL, input="go on", previous_response_id=first.response.id)
    until(lambda: is_idle(serving))


def test_in_the_background(serving: Serving, client: openai.OpenAI) -> None:
    with serving.gate:
        made = client.responses.create(
            model=MODEL, input="hello", background=True, max_output_tokens=3, extra_body=only("a")
        )
        assert made.status == "queued"
        assert client.responses.retrieve(made.id).status == "queued"
        with pytest.raises(openai.BadRequestError, match="still being written"):
            client.responses.create(model=MODEL, input="go on", previous_response_id=made.id)
    until(lambda: client.responses.retrieve(made.id).status not in ("queued", "in_progress"))
    assert client.responses.retrieve(made.id).output_text == "aaa"
    assert client.responses.cancel(made.id).status == "incomplete"  # too late: it is answered as it is


def test_a_response_in_the_background_says_when_it_is_begun(serving: Serving, client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="hello", background=True, extra_body=ENDLESS)
    until(lambda: client.responses.retrieve(made.id).status == "in_progress")
    for _ in range(2):
        assert client.responses.cancel(made.id).status == "cancelled"
    until(lambda: is_idle(serving))
    assert client.responses.cancel(made.id).status == "cancelled"


def test_what_ended_and_was_not_in_the_background_cannot_be_cancelled(client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="hello", max_output_tokens=2)
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(made.id)
    assert client.responses.retrieve(made.id).status == made.status


def test_a_stream_in_the_background(serving: Serving) -> None:
    with serving.gate:
        body = {"input": "hello", "background": True, "stream": True, "max_output_tokens": 3, **only("a")}
        with serving.http.stream("POST", "/v1/responses", json=body) as response:
            lines = response.iter_lines()
            first = [next(lines) for _ in range(6)]  # two events, before the engine has begun
            serving.gate.__exit__()
            text = "\n".join([*first, *lines]) + "\n"
    events = check_events(text)
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    last = events[-1]["response"]
    assert (last["status"], last["background"], last["output"][0]["content"][0]["text"]) == ("incomplete", True, "aaa")
    path = f"/v1/responses/{last['id']}"
    assert serving.http.get(path).json() == last
    assert serving.http.get(path, params={"stream": "true"}).text == text
    rest = serving.http.get(path, params={"stream": "true", "starting_after": 2})
    assert rest.headers["content-type"].startswith("text/event-stream")
    assert rest.text == text[text.index("event: response.output_item.added") :]


@pytest.mark.parametrize("is_routed", [False, True])
def test_a_stream_in_the_background_outlives_its_client(serving: Serving, is_routed: bool) -> None:
    front = Routing(serving.url) if is_routed else nullcontext(serving.url)
    with front as url, openai_at(url) as client:
        outlive(client, serving)


def outlive(client: openai.OpenAI, serving: Serving) -> None:
    stream = client.responses.create(model=MODEL, input="hello", stream=True, background=True, extra_body=ENDLESS)
    first = next(iter(stream))
    assert first.type == "response.created"
    stream.close()
    until(lambda: client.responses.retrieve(first.response.id).status == "in_progress")
    again = client.responses.retrieve(first.response.id, stream=True, starting_after=1)
    assert next(iter(again)).type == "response.in_progress"
    assert is_busy(serving)
    client.responses.cancel(first.response.id)
    last = list(again)[-1]
    assert last.type == "response.failed"
    assert last.response.status == "cancelled"
    until(lambda: is_idle(serving))


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_cancel_in_the_background(serving: Serving, client: openai.OpenAI, verb: str) -> None:
    made = client.responses.create(model=MODEL, input="hello", background=True, extra_body=ENDLESS)
    until(lambda: is_busy(serving))
    getattr(client.responses, verb)(made.id)
    until(lambda: is_idle(serving))
    if verb == "cancel":
        assert client.responses.retrieve(made.id).status == "cancelled"
    else:
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)


def test_cancel_while_another_waits_for_the_whole(serving: Serving, client: openai.OpenAI) -> None:
    running = serving.app.state.responses._running
    until(lambda: not running)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, serving, max_output_tokens=3000, **ENDLESS)
        until(lambda: is_busy(serving) and bool(running))
        [response_id] = running
        assert serving.http.post(f"/v1/responses/{response_id}/cancel").json()["status"] == "cancelled"
        assert waiting.result(30).json()["status"] == "cancelled"
    until(lambda: is_idle(serving))


def test_closing_the_stream_frees_its_blocks(serving: Serving, client: openai.OpenAI) -> None:
    stream = client.responses.create(model=MODEL, input="hello", stream=True, extra_body=ENDLESS)
    first = next(iter(stream))
    stream.close()
    until(lambda: is_idle(serving))
    assert first.type == "response.created"
    until(lambda: client.responses.retrieve(first.response.id).status == "cancelled")


def test_a_stream_that_the_server_ends() -> None:
    with Serving(ServerConfig(port=0, drain_timeout_s=0.05)) as serving:
        body = {"input": "hello", "stream": True, **ENDLESS}
        with serving.http.stream("POST", "/v1/responses", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            serving.stop()
            last = json.loads([line for line in lines if line][-1].removeprefix("data: "))
        serving.join()
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert "shutting down" in last["response"]["error"]["message"]


def test_what_is_cancelled_is_answered_as_it_ended(serving: Serving, client: openai.OpenAI) -> None:
    for num_tokens in range(1, 40):
        made = client.responses.create(model=MODEL, input="hello", background=True, max_output_tokens=num_tokens)
        answered = client.responses.cancel(made.id).status
        assert answered in ("cancelled", "incomplete", "completed")
        assert client.responses.retrieve(made.id).status == answered
