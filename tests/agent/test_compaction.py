import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.runs import listen, of

from hotloop.agent.agent import Agent
from hotloop.agent.compaction import Compaction
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import Compacted
from hotloop.agent.model import Ask
from hotloop.agent.scripted import Part, ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message, ToolCall


@tool
def read(page: int) -> str:
    """A page."""
    return f"page {page} " * 50


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
