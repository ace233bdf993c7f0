"""The built-in tools that clients run themselves: what they take, and their calls as items and back."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import RequestError
from hotloop.core.message import Tool
from hotloop.server.chat_input import check_tool
from hotloop.wire.builtin import (
    CALL_ITEMS,
    find_anthropic,
    find_openai,
    read_call_item,
    read_result_item,
    write_call_item,
)
from hotloop.wire.field import Field
from hotloop.wire.part import Image, Opaque, Text

SCREEN = {"display_width_px": 1024, "display_height_px": 768}
ANTHROPIC: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_20250124": ("bash", {"command": "ls"}),
    "text_editor_20241022": ("str_replace_editor", {"command": "undo_edit", "path": "/a"}),
    "text_editor_20250124": (
        "str_replace_editor",
        {"command": "insert", "path": "/a", "insert_line": 1, "new_str": "b"},
    ),
    "text_editor_20250429": ("str_replace_based_edit_tool", {"command": "view", "path": "/a", "view_range": [1, -1]}),
    "text_editor_20250728": (
        "str_replace_based_edit_tool",
        {"command": "insert", "path": "/a", "insert_line": 1, "insert_text": "b"},
    ),
    "text_editor_20991231": ("str_replace_based_edit_tool", {"command": "create", "path": "/a", "file_text": "b"}),
    "memory_20250818": ("memory", {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"}),
    "computer_20241022": ("computer", {"action": "left_click", "coordinate": [1, 2]}),
    "computer_20250124": ("computer", {"action": "scroll", "scroll_direction": "up", "scroll_amount": 3}),
    "computer_20251124": ("computer", {"action": "zoom", "region": [0, 0, 10, 10]}),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "shell": {"commands": ["ls", "cat a"], "timeout_ms": 1000},
    "local_shell": {"command": ["bash", "-lc", "ls"], "working_directory": "/repo", "env": {"A": "b"}},
    "apply_patch": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b\n"},
    "computer": {
        "actions": [
            {"type": "click", "button": "left", "x": 1, "y": 2},
            {"type": "double_click", "x": 1, "y": 2, "keys": []},
        ]
    },
    "computer_use_preview": {"action": {"type": "type", "text": "hello"}},
}


@pytest.mark.parametrize("kind", ANTHROPIC)
def test_anthropic_tools_take_what_is_published(kind: str) -> None:
    name, arguments = ANTHROPIC[kind]
    found = find_anthropic(kind, {"type": kind, **SCREEN, "enable_zoom": True})
    assert found
    assert (found.name, bool(found.description)) == (name, True)
    jsonschema.validate(arguments, found.schema)
    check_tool(Tool(found.name, found.description, found.schema), "tools[0]")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, found.schema)


def test_versions_differ_in_what_they_take() -> None:
    def taken(kind: str, **tool: Any) -> set[str]:
        found = find_anthropic(kind, tool)
        assert found
        [first] = [
            found.schema["properties"][key] for key in ("command", "action") if key in found.schema["properties"]
        ]
        return {*found.schema["properties"], *first["enum"]}

    assert "undo_edit" in taken("text_editor_20250124") - taken("text_editor_20250728")
    assert "insert_text" in taken("text_editor_20250728") - taken("text_editor_20250429")
    assert "zoom" not in taken("computer_20251124")
    assert "zoom" in taken("computer_20251124", enable_zoom=True) - taken("computer_20250124", enable_zoom=True)
    assert "scroll" in taken("computer_20250124") - taken("computer_20241022")
    screen = find_anthropic("computer_20250124", SCREEN)
    assert screen
    assert "1024 pixels wide and 768 high" in screen.description


@pytest.mark.parametrize("kind", ["web_search_20250305", "code_execution_20250825", "bash", "bash_2025", "custom"])
def test_hosted_tools_are_not_among_them(kind: str) -> None:
    assert find_anthropic(kind, {}) is None
    assert find_openai({"type": kind}) is None


def test_a_shell_in_a_container_is_hosted() -> None:
    for environment in ({"type": "container_auto"}, {"type": "container_reference", "container_id": "c"}):
        assert find_openai({"type": "shell", "environment": environment}) is None
    assert find_openai({"type": "shell", "environment": {"type": "local"}})


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_arguments_become_an_item_and_come_back(kind: str) -> None:
    found = find_openai({"type": kind})
    assert found
    jsonschema.validate(ARGUMENTS[kind], found.schema)
    written = json.dumps(ARGUMENTS[kind])
    item = write_call_item(f"{found.name}_call", written)
    assert read_call_item(Field(item), item["type"]) == written


def test_a_deleted_file_has_no_diff_on_the_wire() -> None:
    written = json.dumps({"type": "delete_file", "path": "a.py", "diff": ""})
    item = write_call_item("apply_patch_call", written)
    assert item["operation"] == {"type": "delete_file", "path": "a.py"}
    assert read_call_item(Field(item), "apply_patch_call") == written


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "path", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
names = st.sampled_from(["commands", "command", "env", "timeout_ms", "type", "path", "diff", "action", "actions"])


@given(kind=st.sampled_from(sorted(CALL_ITEMS)), arguments=st.dictionaries(names, values).map(json.dumps) | st.text())
def test_an_item_can_be_written_of_whatever_a_model_says(kind: str, arguments: str) -> None:
    item = write_call_item(kind, arguments)
    assert item["type"] == kind
    if kind == "shell_call":
        assert all(isinstance(each, str) for each in item["action"]["commands"])
    read_call_item(Field(item), kind)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ([{"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}], "a\nexit code: 0"),
        ([{"stdout": "", "stderr": "no", "outcome": {"type": "exit", "exit_code": 2}}], "stderr:\nno\nexit code: 2"),
        ([{"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}], "a\ntimed out"),
        ([{"stdout": "a"}, {"stdout": "b"}], "a\nexit code: 0\nb\nexit code: 0"),
        ("as it is", "as it is"),
    ],
    ids=str,
)
def test_what_a_shell_returned(output: Any, said: str) -> None:
    parts, has_failed = read_result_item(Field({"call_id": "1", "output": output}), "shell_call_output")
    assert (parts, has_failed) == ((Text(said),), False)


def test_what_the_others_returned() -> None:
    failed = Field({"status": "failed", "output": "no such file"})
    assert read_result_item(failed, "apply_patch_call_output") == ((Text("no such file"),), True)
    assert read_result_item(Field({"status": "completed"}), "apply_patch_call_output") == ((Text("completed"),), False)
    screen = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"}
    assert read_result_item(Field({"output": screen}), "computer_call_output")[0] == (Image(screen["image_url"]),)
    [kept] = read_result_item(
        Field({"output": {"type": "computer_screenshot", "file_id": "f"}}), "computer_call_output"
    )[0]
    assert isinstance(kept, Opaque)
    with pytest.raises(RequestError, match="output is missing"):
        read_result_item(Field({}), "computer_call_output")
