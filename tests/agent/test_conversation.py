import os
from pathlib import Path

import pytest

from hotloop.agent.conversation import Conversation
from hotloop.core.errors import ConfigError
from hotloop.core.message import Message, ToolCall

MESSAGES = (
    Message("system", "s"),
    Message("user", "ü"),
    Message("assistant", "", tool_calls=(ToolCall("c1", "find", '{"a": 1}'),)),
    Message("tool", "42", name="find", tool_call_id="c1"),
)


def test_saved_and_taken_up_again(tmp_path: Path) -> None:
    conversation = Conversation(MESSAGES)
    conversation.save(tmp_path / "talk.json")
    again = Conversation.load(tmp_path / "talk.json")
    assert (again.messages, again.session_id) == (MESSAGES, conversation.session_id)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"session_id": 1, "messages": []}', '{"session_id": "a"}'])
def test_what_is_no_conversation(text: str) -> None:
    with pytest.raises(ConfigError, match="not a saved conversation"):
        Conversation.from_json(text)


def test_a_fork_goes_its_own_way() -> None:
    base = Conversation(MESSAGES)
    fork = base.fork()
    fork.add(Message("user", "more"))
    assert (len(base), len(fork)) == (4, 5)
    assert fork.session_id != base.session_id


def test_a_save_replaces_the_file_whole(tmp_path: Path) -> None:
    """Whoever has the old file open, or stops the program halfway, never sees half of a conversation."""
    path, old = tmp_path / "talk.json", tmp_path / "old.json"
    conversation = Conversation(MESSAGES)
    conversation.save(path)
    os.link(path, old)
    conversation.add(Message("user", "more"))
    conversation.save(path)
    assert (len(Conversation.load(old)), len(Conversation.load(path))) == (4, 5)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old.json", "talk.json"]


def test_a_saved_conversation_is_private(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text("{}")
    path.chmod(0o644)
    Conversation(MESSAGES).save(path)
    assert path.stat().st_mode & 0o777 == 0o600
