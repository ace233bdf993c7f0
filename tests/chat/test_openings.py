"""What opens a call by a tool's name alone, character by character: the families' tests have the grammar's side."""

import pytest

from hotloop.chat.json_calls import JsonCallParser, JsonMarks
from hotloop.chat.lark import FENCE
from hotloop.core.message import Tool
from hotloop.core.stream import TextDelta

NAMES = ("f", "fg", "a.b-c_1")


def num_read(text: str, *, is_fenced: bool = True) -> int | None:
    """After how many characters the opening is whole; None if it never is."""
    parser = JsonCallParser(JsonMarks("<tool_call>", has_fences=True), [Tool(name) for name in NAMES])
    parser.push(FENCE if is_fenced else "")
    for i, char in enumerate(text, 1):
        if any(isinstance(event, TextDelta) for event in parser.push(char)):
            return None
        if parser.num_calls:
            return i
    return None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["arguments", "parameters"])
@pytest.mark.parametrize("space", ["", " ", "\n    ", "\t\r\n"])
def test_spaces_may_stand_between_words(name: str, key: str, space: str) -> None:
    words = ("{", '"name"', ":", f'"{name}"', ",", f'"{key}"', ":", "{")
    alone = space.join(words)
    assert num_read(alone, is_fenced=False) == len(alone)
    for head in ("", "json"):
        fenced = head + space + alone
        assert num_read(fenced + '"x": 1}') == len(fenced)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "g", "arguments": {',
        '{"name": "f ", "arguments": {',
        '{"name": "f", "argu ments": {',
        '{"name": "f" "arguments": {',
        '{"name": "f", "arguments": [',
        '{"name": "f", "arguments": "{',
        '{"arguments": {}, "name": "f"',
        ' json {"name": "f", "arguments": {',
        'js on {"name": "f", "arguments": {',
        'JSON {"name": "f", "arguments": {',
        'jsonl {"name": "f", "arguments": {',
        '[{"name": "f", "arguments": {',
        '\u00a0{"name": "f", "arguments": {',
    ],
)
def test_nothing_else_opens_a_call(text: str) -> None:
    assert num_read(text) is None


def test_the_label_is_the_fences() -> None:
    assert num_read('json{"name": "f", "arguments": {', is_fenced=False) is None
