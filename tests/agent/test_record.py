"""A recorded run is had again exactly, without the model and without the tools; and where it cannot be, it says why."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.agent.runs import end_of, listen

from hotloop.agent.agent import Agent
from hotloop.agent.events import CallFinished, Event, Text
from hotloop.agent.model import Ask
from hotloop.agent.record import RecordingTool, record, replay
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tape import ReplayMismatch, TapeWriter, read_tape
from hotloop.agent.tools.dispatch import LATE, stop
from hotloop.agent.tools.tool import AgentTool, FunctionTool, RunContext, ToolError, ToolOptions, tool
from hotloop.core.errors import ConfigError, HotloopError, RemoteError
from hotloop.core.message import Message, ToolCall
from hotloop.core.stream import TextDelta

SCRIPT: list[Any] = [
    [
        "Let me look. ",
        ScriptedCall("dice"),
        ScriptedCall("dice"),
        ScriptedCall("broken"),
        ScriptedCall("refuses", what="tea"),
        ScriptedCall("remote"),
    ],
    [ScriptedCall("slow"), ScriptedCall("drop"), ScriptedCall("keep"), ScriptedCall("unheard_of")],
    "Done.",
]


class Counting:
    """Tools whose results differ every time, and how often they ran."""

    def __init__(self) -> None:
        self.num_runs = 0

    def tools(self) -> list[AgentTool]:
        never = asyncio.Event()

        @tool
        async def dice() -> int:
            self.num_runs += 1
            return self.num_runs

        @tool(idempotent=True)
        def broken() -> str:
            self.num_runs += 1
            if self.num_runs % 2:
                raise ValueError("odd")
            return "even"

        @tool
        async def refuses(what: str) -> str:
            raise ToolError(f"no {what}")

        @tool(timeout_s=0.01)
        async def slow() -> str:
            await never.wait()
            return "never"

        drop = FunctionTool(lambda: "dropped", name="drop", options=ToolOptions(needs_approval=True))
        keep = FunctionTool(lambda: "kept", name="keep", options=ToolOptions(needs_approval=True))
        return [dice, broken, refuses, slow, drop, keep]


class Elsewhere:
    """A source of one tool, which counts how often it was opened."""

    def __init__(self) -> None:
        self.num_opened = 0

    async def open(self, stack: AsyncExitStack) -> Sequence[AgentTool]:
        self.num_opened += 1
        return [FunctionTool(lambda: "far away", name="remote")]

    async def is_alive(self, tools: Sequence[AgentTool]) -> bool:
        return True


async def approve(call: ToolCall) -> bool | str:
    return "never drop" if call.name == "drop" else True


async def nobody(call: ToolCall) -> bool | str:
    raise AssertionError("a replay asks nobody")


def shown(events: Sequence[Event]) -> list[Any]:
    """What was said and found, apart from when."""
    said = "".join(event.text for event in events if isinstance(event, Text))
    found = [(e.call_id, e.name, e.result, e.is_error, e.num_tries) for e in events if isinstance(e, CallFinished)]
    return [said, sorted(found), end_of(events).end, end_of(events).output, end_of(events).spent.usage]


def test_only_its_owner_may_read_a_tape(tmp_path: Path) -> None:
    TapeWriter(tmp_path / "tape").write()
    assert (tmp_path / "tape").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_paced", [False, True])
async def test_a_run_can_be_had_again(tmp_path: Path, is_paced: bool) -> None:
    counting, elsewhere, path = Counting(), Elsewhere(), tmp_path / "run.jsonl"
    agent = Agent(ScriptedModel(SCRIPT), [*counting.tools(), elsewhere], "Be brief.", approve=approve)
    first = await listen(record(agent, path))
    num_runs, num_opened = counting.num_runs, elsewhere.num_opened
    assert end_of(first).output == "Done."
    assert num_runs >= 3

    for way in (nobody, None):
        unasked = Agent(ScriptedModel([]), [*counting.tools(), elsewhere], "Be brief.", approve=way)
        again = await listen(replay(unasked, path, is_paced=is_paced))
        assert shown(again) == shown(first)
    assert (counting.num_runs, elsewhere.num_opened) == (num_runs, num_opened)


async def test_a_tool_that_ended_its_run_ends_the_replay(tmp_path: Path) -> None:
    @tool
    async def leave() -> None:
        raise KeyboardInterrupt

    path = tmp_path / "run.jsonl"
    first = await listen(record(Agent(ScriptedModel([ScriptedCall("leave")]), [leave]), path))
    again = await listen(replay(Agent(ScriptedModel([]), [leave]), path))
    assert "raised KeyboardInterrupt()" in str(end_of(first).error)
    assert str(end_of(again).error) == str(end_of(first).error)


@pytest.mark.parametrize(("why", "is_kept"), [(LATE, True), (None, False)])
async def test_a_tool_whose_time_is_up_is_on_the_tape_however_late_it_began(
    tmp_path: Path, why: str | None, is_kept: bool
) -> None:
    """One that is broken off for another reason is not: nobody knows what it would have said."""
    slow = next(each for each in Counting().tools() if each.spec.name == "slow")
    tape = TapeWriter(tmp_path / "run.jsonl")
    running = asyncio.create_task(RecordingTool(slow, tape).run("{}", RunContext([])))
    await asyncio.sleep(0)
    await stop([running], why=why)
    assert running.cancelled()
    assert ("slow did not answer within" in (tmp_path / "run.jsonl").read_text()) == is_kept


def once(script: list[Any], tools: Sequence[Any] = (), instructions: str = "Be brief.") -> Agent[str]:
    return Agent(ScriptedModel(script), tools, instructions)


@tool
def dice() -> str:
    """Throws a die."""
    return "4"


@pytest.mark.parametrize(
    ("agent", "prompt", "words"),
    [
        (once([], [dice]), "other", "message 1: recorded was user: 'go', now it is user: 'other'"),
        (
            once([], [dice], "Be loud."),
            "go",
            "message 0: recorded was system: 'Be brief.', now it is system: 'Be loud.'",
        ),
        (once([]), "go", "tools are not what was recorded"),
    ],
)
async def test_a_run_that_departs_says_where(tmp_path: Path, agent: Agent[str], prompt: str, words: str) -> None:
    await record(once([ScriptedCall("dice"), "4."], [dice]), tmp_path / "run").run("go")
    with pytest.raises(ReplayMismatch, match=words):
        await replay(agent, tmp_path / "run").run(prompt)


async def test_a_tape_ends(tmp_path: Path) -> None:
    await record(once(["Hi."]), tmp_path / "run").run("go")
    agent = replay(once([]), tmp_path / "run")
    assert (await agent.run("go")).output == "Hi."
    with pytest.raises(ReplayMismatch, match="at its end"):
        await agent.run("go")


async def test_the_same_question_has_its_answers_in_their_order(tmp_path: Path) -> None:
    answers = iter(["one", "two", "three"])
    agent = record(Agent(ScriptedModel(lambda ask: next(answers))), tmp_path / "run")
    assert [(await agent.run("go")).output for _ in range(3)] == ["one", "two", "three"]
    agent = replay(agent, tmp_path / "run")
    assert [(await agent.run("go")).output for _ in range(3)] == ["one", "two", "three"]


async def test_of_calls_that_are_alike_each_has_its_own_result(tmp_path: Path) -> None:
    """Though the first ended last."""
    numbers, has_ended = iter("12"), asyncio.Event()

    @tool
    async def throw() -> str:
        number = next(numbers)
        if number == "1":
            await has_ended.wait()
        has_ended.set()
        return number

    agent = Agent(ScriptedModel([[ScriptedCall("throw"), ScriptedCall("throw")], "ok"]), [throw])
    await record(agent, tmp_path / "run").run("go")
    result = await replay(agent, tmp_path / "run").run("go")
    assert [m.content for m in result.conversation.messages if m.role == "tool"] == ["1", "2"]


def fails(ask: Ask) -> str:
    raise RemoteError("the server is on fire", status=503)


async def test_failures_are_had_again(tmp_path: Path) -> None:
    with pytest.raises(RemoteError):
        await record(Agent(ScriptedModel(fails)), tmp_path / "run").run("go")
    with pytest.raises(RemoteError, match="the server is on fire") as caught:
        await replay(once([], instructions=""), tmp_path / "run").run("go")
    assert caught.value.status == 503


async def test_an_answer_nobody_heard_the_end_of_is_not_on_the_tape(tmp_path: Path) -> None:
    model = record(once([["One.\n", "Two."]]), tmp_path / "run").settings.model
    async with aclosing(model.stream(Ask(messages=(Message("user", "go"),)))) as events:
        assert await anext(events) == TextDelta("One.\n")
    assert len(read_tape(tmp_path / "run")) == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a recording"),
        (b"{}\n", "not a recording"),
        (b"\xff\xfe\n", "not a recording"),
        (b'{"line": "answer", "events": ' + b"[" * 5000 + b"]" * 5000 + b"}", "not a recording"),
        (b'{"line": "verdict", "name": "a", "arguments": "", "verdict": true}\n', "not a recording"),
        (b'{"line": "tape", "version": 99}\n', "version 99"),
    ],
)
def test_what_is_no_tape(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "run").write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        replay(once([]), tmp_path / "run")


def test_tapes_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        replay(once([]), tmp_path / "absent")
    with pytest.raises(ConfigError, match="cannot record"):
        record(once([]), tmp_path / "absent" / "run")


async def test_a_spoilt_event_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "run"
    await record(once(["Hi."]), path).run("go")
    path.write_text(path.read_text().replace('"text","Hi."', '"song","la"'))
    with pytest.raises(HotloopError, match="invalid event"):
        await replay(once([]), path).run("go")
