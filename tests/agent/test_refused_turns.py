"""A turn that the model's server refuses leaves the conversation as it was, so that it can be tried again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest
from tests.agent.runs import end_of, listen

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.model import Ask
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import RemoteError
from hotloop.core.message import Message
from hotloop.wire.event import Event as WireEvent

SAID = (Message("system", "s"), Message("user", "Hello."), Message("assistant", "Hi."))


class RefusingModel(ScriptedModel):
    """Refuses prompts of more than so many messages."""

    def __init__(self, script: Any, max_messages: int = 0) -> None:
        super().__init__(script)
        self._max_messages = max_messages

    async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
        if len(ask.messages) > self._max_messages:
            raise RemoteError("the context holds fewer", status=400)
        async for event in super().stream(ask):
            yield event


@tool
def look() -> str:
    return "nothing"


@pytest.mark.parametrize("said", [(), SAID])
@pytest.mark.parametrize("is_planned", [False, True])
async def test_the_first_turn(said: tuple[Message, ...], is_planned: bool) -> None:
    conversation = Conversation(said)
    before = conversation.to_json()
    agent = Agent(RefusingModel([]), [look], "Be brief.")
    for _ in range(3):
        with pytest.raises(RemoteError, match="holds fewer"):
            await (agent.plan if is_planned else agent.run)("Go.", conversation=conversation)
        assert conversation.to_json() == before


async def test_a_later_turn() -> None:
    """What was done stays, once: whoever goes on must know of it."""
    conversation, agent = Conversation(), Agent(RefusingModel([[ScriptedCall("look")]], max_messages=1), [look])
    with pytest.raises(RemoteError):
        await agent.run("Go.", conversation=conversation)
    before = conversation.to_json()
    assert [message.role for message in conversation.messages] == ["user", "assistant", "tool"]
    with pytest.raises(RemoteError):
        await agent.run("Again.", conversation=conversation)
    assert conversation.to_json() == before


async def test_the_turn_after_an_answer_that_was_none() -> None:
    """The answer has a type, and the model wrote text instead of calling `final_answer`."""
    conversation = Conversation()
    agent = Agent(RefusingModel(["Five."], max_messages=1), output=int)
    assert end_of(await listen(agent, conversation=conversation)).end == "failed"
    assert [message.role for message in conversation.messages] == ["user", "assistant"]


async def test_a_turn_that_is_cancelled_before_anything_was_done() -> None:
    conversation, is_asked = Conversation(SAID), asyncio.Event()

    class HangingModel(ScriptedModel):
        async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
            is_asked.set()
            await asyncio.Event().wait()
            yield  # type: ignore[misc]

    running = asyncio.create_task(Agent(HangingModel([])).run("Go.", conversation=conversation))
    await is_asked.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert conversation.messages == SAID
