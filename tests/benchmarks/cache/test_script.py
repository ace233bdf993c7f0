"""Scripts out of transcripts: what is heard, and which kind of answer it wants."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cache.script import Beat, Heard, generate_scripts, read_scripts

from hotloop.core.errors import ConfigError

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}


def call(name: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name, "arguments": "{}"}}]}


MESSAGES = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "Hello to you."},
    {"role": "user", "content": "find it"},
    call("find"),
    {"role": "tool", "content": "found"},
    call("unlisted"),
    {"role": "assistant", "content": "and another at once"},
    {"role": "tool", "content": "done"},
    {"role": "assistant", "content": "Goodbye."},
]


def write(path: Path, **fields: Any) -> Path:
    row = {"id": "a", "system": "Be kind.", "tools": [TOOL], "messages": MESSAGES} | fields
    path.write_text(json.dumps(row) + "\n")
    return path


def read(path: Path, **limits: int) -> Any:
    return read_scripts(path, **{"max_scripts": 5, "max_turns": 9, "max_chars": 9999} | limits)


def test_beats_are_what_is_heard_and_what_is_called(tmp_path: Path):
    [script] = read(write(tmp_path / "runs.jsonl"))
    assert script.system == "Be kind."
    assert script.beats == (
        Beat((Heard("hello"),)),
        Beat((Heard("find it"),), "find"),
        Beat((Heard("found", is_result=True),)),  # it called what is not listed
        Beat((Heard("done", is_result=True),)),
    )


def test_turns_are_limited(tmp_path: Path):
    [script] = read(write(tmp_path / "runs.jsonl"), max_turns=2)
    assert len(script.beats) == 2


@pytest.mark.parametrize(
    ("fields", "limits", "complaint"),
    [
        ({}, {"max_chars": 20}, "no run of two turns and fewer than 20 characters"),
        ({"messages": MESSAGES[:2]}, {}, "no run of two turns"),
        ({"tools": [{"function": {}}]}, {}, "a tool without a name"),
        ({"tools": ["find"]}, {}, "a tool without a name"),
        ({"messages": 1}, {}, "is not a transcript"),
    ],
)
def test_what_cannot_be_used_is_named(fields: Any, limits: Any, complaint: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=complaint):
        read(write(tmp_path / "runs.jsonl", **fields), **limits)


def test_generated_scripts_call_a_tool_every_turn_and_are_the_same_every_time():
    scripts = generate_scripts(max_scripts=3, max_turns=4)
    assert scripts == generate_scripts(max_scripts=3, max_turns=4)
    assert [len(script.beats) for script in scripts] == [4, 4, 4]
    assert [beat.tool for beat in scripts[0].beats] == ["find_customer", "get_order", "refund_order", "send_invoice"]
    assert [heard.is_result for beat in scripts[0].beats for heard in beat.news] == [False, True, True, True]
