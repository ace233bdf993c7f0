"""A tool that raises: the model reads one line, and whoever wrote the tool finds where it happened."""

import asyncio
import logging

import pytest
from tests.agent.runs import listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.events import CallFinished
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import FunctionTool, ToolError, tool
from hotloop.core.errors import RemoteError
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
