"""A tool that raises: the model reads one line, and whoever wrote the tool finds where it happened."""

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest
from tests.agent.runs import end_of, listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.events import CallFinished
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import FunctionTool, ToolError, ToolExited, tool
from hotloop.core.errors import RemoteError
from hotloop.core.message import ToolCall
from hotloop.trace import names
from hotloop.trace.tracer import ListTracer


def divide_by_nothing() -> None:
    raise ValueError("the secret is kumquat")


@tool
def crash() -> None:
    divide_by_nothing()


@tool
async def crash_later() -> None:
    await asyncio.sleep(0)
    divide_by_nothing()


@pytest.mark.parametrize("crashing", [crash, crash_later])
async def test_the_traceback_is_in_the_log_and_the_trace(
    crashing: FunctionTool, caplog: pytest.LogCaptureFixture
) -> None:
    tracer, name = ListTracer(), crashing.spec.name
    with caplog.at_level(logging.WARNING):
        events = await listen(Agent(ScriptedModel([[ScriptedCall(name)], "ok"]), [crashing], tracer=tracer))
    [finished] = of(CallFinished, events)
    assert finished.result == "Error: ValueError: the secret is kumquat"
    assert f"the tool {name} crashed" in caplog.text
    assert "in divide_by_nothing" in caplog.text
    assert "ValueError: the secret is kumquat" in caplog.text
    [span] = [span for span in tracer.spans if span.name == names.TOOL]
    assert span.attributes[names.TRACEBACK] == finished.traceback
    assert "in divide_by_nothing" in finished.traceback
    assert finished.traceback.endswith("ValueError")
    assert "kumquat" not in finished.traceback.replace("the secret is kumquat", "", 1), "only as the line of code"


async def test_every_try_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    flaky = tool(idempotent=True, name="flaky")(divide_by_nothing)
    with caplog.at_level(logging.WARNING):
        await listen(Agent(ScriptedModel([[ScriptedCall("flaky")], "ok"]), [flaky]))
    assert caplog.text.count("the tool flaky crashed") == 3


async def test_a_tool_that_recurses_for_ever_leaves_a_bounded_traceback() -> None:
    def ping(n: int) -> int:
        return pong(n + 1)

    def pong(n: int) -> int:
        return ping(n + 1)

    deep = FunctionTool(lambda: ping(0), name="deep")
    [finished] = of(CallFinished, await listen(Agent(ScriptedModel([[ScriptedCall("deep")], "ok"]), [deep])))
    assert 0 < len(finished.traceback) <= 20_000
    assert finished.traceback.endswith("RecursionError")


async def test_what_a_tool_says_in_words_is_no_crash(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def refuse() -> None:
        raise ToolError("there is no hour 25")

    def fail(_: object) -> str:
        raise RemoteError("the server is down")

    inner = Agent(ScriptedModel(fail)).as_tool("inner", "Fails.")
    calls = [ScriptedCall("refuse"), ScriptedCall("refuse", wrong=1), ScriptedCall("inner", prompt="x")]
    events = await listen(Agent(ScriptedModel([calls, "ok"]), [refuse, inner]))
    assert [event.traceback for event in of(CallFinished, events)] == ["", "", ""]
    assert "crashed" not in caplog.text


class Cancelled(BaseException):
    """As libraries have that must not be caught by accident."""


@tool
def cancel() -> None:
    raise Cancelled("by its library")


@tool
async def cancel_later() -> None:
    raise Cancelled("by its library")


@pytest.mark.parametrize("cancelling", [cancel, cancel_later])
async def test_what_is_no_exception_is_a_failed_call(cancelling: FunctionTool) -> None:
    events = await listen(Agent(ScriptedModel([[ScriptedCall(cancelling.spec.name)], "ok"]), [cancelling]))
    [finished] = of(CallFinished, events)
    assert finished.result == "Error: Cancelled: by its library"
    assert end_of(events).output == "ok"


async def test_what_goes_wrong_around_a_tool_ends_the_run() -> None:
    """It must not pass for a result."""

    def approve(call: ToolCall) -> bool:
        raise Cancelled("by its library")

    asked = tool(needs_approval=True)(divide_by_nothing)
    agent = Agent(ScriptedModel([[ScriptedCall(asked.spec.name)], "ok"]), [asked], approve=approve)
    end = end_of(await listen(agent))
    assert (end.end, str(end.error)) == ("failed", "the run failed: Cancelled('by its library')")


async def test_items_are_read_in_the_tools_thread_within_its_time() -> None:
    """So a generator that waits holds nobody up, and one that would end the program does not."""
    is_over, threads = threading.Event(), set[int]()

    @tool(timeout_s=0.01)
    def wait() -> Iterator[int]:
        yield 1
        is_over.wait()

    @tool
    def leave() -> Iterator[int]:
        yield 1
        raise SystemExit(3)

    @tool
    def rows() -> dict[str, Iterator[int]]:
        return {"rows": (threads.add(threading.get_ident()) or number for number in range(2))}

    @tool
    async def pages() -> AsyncGenerator[int, None]:
        for number in itertools.count():
            yield number

    tools = [wait, leave, rows, pages]
    script = [[ScriptedCall("wait"), ScriptedCall("rows"), ScriptedCall("pages")], [ScriptedCall("leave")]]
    events = await listen(Agent(ScriptedModel(script), tools))
    is_over.set()
    told = {event.name: event.result for event in of(CallFinished, events)}
    assert told["wait"] == "Error: wait did not answer within 0.01 s"
    assert told["rows"] == '{"rows":[0,1]}'
    assert threads
    assert threading.get_ident() not in threads
    assert told["pages"].startswith("[0,1,2,3,")
    assert told["pages"].endswith('"[... more left out ...]"]')
    assert isinstance(end_of(events).error, ToolExited)
