"""Five hundred runs with tools that do what tools should not: no task is left, none hangs, each run ends once."""

import asyncio
import logging
import random
from contextlib import suppress

import pytest
from tests.agent.runs import check, end_of, num_tasks

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import Event
from hotloop.agent.limits import Limits
from hotloop.agent.model import Ask
from hotloop.agent.scripted import Part, ScriptedCall, ScriptedModel
from hotloop.agent.tools.result import MAX_CHARS
from hotloop.agent.tools.tool import tool

NUM_RUNS = 500


@tool
def crash() -> None:
    raise RuntimeError("\ud800 no \x00 text")


@tool(read_only=True)
async def crash_again() -> None:
    raise OSError


@tool(timeout_s=0.005)
async def hang() -> None:
    await asyncio.Event().wait()


@tool(timeout_s=0.005)
async def hang_on() -> None:
    """Does not stop at once when it is told to."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0.001)
        raise


@tool
def megabytes() -> str:
    return "m" * 5_000_000


@tool
def no_text() -> bytes:
    return b"\xff\xfe\x80" * 100


@tool
async def cancel_itself() -> None:
    raise asyncio.CancelledError


@tool
def fine(n: int = 0) -> int:
    return n


TOOLS = [crash, crash_again, hang, hang_on, megabytes, no_text, cancel_itself, fine]


def script(dice: random.Random) -> ScriptedModel:
    num_turns = dice.randint(1, 4)
    names = [each.spec.name for each in TOOLS] + ["nothing"]
    turns = [[ScriptedCall(dice.choice(names)) for _ in range(dice.randint(1, 5))] for _ in range(num_turns)]

    def answer(ask: Ask) -> Part | list[ScriptedCall]:
        index = sum(message.role == "assistant" for message in ask.messages)
        if index == num_turns and dice.random() < 0.1:
            raise RuntimeError("the model's bug")
        return turns[index] if index < num_turns else "the end"

    return ScriptedModel(answer)


@pytest.mark.long
async def test_chaos(caplog: pytest.LogCaptureFixture) -> None:
    # A log that has half a surrogate pair, as `crash` says, cannot be sent to the process that gathers the reports.
    caplog.set_level(logging.ERROR, logger="hotloop.agent.tools.dispatch")
    before = num_tasks()
    ends: dict[str, int] = {}

    async def run(seed: int) -> None:
        dice = random.Random(seed)
        limits = Limits(turns=dice.choice([1, 2, 25]), time_s=dice.choice([None, None, 0.02]), concurrency=3)
        conversation = Conversation()
        agent = Agent(script(dice), TOOLS, limits=limits)
        num_heard = dice.choice([None, None, 0, 3, 10])
        told: list[Event] = []
        events = agent.stream("go", conversation=conversation)
        async for event in events:
            told.append(event)
            if num_heard is not None and len(told) > num_heard:
                break
        else:
            check(told)
            ends[end_of(told).end] = ends.get(end_of(told).end, 0) + 1
        await events.aclose()
        assert all(len(message.content) < MAX_CHARS + 100 for message in conversation.messages)
        assert conversation.to_json(), "it can be saved, whatever the tools said"

    waiting = set(range(NUM_RUNS))
    while waiting:
        batch = [waiting.pop() for _ in range(min(50, len(waiting)))]
        tasks = [asyncio.create_task(run(seed)) for seed in batch]
        for task in tasks[::10]:
            asyncio.get_running_loop().call_later(0.003, task.cancel)
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        failures = [task.exception() for task in tasks if not task.cancelled() and task.exception()]
        assert not failures
    assert num_tasks() == before
    assert {"done", "limit", "failed"} <= ends.keys()
