"""Tools run for loops of others: the unmodified clients of OpenAI and Anthropic, and a framework's own."""

import asyncio
import inspect
import json
from typing import Any

import anthropic
import openai
import pytest
from tests.agent.runs import speculating
from tests.agent.wire import streams as wires
from tests.agent.wire.streams import Reply, WireServer

from hotloop.agent.executor import ToolExecutor
from hotloop.agent.tools.tool import Context, ToolError, tool
from hotloop.core.errors import ConfigError
from hotloop.core.message import Attachment

MESSAGES = [{"role": "user", "content": "Paris?"}]


class Tools:
    """Those of the hand-written streams. The first may end the stream: it has begun before the stream is over."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.has_begun = asyncio.Event()

    def make(self, **options: Any) -> list[Any]:
        @tool(read_only=True, **options)
        async def weather(city: str, days: int = 1) -> str:
            """The weather of a city."""
            self.calls.append(f"weather {city} {days}")
            self.has_begun.set()
            return f"rain in {city}"

        @tool(read_only=True)
        def clock() -> str:
            """The time."""
            self.calls.append("clock")
            return "noon"

        return [weather, clock]


def openai_at(url: str, **fields: Any) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(verify=False, **fields)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)


def anthropic_at(url: str) -> anthropic.AsyncAnthropic:
    http = anthropic.DefaultAsyncHttpxClient(verify=False)
    return anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, http_client=http)


async def test_a_call_begins_while_the_openai_client_still_reads() -> None:
    tools = Tools()
    async with (
        WireServer(Reply(wires.OPENAI_CALLS, hold=tools.has_begun)) as server,
        ToolExecutor(tools.make()) as executor,
    ):
        client = openai_at(server.url)
        stream = await client.chat.completions.create(
            model="m", messages=MESSAGES, tools=executor.chat_tools, stream=True
        )
        turn = executor.watch(stream)
        chunks = [chunk async for chunk in turn]
        said, *results = await turn.chat_messages()
        await client.close()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Ich schaue nach: ☂ "
    assert said["content"] == "Ich schaue nach: ☂ "
    assert [call["id"] for call in said["tool_calls"]] == ["call_a", "call_b"]
    assert results == [
        {"role": "tool", "tool_call_id": "call_a", "content": 'rain in Pa"}ris'},
        {"role": "tool", "tool_call_id": "call_b", "content": "noon"},
    ]
    assert [each["function"]["name"] for each in server.bodies[0]["tools"]] == ["weather", "clock"]


async def test_a_call_begins_while_the_anthropic_client_still_reads() -> None:
    tools = Tools()
    async with WireServer(Reply(wires.ANTHROPIC_CALLS, hold=tools.has_begun)) as server:
        executor, client = ToolExecutor(tools.make()), anthropic_at(server.url)
        stream = await client.messages.create(
            model="m", max_tokens=9, messages=MESSAGES, tools=executor.anthropic_tools, stream=True
        )
        turn = executor.watch(stream)
        async for _ in turn:
            pass
        said, results = await turn.anthropic_messages()
        await client.close()
        await executor.close()
    assert [block["type"] for block in said["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [(block["tool_use_id"], block["content"]) for block in results["content"]] == [
        ("toolu_a", 'rain in Pa"}ris'),
        ("toolu_b", "noon"),
    ]


async def test_calls_that_are_alike_are_made_once() -> None:
    """Where a default is left out, too; but not where they may change something."""
    tools, written = Tools(), []

    @tool
    def write(line: str) -> str:
        written.append(line)
        return "written"

    calls = [
        wires.opened(0, "a", "weather", '{"city": "Rome"}'),
        wires.opened(1, "b", "weather", '{"days": 1, "city": "Rome"}'),
        wires.opened(2, "c", "write", '{"line": "x"}'),
        wires.opened(3, "d", "write", '{"line": "x"}'),
    ]

    async def stream() -> Any:
        for chunk in [*calls, wires.chunk(finish="tool_calls")]:
            yield chunk

    executor = ToolExecutor([*tools.make(), write])
    turn = executor.watch(stream())
    async for _ in turn:
        pass
    assert [each.content for each in await turn.results()] == ["rain in Rome", "rain in Rome", "written", "written"]
    assert (tools.calls, written) == (["weather Rome 1"], ["x", "x"])
    await executor.close()


async def test_a_framework_s_client_and_its_tools() -> None:
    """Its client's answers are watched by hooks, and what it calls has begun by then."""
    tools = Tools()
    async with (
        WireServer(Reply(wires.OPENAI_CALLS, hold=tools.has_begun)) as server,
        ToolExecutor(tools.make()) as executor,
    ):
        client = openai_at(server.url, event_hooks=executor.hooks)
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        calls = [call async for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or ()]
        assert calls
        weather, clock = executor.function("weather"), executor.function("clock")
        assert await weather(city='Pa"}ris') == 'rain in Pa"}ris'
        assert await clock() == "noon"
        assert sorted(tools.calls) == ["clock", 'weather Pa"}ris 1'], "the framework's calls are those that had begun"
        assert await weather("Oslo", days=2) == "rain in Oslo", "one that no answer had is made when it is called"
        await client.close()


async def test_what_may_change_something_begins_for_a_framework_only_when_it_calls() -> None:
    written: list[str] = []

    @tool
    def weather(city: str) -> str:
        written.append(city)
        return "x"

    @tool(read_only=True)
    def clock() -> str:
        return "noon"

    for early, expected in (("read_only", []), ("all", ['Pa"}ris'])):
        written.clear()
        async with WireServer(Reply(wires.OPENAI_CALLS)) as server:
            executor = ToolExecutor([weather, clock], early=early)  # type: ignore[arg-type]
            client = openai_at(server.url, event_hooks=executor.hooks)
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            async for _ in stream:
                pass
            assert await executor.call("clock", "{}") == "noon"
            if early == "all":
                assert await executor.call("weather", {"city": 'Pa"}ris'}) == "x"
            assert written == expected
            await client.close()
            await executor.close()


async def test_a_function_looks_like_the_tool_it_is() -> None:
    class Database:
        pass

    @tool
    def find(name: str, database: Context[Database], limit: int = 3) -> str:
        """Finds somebody."""
        return f"{name} {limit}"

    executor = ToolExecutor([find], context=[Database()])
    function = executor.function("find")
    assert (function.__name__, function.__doc__) == ("find", "Finds somebody.")
    assert list(inspect.signature(function).parameters) == ["name", "limit"]
    assert await function("Ada", limit=2) == "Ada 2"
    with pytest.raises(ToolError, match="arguments are wrong"):
        await executor.call("find", {"nobody": 1})
    with pytest.raises(ToolError, match="there is no tool"):
        await executor.call("lose", {})


async def test_calls_begin_before_the_model_has_asked() -> None:
    tools = Tools()
    speculation = speculating(threshold=0.5)
    executor = ToolExecutor(tools.make(), speculation=speculation)

    async def talk(city: str) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"How is the weather in '{city}'?"}]

        async def stream() -> Any:
            yield wires.opened(0, "a", "weather", json.dumps({"city": city}))
            yield wires.chunk(finish="tool_calls")

        turn = executor.watch(stream(), messages=messages)
        async for _ in turn:
            pass
        assert [each.content for each in await turn.results()] == [f"rain in {city}"]

    for city in ("Paris", "Rome", "Oslo", "Bern", "Wien", "Riga", "Nice", "Bonn"):
        await talk(city)
    assert speculation.counts.num_hits > 0
    assert len(tools.calls) == 8, "what ran ahead was not run again"
    await executor.close()


async def test_a_stream_that_is_no_answer_does_no_harm() -> None:
    executor = ToolExecutor(Tools().make())

    async def stream() -> Any:
        yield {"choices": "none"}
        yield wires.opened(0, "a", "weather", '{"city": "Rome"}')

    turn = executor.watch(stream())
    assert len([chunk async for chunk in turn]) == 2
    assert (turn.calls, await turn.results()) == ([], [])
    assert await turn.chat_messages() == [{"role": "assistant", "content": ""}]
    assert await turn.anthropic_messages() == []
    await executor.close()


def test_two_tools_of_a_name() -> None:
    with pytest.raises(ConfigError, match="two tools of one name"):
        ToolExecutor([*Tools().make(), *Tools().make()])


def test_a_tool_that_nobody_can_approve() -> None:
    @tool(needs_approval=True)
    def pay() -> None: ...

    with pytest.raises(ConfigError, match="'pay' needs approval"):
        ToolExecutor([pay])
    ToolExecutor([pay], approve=lambda call: True)


async def test_images_in_results_are_in_the_messages() -> None:
    cat = Attachment.of(b"\x89PNG", "image/png")

    @tool(read_only=True)
    def photograph(of: str) -> list[Any]:
        return [f"The {of}:", cat]

    async def stream() -> Any:
        yield wires.opened(0, "a", "photograph", '{"of": "cat"}')
        yield wires.chunk(finish="tool_calls")

    async with ToolExecutor([photograph]) as executor:
        turn = executor.watch(stream())
        async for _ in turn:
            pass
        _, result, shown = await turn.chat_messages()
        _, blocks = await turn.anthropic_messages()
    assert result["content"].startswith("The cat:")
    assert {"type": "image_url", "image_url": {"url": cat.url}} in shown["content"]
    assert [block["type"] for block in blocks["content"][0]["content"]] == ["text", "image"]


async def test_who_gives_up_a_call_leaves_it_to_others_that_wait_for_it() -> None:
    is_open, looked = asyncio.Event(), list[str]()

    @tool(read_only=True, timeout_s=None)
    async def look(at: str) -> str:
        looked.append(at)
        try:
            await is_open.wait()
        except asyncio.CancelledError:
            looked.append(f"not {at}")
            raise
        return f"{at} is there"

    wire = [{"index": i, "id": f"{i}", "function": {"name": "look", "arguments": '{"at": "home"}'}} for i in range(2)]
    delta = {"choices": [{"index": 0, "delta": {"tool_calls": wire}, "finish_reason": "tool_calls"}]}
    async with (
        WireServer(Reply(f"data: {json.dumps(delta)}\n\ndata: [DONE]\n\n".encode())) as server,
        ToolExecutor([look]) as executor,
    ):
        client = openai_at(server.url, event_hooks=executor.hooks)
        stream = await client.chat.completions.create(model="x", messages=MESSAGES, stream=True)  # type: ignore[call-overload]
        assert [chunk async for chunk in stream]
        await client.close()
        first, second = (asyncio.create_task(executor.call("look", {"at": "home"})) for _ in range(2))
        while not looked:  # noqa: ASYNC110  nobody tells when it is so
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        is_open.set()
        assert await second == "home is there"
        assert looked == ["home"]
        is_open.clear()
        last = asyncio.create_task(executor.call("look", {"at": "work"}))
        while looked[-1] != "work":  # noqa: ASYNC110
            await asyncio.sleep(0)
        last.cancel()
        while looked[-1] != "not work":  # noqa: ASYNC110  what nobody waits for is stopped
            await asyncio.sleep(0)
