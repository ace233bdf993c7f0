"""What a conversation becomes that is made shorter."""

import pytest

from hotloop.wire.field import Field, Json
from hotloop.wire.part import Text, unseal_text
from hotloop.wire.responses.compact import REQUEST, ask_summary, render_compaction
from hotloop.wire.responses.parse import parse_input
from hotloop.wire.usage import ApiUsage

RULES: Json = {"role": "developer", "content": "Be kind."}
CALLED: Json = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
RETURNED: Json = {"type": "function_call_output", "call_id": "1", "output": "x" * 500}
OLD: Json = {"type": "compaction", "encrypted_content": "hotloop:text:eA=="}


def said(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


ITEMS = [said("first"), RULES, OLD, CALLED, RETURNED, {"role": "assistant", "content": "Well."}, said("last")]


@pytest.mark.parametrize(
    ("most", "kept"), [(200, ["first", "Be kind.", "last"]), (50, ["Be kind.", "last"]), (0, ["Be kind."])]
)
def test_rules_are_kept_and_the_last_that_the_user_said(most: int, kept: list[str]) -> None:
    made = render_compaction("7", ITEMS, "It went well.", ApiUsage(9, 4, 2), most)
    *messages, compaction = made["output"]
    assert [message["content"][0]["text"] for message in messages] == kept
    assert unseal_text(compaction["encrypted_content"]) == "It went well."
    assert (made["id"], made["usage"]["total_tokens"]) == ("resp_7", 11)
    assert len({item["id"] for item in made["output"]}) == len(kept) + 1


def test_an_output_is_an_input() -> None:
    made = render_compaction("7", ITEMS, "It went well.", ApiUsage())
    turns = parse_input(Field({"input": [*made["output"], said("Go on.")]}).need("input"))
    assert [turn.role for turn in turns] == ["user", "system", "user"]
    texts = [part.text for part in turns[-1].parts if isinstance(part, Text)]
    assert (texts[0], texts[-1]) == ("last", "Go on.")
    assert texts[1].endswith("It went well.")


def test_the_request_goes_behind_the_conversation_and_keeps_what_it_begins_with() -> None:
    tools = [{"type": "function", "name": "f"}]
    given = {"model": "m", "tools": tools, "instructions": "i", "stream": True, "text": {}, "tool_choice": "required"}
    asked = ask_summary(given, ITEMS)
    assert asked["input"] == [*ITEMS, {"role": "user", "content": REQUEST}]
    assert (asked["tools"], asked["instructions"], asked["tool_choice"]) == (tools, "i", "none")
    assert asked.keys().isdisjoint(("stream", "text"))
    assert "tool_choice" not in ask_summary({"model": "m"}, ITEMS)
