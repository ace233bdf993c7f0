"""Agents as their authors write them, run against the server: the `openai` client's helpers, and pydantic-ai."""

import json
from collections.abc import AsyncIterable
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, NativeOutput
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from tests.loopback import async_openai_at
from tests.server.calls import write_call
from tests.server.serving import HELLO, MODEL, Serving


class Forecast(BaseModel):
    """The weather somewhere."""

    city: Literal["Paris", "Rome"]
    degrees: Literal[10, 20, 30]


class Umbrella(BaseModel):
    is_needed: bool


def test_parse_into_a_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Forecast, max_tokens=99)
    assert isinstance(answer.choices[0].message.parsed, Forecast)


def test_parse_calls_into_models(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Forecast), openai.pydantic_function_tool(Umbrella)]
    answer = client.chat.completions.parse(
        model=MODEL, messages=HELLO, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=200
    )
    assert answer.choices[0].message.tool_calls
    [call] = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Forecast | Umbrella)


def test_stream_helper_with_a_tool(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=HELLO,
        tools=[openai.pydantic_function_tool(Forecast)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert final.choices[0].message.tool_calls
    assert isinstance(final.choices[0].message.tool_calls[0].function.parsed_arguments, Forecast)


def test_stream_helper_with_a_model(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO, response_format=Forecast, max_tokens=99) as stream:
        [done] = [event for event in stream if event.type == "content.done"]
    assert isinstance(done.parsed, Forecast)


FORECAST = write_call("forecast", city="Rome")
PACK = write_call("pack", item="umbrella", count=2)
SCRIPT = (f"Let me see.\n{FORECAST}", PACK, "Take two umbrellas.")


def test_a_loop_of_two_tools_by_hand() -> None:
    """Each tool's arguments as its author declared them; the answers go back in, and the loop ends by itself."""
    packed: list[tuple[str, int]] = []

    def forecast(city: str) -> str:
        return f"rain in {city}"

    def pack(item: str, count: int) -> str:
        packed.append((item, count))
        return "packed"

    text, count = {"type": "string"}, {"type": "integer"}
    schemas = {"forecast": {"city": text}, "pack": {"item": text, "count": count}}
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": _object(properties)}}
        for name, properties in schemas.items()
    ]
    messages: list[Any] = [*HELLO]
    with Serving(script=SCRIPT) as serving, serving.openai() as client:
        while True:
            choice = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0]
            if choice.finish_reason != "tool_calls":
                break
            messages.append(choice.message)
            for call in choice.message.tool_calls or ():
                function = {"forecast": forecast, "pack": pack}[call.function.name]
                result = function(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert choice.message.content == SCRIPT[-1]
    assert packed == [("umbrella", 2)]
    assert [message["content"] for message in messages if isinstance(message, dict)][1:] == ["rain in Rome", "packed"]


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def make_agent(serving: Serving, client: openai.AsyncOpenAI, **settings: Any) -> tuple[Agent[None, Any], list[str]]:
    """Two tools, and the log of what they were asked."""
    asked: list[str] = []
    agent = Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client)), **settings)

    @agent.tool_plain
    def forecast(city: str) -> str:
        """The weather of a city."""
        asked.append(f"forecast {city}")
        return "rain"

    @agent.tool_plain
    def pack(item: str, count: int) -> str:
        """Put something into the bag."""
        if count < 1:
            raise ModelRetry("count must be positive")
        asked.append(f"pack {count} {item}")
        return "packed"

    return agent, asked


def async_client(serving: Serving) -> openai.AsyncOpenAI:
    return async_openai_at(serving.url)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_pydantic_ai_runs_two_tools(is_streamed: bool) -> None:
    with Serving(script=SCRIPT) as serving:
        async with async_client(serving) as client:
            agent, asked = make_agent(serving, client)
            seen: list[Any] = []

            async def listen(_: Any, events: AsyncIterable[Any]) -> None:
                seen.extend([event async for event in events])

            handler = listen if is_streamed else None  # with one, the model is asked to stream
            result = await agent.run("What shall I take to Rome?", event_stream_handler=handler)
    assert bool(seen) == is_streamed
    assert asked == ["forecast Rome", "pack 2 umbrella"]
    assert result.output == SCRIPT[-1]
    answers = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
    parts = [part for message in answers for part in message.parts]
    assert [part.tool_name for part in parts if isinstance(part, ToolCallPart)] == ["forecast", "pack"]


async def test_pydantic_ai_parallel_calls_and_an_output_that_is_a_tool() -> None:
    final = write_call("final_result", city="Rome", degrees=20)
    with Serving(script=[f"{FORECAST}\n{PACK}", final]) as serving:
        async with async_client(serving) as client:
            agent, asked = make_agent(serving, client, output_type=Forecast)
            result = await agent.run("What shall I take to Rome?")
    assert sorted(asked) == ["forecast Rome", "pack 2 umbrella"]
    assert result.output == Forecast(city="Rome", degrees=20)


async def test_pydantic_ai_with_tools_and_an_output_that_is_json() -> None:
    with Serving(script=[FORECAST, '{"city": "Rome", "degrees": 20}']) as serving:
        async with async_client(serving) as client:
            agent, asked = make_agent(serving, client, output_type=NativeOutput(Forecast))
            result = await agent.run("What shall I take to Rome?")
    assert asked == ["forecast Rome"]
    assert result.output == Forecast(city="Rome", degrees=20)


async def test_pydantic_ai_gets_valid_calls_from_nonsense(serving: Serving) -> None:
    """The model has no idea; what it says is still an answer that the agent can take."""
    async with async_client(serving) as client:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
        result = await Agent(model, output_type=Forecast).run("hello", model_settings={"max_tokens": 300})
    assert isinstance(result.output, Forecast)
