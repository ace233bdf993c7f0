"""Frameworks as they are, and with `ToolExecutor` beneath them: how long a turn of three calls takes.

    python -m benchmarks.agent.frameworks

The model is a server on loopback that writes three calls, a piece every so often, and then an answer; each tool sleeps.
LangGraph (by langchain and langchain-openai) and the OpenAI Agents SDK are measured where they are installed.
"""

import asyncio
import importlib
import importlib.util
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple

import openai
from cyclopts import Parameter
from cyclopts.types import PositiveFloat, PositiveInt

from benchmarks.command import main
from hotloop.agent.agent import Agent
from hotloop.agent.executor import ToolExecutor
from hotloop.agent.tools.tool import FunctionTool, RunContext, tool
from hotloop.cli.output import make_table, show
from hotloop.trace.tracer import NullTracer

_CALLS = ("orders", "weather", "rates")
_PIECES = 20
"""That the arguments of a call come in."""


_NO_CONTEXT = RunContext()


class Frame(NamedTuple):
    name: str
    ask: Callable[[str, ToolExecutor, bool], Awaitable[str]]


@asynccontextmanager
async def slow_model(pace_s: float) -> AsyncIterator[str]:
    """The address of a model that calls the three tools, and then answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            size = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            body = json.loads(await reader.readexactly(size))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            has_results = any(message["role"] == "tool" for message in body["messages"])
            for delta in _answer() if has_results else _calls():
                await asyncio.sleep(pace_s)
                data = f"data: {json.dumps(delta)}\n\n".encode()
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(quietly, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def _calls() -> Iterator[dict[str, Any]]:
    yield _chunk({"role": "assistant", "content": ""})
    for index, name in enumerate(_CALLS):
        function = {"name": name, "arguments": ""}
        yield _chunk({"tool_calls": [{"index": index, "id": f"call_{name}", "type": "function", "function": function}]})
        arguments = json.dumps({"of": name * 12})
        size = -(-len(arguments) // _PIECES)
        for i in range(0, len(arguments), size):
            yield _chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments[i : i + size]}}]})
    yield _chunk({}, "tool_calls")


def _answer() -> Iterator[dict[str, Any]]:
    yield _chunk({"role": "assistant", "content": "Here it is."})
    yield _chunk({}, "stop")


def make_executor(tool_s: float) -> ToolExecutor:
    """Each tool takes half as long as the one before."""

    def make(name: str, takes_s: float) -> FunctionTool:
        @tool(read_only=True, name=name)
        async def look(of: str) -> str:
            """Look something up."""
            await asyncio.sleep(takes_s)
            return f"{of}: 42"

        return look

    return ToolExecutor([make(name, tool_s / 2**i) for i, name in enumerate(_CALLS)])


async def plain_look(executor: ToolExecutor, name: str, of: str) -> str:
    """The tool itself, with nobody to begin it early."""
    return str(await executor.tools[name].run(json.dumps({"of": of}), _NO_CONTEXT))


def functions(executor: ToolExecutor, is_executed: bool) -> list[tuple[str, Callable[..., Any]]]:
    def plain(name: str) -> Callable[..., Any]:
        async def look(of: str) -> str:
            """Look something up."""
            return await plain_look(executor, name, of)

        return look

    return [(name, executor.function(name) if is_executed else plain(name)) for name in _CALLS]


def http_client(executor: ToolExecutor, is_executed: bool) -> Any:
    return openai.DefaultAsyncHttpxClient(verify=False, event_hooks=executor.hooks if is_executed else None)


async def ask_langgraph(url: str, executor: ToolExecutor, is_executed: bool) -> str:
    chat, agents = importlib.import_module("langchain_openai"), importlib.import_module("langchain.agents")
    structured = importlib.import_module("langchain_core.tools").StructuredTool
    async with http_client(executor, is_executed) as http:
        model = chat.ChatOpenAI(model="m", base_url=url, api_key="none", streaming=True, http_async_client=http)
        tools = [
            structured.from_function(coroutine=function, name=name, description="Look something up.")
            for name, function in functions(executor, is_executed)
        ]
        graph = agents.create_agent(model, tools)
        state = await graph.ainvoke({"messages": [("user", "What is it?")]})
    return str(state["messages"][-1].content)


async def ask_agents(url: str, executor: ToolExecutor, is_executed: bool) -> str:
    agents = importlib.import_module("agents")
    agents.set_tracing_disabled(True)
    async with http_client(executor, is_executed) as http:
        client = openai.AsyncOpenAI(base_url=url, api_key="none", http_client=http)
        tools = [agents.function_tool(each, name_override=name) for name, each in functions(executor, is_executed)]
        model = agents.OpenAIChatCompletionsModel(model="m", openai_client=client)
        result = agents.Runner.run_streamed(agents.Agent(name="a", model=model, tools=tools), "What is it?")
        async for _ in result.stream_events():
            pass
    return str(result.final_output)


async def ask_openai(url: str, executor: ToolExecutor, is_executed: bool) -> str:
    """The loop that everybody writes: calls are made when the answer is whole, beside each other."""
    messages: list[Any] = [{"role": "user", "content": "What is it?"}]
    async with http_client(executor, False) as http:
        client = openai.AsyncOpenAI(base_url=url, api_key="none", http_client=http)
        while True:
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            turn = executor.watch(stream) if is_executed else make_executor(0).watch(stream)
            async for _ in turn:
                pass
            if not is_executed:
                given = [json.loads(call.arguments)["of"] for call in turn.calls]
                names = [call.name for call in turn.calls]
                await asyncio.gather(*(plain_look(executor, *each) for each in zip(names, given, strict=True)))
            messages += await turn.chat_messages()
            if not turn.calls:
                return str(messages[-1]["content"])


async def ask_hotloop(url: str, executor: ToolExecutor, is_executed: bool) -> str:
    """The runtime of ours, which begins calls early by itself."""
    agent = Agent(f"{url}#m", tools=list(executor.tools.values()), tracer=NullTracer())
    async with agent:
        return (await agent.run("What is it?")).output


async def ask_pydantic(url: str, executor: ToolExecutor, is_executed: bool) -> str:
    pydantic_ai = importlib.import_module("pydantic_ai")
    chat, provider = (importlib.import_module(f"pydantic_ai.{name}.openai") for name in ("models", "providers"))
    async with http_client(executor, is_executed) as http:
        client = openai.AsyncOpenAI(base_url=url, api_key="none", http_client=http)
        model = chat.OpenAIChatModel("m", provider=provider.OpenAIProvider(openai_client=client))
        tools = [pydantic_ai.Tool(each, name=name) for name, each in functions(executor, is_executed)]
        async with pydantic_ai.Agent(model, tools=tools).iter("What is it?") as run:
            async for node in run:
                if pydantic_ai.Agent.is_model_request_node(node):
                    async with node.stream(run.ctx) as stream:
                        async for _ in stream:
                            pass
            return str(run.result.output)


FRAMES = (
    Frame("openai", ask_openai),
    Frame("pydantic_ai", ask_pydantic),
    Frame("langchain", ask_langgraph),
    Frame("agents", ask_agents),
)


async def measure(frame: Frame, is_executed: bool, pace_s: float, tool_s: float, num_runs: int) -> list[float]:
    times = []
    async with slow_model(pace_s) as url:
        for _ in range(num_runs + 1):  # the first loads what the others have
            async with make_executor(tool_s) as executor:
                began_at = time.perf_counter()
                answer = await frame.ask(url, executor, is_executed)
                times.append(time.perf_counter() - began_at)
                assert answer == "Here it is.", answer
    return times[1:]


def frameworks(
    *,
    pace_ms: Annotated[PositiveFloat, Parameter(help="Milliseconds between two pieces of an answer.")] = 20,
    tool_ms: Annotated[
        PositiveFloat, Parameter(help="Milliseconds of the first tool; each next one takes half.")
    ] = 1600,
    runs: Annotated[PositiveInt, Parameter(help="Runs of each row; the first, beside them, is not counted.")] = 5,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Wall time of a turn of three calls and its answer: each framework as it is, and with ToolExecutor."""
    rows = []
    frames = [frame for frame in FRAMES if importlib.util.find_spec(frame.name)]
    for frame in [*frames, Frame("hotloop", ask_hotloop)]:
        for is_executed in (False, True) if frame in frames else (False,):
            times = asyncio.run(measure(frame, is_executed, pace_ms / 1000, tool_ms / 1000, runs))
            label = "with ToolExecutor" if is_executed else "as it is"
            rows.append((frame.name, label, statistics.median(times), min(times), max(times)))
    table = make_table("FRAMEWORK", "TOOLS", "MEDIAN", "MIN", "MAX", words=("FRAMEWORK", "TOOLS"))
    for name, label, *seconds in rows:
        table.add_row(name, label, *(f"{each:.2f} s" for each in seconds))
    names = ("framework", "tools", "median_s", "min_s", "max_s")
    show([dict(zip(names, row, strict=True)) for row in rows], table, as_json)


if __name__ == "__main__":
    main(frameworks)
