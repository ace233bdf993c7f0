"""Tools of real MCP servers: a child process over stdio, and one over streamable HTTP on loopback."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from tests.agent.mcp_server import NUM_GUESTS
from tests.agent.served_mcp import ServedMcp
from tests.agent.wire.streams import OPENAI_TEXT, WireServer

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, CallFinished
from hotloop.agent.mcp import McpServer
from hotloop.agent.model import Ask
from hotloop.agent.scripted import Part, ScriptedCall, ScriptedModel
from hotloop.agent.tools.dispatch import carry_out
from hotloop.agent.tools.result import MAX_CHARS
from hotloop.agent.tools.tool import AgentTool, FunctionTool, RunContext
from hotloop.core.errors import ConfigError
from hotloop.core.message import Attachment

SERVER, PLAIN = (str(Path(__file__).with_name(name)) for name in ("mcp_server.py", "plain_mcp_server.py"))


def child(*args: str, **options: object) -> McpServer:
    """One that starts at once, for tests of how it is started and ends."""
    return McpServer.stdio(sys.executable, PLAIN, *args, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedMcp]:
    with ServedMcp() as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["stdio", "http"])
async def tools(request: pytest.FixtureRequest, served: ServedMcp) -> AsyncIterator[dict[str, AgentTool]]:
    async with AsyncExitStack() as stack:
        source = McpServer.stdio(sys.executable, SERVER) if request.param == "stdio" else McpServer.http(served.url)
        yield {tool.spec.name: tool for tool in await source.open(stack)}


one_connection = pytest.mark.asyncio(loop_scope="module")


async def call(tool: AgentTool, arguments: str = "{}") -> tuple[str, bool]:
    outcome = await carry_out(tool, arguments, RunContext())
    return outcome.text, outcome.is_error


@one_connection
async def test_a_tool_is_described_as_its_server_does(tools: dict[str, AgentTool]):
    add = tools["add"]
    assert add.spec.description == "Add two numbers."
    assert add.spec.parameters["required"] == ["a"]
    assert (add.options.read_only, add.options.idempotent) == (True, False)
    assert (tools["listed"].options.read_only, tools["listed"].options.idempotent) == (False, True)
    assert (tools["refuse"].options.read_only, tools["refuse"].options.idempotent) == (False, False)
    assert "dotted_name" in tools, "a name that an API would refuse"


@one_connection
async def test_results_are_text(tools: dict[str, AgentTool]):
    assert await call(tools["add"], '{"a": 1}') == ("3", False)
    assert await call(tools["listed"], "") == ('{"result":[{"id":1},{"id":2}]}', False)
    assert await call(tools["dotted_name"]) == ("one\ntwo", False)
    assert await call(tools["sound"]) == ("[audio, audio/wav, not shown]", False)


@one_connection
async def test_images_and_documents_are_attached(tools: dict[str, AgentTool]):
    outcome = await carry_out(tools["picture"], "{}", RunContext())
    assert outcome.text == "[image/png, attached]"
    assert outcome.attachments == (Attachment.of(b"not really", "image/png"),)
    outcome = await carry_out(tools["paper"], "{}", RunContext())
    assert outcome.text == "Here it is:\n[bill.pdf, attached]\n[application/zip from file:///a.zip, not shown]"
    assert outcome.attachments == (Attachment.of(b"%PDF-1.7", "application/pdf", "bill.pdf"),)
    assert await call(tools["broken_picture"]) == ("[image, image/png, not shown]", False), "it would fail the run"


async def test_a_model_is_shown_a_servers_image(served: ServedMcp):
    conversation = Conversation()
    script = ScriptedModel([ScriptedCall("picture"), "A cat."])
    await Agent(script, [McpServer.http(served.url)]).run("Look.", conversation=conversation)
    async with WireServer(OPENAI_TEXT) as server, Agent(f"{server.url}/v1#m") as agent:
        await agent.run("What is it?", conversation=conversation)
    [shown] = [each["content"] for each in server.bodies[0]["messages"] if isinstance(each["content"], list)]
    assert shown[-1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,bm90IHJlYWxseQ=="}}


async def test_files_are_only_named_where_the_model_cannot_see(served: ServedMcp):
    async with AsyncExitStack() as stack:
        opened = await McpServer.http(served.url, shows_files=False).open(stack)
        outcome = await carry_out(next(each for each in opened if each.spec.name == "picture"), "{}", RunContext())
    assert (outcome.text, outcome.attachments) == ("[image, image/png, not shown]", ())


@one_connection
async def test_a_long_result_is_cut(tools: dict[str, AgentTool]):
    text, _ = await call(tools["long"], f'{{"num_chars": {3 * MAX_CHARS}}}')
    assert len(text) < 1.1 * MAX_CHARS
    assert "characters left out" in text


@one_connection
async def test_what_goes_wrong_is_told_to_the_model(tools: dict[str, AgentTool]):
    text, is_error = await call(tools["refuse"], '{"reason": "too late"}')
    assert is_error
    assert "refuse" in text
    text, is_error = await call(tools["add"], '{"a": "one"}')
    assert is_error
    assert "integer" in text
    not_json = "Error: the arguments are wrong: they are not a JSON object"
    assert await call(tools["add"], '{"a": ') == (not_json, True)
    text, is_error = await call(tools["add"], "[1]")
    assert is_error


@one_connection
async def test_many_calls_run_at_once_over_one_connection(tools: dict[str, AgentTool]):
    results = await asyncio.gather(*(call(tools["meet"]) for _ in range(NUM_GUESTS)))
    assert results == [("met", False)] * NUM_GUESTS


@one_connection
async def test_a_call_given_up_leaves_the_connection_as_it_is(tools: dict[str, AgentTool]):
    hanging = asyncio.create_task(call(tools["hang"]))
    assert await call(tools["add"], '{"a": 1}') == ("3", False)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert await call(tools["add"], '{"a": 2}') == ("4", False)


async def test_a_call_that_takes_too_long_is_an_error():
    async with AsyncExitStack() as stack:
        [hang] = [tool for tool in await child(timeout_s=0.05).open(stack) if tool.spec.name == "hang"]
        assert await call(hang) == ("Error: hang did not answer within 0.05 s", True)


async def test_a_server_that_dies_is_an_error_of_its_tools():
    async with AsyncExitStack() as stack:
        tools = {tool.spec.name: tool for tool in await child().open(stack)}
        assert await call(tools["die"]) == ("Error: the MCP server has gone", True)
        assert await call(tools["add"], '{"a": 1}') == ("Error: the MCP server has gone", True)


async def test_what_is_no_text_ends_nothing():
    async with AsyncExitStack() as stack:
        tools = {tool.spec.name: tool for tool in await child().open(stack)}
        assert await call(tools["mutter"]) == ("said", False)
        assert await call(tools["add"], '{"a": 1}') == ("3", False)


async def test_an_error_of_a_servers_own_is_told_though_the_library_has_its_number():
    async with AsyncExitStack() as stack:
        tools = {tool.spec.name: tool for tool in await child().open(stack)}
        assert await call(tools["limit"]) == ("Error: too many calls", True)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (child("crash"), "the notes are nowhere to be found"),
        (child("mute", start_s=0.5), "did not answer within 0.5 s"),
        (McpServer.stdio("no-such-command"), "No such file"),
        (McpServer.http("http://127.0.0.1:9/mcp"), "cannot be used"),
    ],
    ids=["crash", "mute", "no command", "no server"],
)
async def test_a_server_that_does_not_start_is_one_clear_line(source: McpServer, reason: str):
    conversation = Conversation()
    agent = Agent(ScriptedModel(["never asked"]), tools=[source])
    with pytest.raises(ConfigError, match=reason) as failure:
        await agent.run("Hello", conversation=conversation)
    assert "\n" not in str(failure.value)
    assert not len(conversation), "nothing was said, so that it can be tried again"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_headers_are_sent():
    with ServedMcp(token="secret") as served:
        async with AsyncExitStack() as stack:
            assert await McpServer.http(served.url, headers={"Authorization": "Bearer secret"}).open(stack)
        with pytest.raises(ConfigError) as failure:
            async with AsyncExitStack() as stack:
                await McpServer.http(served.url, headers={"Authorization": "Bearer wrong"}).open(stack)
        assert "Bearer" not in str(failure.value)


async def test_a_child_sees_only_the_environment_it_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUR_SECRET", "42")
    async with AsyncExitStack() as stack:
        tools = {tool.spec.name: tool for tool in await child(env={"THEIRS": "1"}).open(stack)}
        assert await call(tools["environment"], '{"name": "OUR_SECRET"}') == ("not set", False)
        assert await call(tools["environment"], '{"name": "THEIRS"}') == ("1", False)


async def test_two_servers_need_a_prefix(served: ServedMcp):
    script = ["hello", [ScriptedCall("there_add", a=1), ScriptedCall("add", a=2)], "done"]
    with pytest.raises(ConfigError, match="two tools named"):
        await Agent(ScriptedModel(script), tools=[child(), McpServer.http(served.url)]).run("Hello")
    agent = Agent(ScriptedModel(script[1:]), tools=[child(), McpServer.http(served.url, prefix="there_")])
    result = await agent.run("Hello")
    assert [m.content for m in result.conversation.messages if m.role == "tool"] == ["3", "4"]


async def test_an_entered_agent_starts_its_servers_once():
    agent = Agent(
        ScriptedModel(lambda ask: ScriptedCall("process") if ask.messages[-1].role == "user" else "done"), [child()]
    )

    async def process() -> str:
        result = await agent.run("Who are you?")
        return next(m.content for m in result.conversation.messages if m.role == "tool")

    assert await process() != await process()
    async with agent:
        seen = {await process(), await process(), *await asyncio.gather(process(), process())}
        assert len(seen) == 1
    assert await process() not in seen
    assert asyncio.all_tasks() == {asyncio.current_task()}


def call_what_is_asked_for(ask: Ask) -> Part:
    return ScriptedCall(ask.messages[-1].content) if ask.messages[-1].role == "user" else "done"


@pytest.mark.parametrize("way", ["by a call", "between runs"])
async def test_a_server_that_died_is_started_again_for_the_next_run(way: str):
    agent = Agent(ScriptedModel(call_what_is_asked_for), [child(), FunctionTool(lambda: "here", name="local")])

    async def call_of_run(name: str) -> str:
        result = await agent.run(name)
        return next(m.content for m in result.conversation.messages if m.role == "tool")

    async with agent:
        first = await call_of_run("process")
        if way == "by a call":
            assert await call_of_run("die") == "Error: the MCP server has gone"
        else:
            os.kill(int(first), signal.SIGKILL)
        second = await call_of_run("process")
        assert second.isdigit()
        assert second != first
        assert await call_of_run("process") == second, "it is started once"
        assert set(await asyncio.gather(*(call_of_run("process") for _ in range(3)))) == {second}
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_runs_that_find_a_server_dead_at_once_start_it_once():
    async with Agent(ScriptedModel(call_what_is_asked_for), [child()]) as agent:
        await agent.run("die")
        results = await asyncio.gather(*(agent.run("process") for _ in range(4)))
    [process] = {result.conversation.messages[2].content for result in results}
    assert process.isdigit()


async def test_a_server_that_is_busy_is_not_started_again():
    """A server may do one thing at a time; to end it would end the call of the other run."""
    agent = Agent(ScriptedModel(call_what_is_asked_for), [child()])
    async with agent:
        events = agent.stream("block")
        async for event in events:
            if isinstance(event, CallDispatched):
                break
        result = await agent.run("process")
        rest = [event async for event in events]
        [blocked] = [event.result for event in rest if isinstance(event, CallFinished)]
    assert result.conversation.messages[2].content == blocked, "the same process"


async def test_a_server_over_http_that_came_back_is_connected_to_again():
    with ServedMcp() as first:
        url = first.url
        agent = Agent(ScriptedModel([[ScriptedCall("add", a=1)], "done"]), [McpServer.http(url, start_s=5)])
        await agent.__aenter__()
        assert (await agent.run("go")).conversation.messages[2].content == "3"
    try:
        with pytest.raises(ConfigError, match=r"cannot be used|did not answer"):
            await agent.run("go")
        with ServedMcp(port=int(url.split(":")[2].split("/")[0])):
            assert (await agent.run("go")).conversation.messages[2].content == "3"
    finally:
        await agent.__aexit__()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", [SERVER, PLAIN], ids=["real", "plain"])
async def test_a_run_may_be_closed_by_another_task(program: str):
    agent = Agent(ScriptedModel([ScriptedCall("hang")]), tools=[McpServer.stdio(sys.executable, program)])
    events = agent.stream("Hang.")
    async for event in events:
        if isinstance(event, CallDispatched):
            break
    await asyncio.create_task(events.aclose())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_failed_call_of_a_server_is_a_failed_call_of_the_run():
    agent = Agent(ScriptedModel([ScriptedCall("refuse", reason="no"), "I see."]), tools=[child()])
    finished = [event async for event in agent.stream("Try it.") if isinstance(event, CallFinished)]
    assert [event.is_error for event in finished] == [True]


@pytest.mark.parametrize("at", ["initialize", "tools/list", "tools/call"])
async def test_what_is_not_mcp_is_said_in_our_words(at: str):
    program = str(Path(__file__).parents[1] / "fuzz" / "bad_mcp_server.py")
    async with AsyncExitStack() as stack:
        server = McpServer.stdio(sys.executable, program, "a result of no shape", at)
        if at == "tools/call":
            [tool] = await server.open(stack)
            assert await call(tool) == ("Error: the MCP server returned an invalid tool result", True)
        else:
            with pytest.raises(ConfigError, match="cannot be used: what it says is not MCP"):
                await server.open(stack)
