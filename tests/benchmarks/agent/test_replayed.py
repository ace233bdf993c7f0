"""The record's words at a server's pace."""

from benchmarks.agent.replayed import ReplayedModel
from tests.agent.runs import end_of, listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, Text
from hotloop.agent.model import Ask
from hotloop.agent.scripted import ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.message import Message, ToolCall

CALLS = (ToolCall("c1", "look", '{"n": 1}'), ToolCall("c2", "look", '{"n": 2}'))
ANSWERS = [
    Message("assistant", "Let me see.", tool_calls=CALLS),
    Message("assistant", "Both were found, and that is all there is to say."),
]


@tool
def look(n: int) -> int:
    """Look it up."""
    return n


async def test_what_was_said_is_said_again_whatever_the_server_writes() -> None:
    for is_late in (False, True):
        server = ScriptedModel(lambda ask: "la\n" * (ask.max_tokens or 0))
        conversation = Conversation()
        model = ReplayedModel(server, ANSWERS, max_tokens=64, is_late=is_late)
        events = await listen(Agent(model, [look]), conversation=conversation)
        assert end_of(events).output == ANSWERS[1].content
        assert [event.call_id for event in of(CallDispatched, events)] == ["c1", "c2"]
        assert [m for m in conversation.messages if m.role == "assistant"] == ANSWERS
        asks: list[Ask] = server.asks
        assert [(ask.choice, ask.extra["ignore_eos"]) for ask in asks] == [("none", True)] * 2
        assert asks[1].max_tokens == len(ANSWERS[1].content) // 4


async def test_words_come_while_the_server_writes() -> None:
    server = ScriptedModel(lambda ask: "la\n" * (ask.max_tokens or 0))
    model = ReplayedModel(server, ANSWERS[1:], max_tokens=64)
    assert len(of(Text, await listen(Agent(model)))) > 1
    late = ReplayedModel(server, ANSWERS[1:], max_tokens=64, is_late=True)
    first = [event async for event in late.stream(Ask(messages=(Message("user", "go"),)))]
    assert len(first) > 1


async def test_it_reads_ahead_where_the_server_does() -> None:
    server = ScriptedModel([])
    model = ReplayedModel(server, ANSWERS, max_tokens=64)
    await model.prefill(Ask(messages=(Message("user", "go"),)))
    assert [ask.choice for ask in server.reads] == ["none"]
