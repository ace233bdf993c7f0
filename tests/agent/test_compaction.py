from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.runs import end_of, listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.compaction import Compaction
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import Compacted
from hotloop.agent.model import Ask
from hotloop.agent.scripted import Part, ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import ConfigError, RemoteError
from hotloop.core.message import Message, ToolCall
from hotloop.wire.event import Ended
from hotloop.wire.event import Event as WireEvent
from hotloop.wire.usage import ApiUsage

WINDOW = 4000


@tool
def read(page: int) -> str:
    """A page."""
    return f"page {page} " * 50


class StrictModel(ScriptedModel):
    """Refuses what does not fit its window, as servers do. A token is two characters."""

    async def stream(self, ask: Ask) -> AsyncGenerator[WireEvent, None]:
        num_prompt = sum(len(message.content) for message in ask.messages) // 2
        if num_prompt > WINDOW:
            raise RemoteError(f"{num_prompt} prompt tokens do not fit", status=400)
        async for event in super().stream(ask):
            yield replace(event, usage=ApiUsage(num_prompt, num_output=9)) if isinstance(event, Ended) else event


def talk(num_turns: int, calls_a_turn: int = 1) -> list[Message]:
    messages = [Message("system", "s"), Message("user", "task")]
    for turn in range(num_turns):
        calls = tuple(ToolCall(f"{turn}-{i}", "read", "{}") for i in range(calls_a_turn))
        messages.append(Message("assistant", "", tool_calls=calls))
        messages += [Message("tool", "result", tool_call_id=call.id) for call in calls]
    return messages


@given(num_turns=st.integers(0, 12), calls=st.integers(1, 4), num_kept=st.integers(0, 9))
async def test_a_cut_never_parts_a_call_from_its_results(num_turns: int, calls: int, num_kept: int) -> None:
    messages = tuple(talk(num_turns, calls))
    compaction = Compaction(window_tokens=10, num_kept=num_kept)
    model = ScriptedModel(lambda _: "what happened")
    shorter, _ = await compaction.shrink(model, Ask(messages=messages))
    assert shorter[:2] == messages[:2]
    open_calls: set[str] = set()
    for message in shorter:
        if message.role == "tool":
            assert message.tool_call_id in open_calls
        open_calls |= {call.id for call in message.tool_calls}
    kept = [message for message in shorter if "what happened" not in message.content]
    assert tuple(kept[2:]) == messages[len(messages) - len(kept) + 2 :]
    assert len(kept) >= min(num_kept, len(messages))


async def test_a_run_that_outgrows_its_window() -> None:
    def answer(ask: Ask) -> Part:
        if ask.choice == "none":
            return "Pages were read."
        num_read = sum(len(message.tool_calls) for message in ask.messages)
        return ScriptedCall("read", page=num_read) if not any("Pages" in m.content for m in ask.messages) else "done"

    conversation = Conversation()
    model = ScriptedModel(answer)
    agent = Agent(model, [read], "Be brief.", compaction=Compaction(window_tokens=500, num_kept=2))
    events = await listen(agent, "Read.", conversation=conversation)
    [compacted] = of(Compacted, events)
    assert compacted.num_messages_after < compacted.num_messages_before
    assert compacted.usage.num_prompt > 0
    [summarised] = [ask for ask in model.asks if ask.choice == "none"]
    before = model.asks[model.asks.index(summarised) - 1]
    assert summarised.messages[:-1] == before.messages[: len(summarised.messages) - 1], "what was read is read no more"
    assert summarised.tools == before.tools
    assert [m.content for m in conversation.messages[:2]] == ["Be brief.", "Read."]
    assert conversation.messages[2].content.endswith("Pages were read.")


async def test_a_conversation_that_outgrows_its_window_run_by_run() -> None:
    """Each run has one turn, so that none of them grows much by itself; it is the conversation that does."""
    model = ScriptedModel(lambda ask: "Much was said." if ask.choice == "none" else "word " * 100)
    agent = Agent(model, compaction=Compaction(window_tokens=500, num_kept=0))
    conversation = Conversation()
    shortened: list[Compacted] = []
    for number in range(6):
        conversation = Conversation.from_json(conversation.to_json())
        shortened += of(Compacted, await listen(agent, f"tell {number}", conversation=conversation))
        assert model.asks[-1].messages[-1].content == f"tell {number}", "what is asked is never left out"
    assert shortened
    assert conversation.fork().num_tokens == conversation.num_tokens > 0


async def test_nothing_is_left_out_for_an_empty_summary() -> None:
    messages = tuple(talk(6))
    shorter, _ = await Compaction(window_tokens=10).shrink(ScriptedModel(lambda _: ""), Ask(messages=messages))
    assert shorter == messages


def test_settings() -> None:
    with pytest.raises(ConfigError):
        Compaction(window_tokens=0)
    with pytest.raises(ConfigError):
        Compaction(window_tokens=10, fill=1.5)


@pytest.mark.parametrize("num_kept", [0, 8])
async def test_a_single_result_that_fills_the_window(num_kept: int) -> None:
    """As of a conversation that a model with a larger window had. It is the latest, so that no summary removes it."""
    messages = [*talk(1)[:-1], Message("tool", "x" * 100 * WINDOW, tool_call_id="0-0")]
    model = StrictModel(lambda ask: "Much." if ask.choice == "none" else "done")
    agent = Agent(model, [read], compaction=Compaction(window_tokens=WINDOW, num_kept=num_kept))
    conversation = Conversation(messages)
    events = await listen(agent, "Go on.", conversation=conversation)
    assert end_of(events).output == "done"
    [compacted] = of(Compacted, events)
    assert compacted.num_results_cut == (1 if num_kept else 0)
    assert conversation.num_tokens < WINDOW
    assert (await agent.run("And?", conversation=conversation)).output == "done"


async def test_results_that_fill_the_window_together() -> None:
    """Each is a fourth of the window; the server has counted none of them yet when the next prompt is made."""

    @tool
    def dump(n: int) -> str:
        return f"{n}" * 2 * WINDOW

    script = [[ScriptedCall("dump", n=n) for n in range(8)], "done"]
    agent = Agent(StrictModel(script), [dump], compaction=Compaction(window_tokens=WINDOW))
    conversation = Conversation()
    events = await listen(agent, conversation=conversation)
    assert end_of(events).output == "done"
    assert [event.num_results_cut for event in of(Compacted, events)] == [8]
    results = [message.content for message in conversation.messages if message.role == "tool"]
    assert [text[0] for text in results] == list("01234567")
    assert all("characters left out" in text for text in results)


async def test_results_are_not_cut_where_the_summary_is_enough() -> None:
    def answer(ask: Ask) -> Part:
        if ask.choice == "none":
            return "Pages were read."
        is_short = any("Pages" in message.content for message in ask.messages)
        return "done" if is_short else ScriptedCall("read", page=len(ask.messages))

    model = StrictModel(answer)
    agent = Agent(model, [read], compaction=Compaction(window_tokens=WINDOW, num_kept=2))
    events = await listen(agent, conversation=Conversation())
    assert [event.num_results_cut for event in of(Compacted, events)] == [0]
    assert not any("left out ..." in message.content for ask in model.asks for message in ask.messages)
