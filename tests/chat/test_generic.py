"""Tools worded by hotloop itself: the same words every time, in roles that any template knows."""

import json

from hotloop.chat.formats import word_messages, word_tools
from hotloop.core.message import Message, Tool, ToolCall

TOOL = Tool("f", "Does {this}.", {"type": "object", "properties": {"b": {"type": "null"}, "a": {}}, "required": ["b"]})
CALLS = (ToolCall("1", "f", '{"b":null}'), ToolCall("2", "g", ""))


def test_tools_are_worded_in_the_order_they_are_given_in() -> None:
    line = word_tools([TOOL, Tool("g")]).splitlines()[1]
    assert list(json.loads(line)["parameters"]["properties"]) == ["b", "a"]
    assert json.loads(line)["description"] == "Does {this}."


def test_instructions_follow_the_system_message_or_stand_for_one() -> None:
    user = Message("user", "hi")
    [system, same] = word_messages((Message("system", "Be kind."), user), (TOOL,))
    assert system.content == f"Be kind.\n\n{word_tools([TOOL])}"
    assert same == user
    assert word_messages((user,), (TOOL,)) == (Message("system", word_tools([TOOL])), user)
    assert word_messages((user,), (TOOL,), has_system=False) == (Message("user", f"{word_tools([TOOL])}\n\nhi"),)
    assert word_messages((user,), ()) == (user,)


def test_calls_and_results_are_worded_as_they_were_written() -> None:
    history = (
        Message("user", "go"),
        Message("assistant", "Sure.", tool_calls=CALLS),
        Message("tool", "one", tool_call_id="1"),
        Message("tool", "two", tool_call_id="2"),
        Message("assistant", "Done."),
    )
    assert word_messages(history, ()) == (
        Message("user", "go"),
        Message(
            "assistant",
            'Sure.\n<tool_call>\n{"name": "f", "arguments": {"b":null}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        ),
        Message("user", "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"),
        Message("assistant", "Done."),
    )


def test_a_later_turn_only_adds() -> None:
    history = (Message("user", "go"), Message("assistant", tool_calls=CALLS), Message("tool", "one"))
    before = word_messages(history[:2], (TOOL,))
    assert word_messages(history, (TOOL,))[:3] == before
