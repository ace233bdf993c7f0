"""Tools that come late are told in the words that the template has for tools."""

import json

import pytest
from tests.chat.assembly.test_spans import WITH_TOOLS
from tests.engine.tiny import TOKENIZER
from tests.server.serving import CHATML

from hotloop.chat.assembly.tool_words import ToolWords
from hotloop.chat.formats import choose_format
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Tool
from hotloop.models.template import ChatTemplate
from hotloop.stable.late import LateTools

READ = Tool("read", 'Reads a "file".', {"type": "object", "properties": {"path": {"type": "string"}}})
LIST = Tool("list", "", {"type": "object"})
OPENING = "From here on you can also call these functions:\n\n"


def words(source: str) -> ToolWords:
    template = ChatTemplate(source, bos_token="", eos_token="")
    tool_format = choose_format(template, TOKENIZER, "hermes" if "tools" in source else "generic")

    def word(tools: tuple[Tool, ...]) -> str:
        messages, shown = tool_format.prepare((Message("user", "."),), tools)
        return template.render(messages, tools=shown)

    return ToolWords(word)


TAGGED = (
    "{% if tools %}<tools>\n{% for tool in tools %}<function>\n<name>{{ tool.function.name }}</name>"
    "<about>{{ tool.function.description }}</about>\n</function>\n{% endfor %}</tools>{% endif %}"
)
TAGGED_WORDS = (
    '<function>\n<name>read</name><about>Reads a "file".</about>\n</function>\n'
    "<function>\n<name>list</name><about></about>\n</function>"
)
TYPED = (
    "namespace functions {\n\n{% for tool in tools or [] %}// {{ tool.function.description }}\n"
    "type {{ tool.function.name }} = () => any;\n\n{% endfor %}} // namespace functions"
)
LISTED = "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (WITH_TOOLS, "\n".join('{"type": "function", "function": ' + each + "}" for each in ("READ", "LIST"))),
        (CHATML, "READ\nLIST"),
        (LISTED, ", ".join('{"type": "function", "function": ' + each + "}" for each in ("READ", "LIST"))),
        (TAGGED, TAGGED_WORDS),
        (TYPED, '// Reads a "file".\ntype read = () => any;\n\n// \ntype list = () => any;'),
    ],
)
def test_what_the_template_puts_in_for_more_tools(source: str, expected: str) -> None:
    said = words(source).say(LateTools((READ, LIST)))
    if "READ" not in expected:
        assert said == OPENING + expected
        return
    assert said.startswith(OPENING)
    found, decoder, text = [], json.JSONDecoder(), said.removeprefix(OPENING)
    while text:
        tool, end = decoder.raw_decode(text)
        found.append(tool.get("function", tool))
        text = text[end:].lstrip(", \n")
    assert [each["name"] for each in found] == ["read", "list"]
    assert [each["parameters"] for each in found] == [READ.parameters, LIST.parameters]
    assert found[0]["description"] == READ.description


@pytest.mark.parametrize(
    "source", ["{{ tools | length }}", "{% if tools | length > 1 %}{{ raise_exception('no') }}{% endif %}", "-"]
)
def test_else_each_is_a_line_of_json(source: str) -> None:
    template = ChatTemplate(source, bos_token="", eos_token="")
    said = ToolWords(lambda tools: template.render((), tools=tools)).say(LateTools((READ, LIST)))
    lines = said.removeprefix(OPENING).split("\n")
    assert [json.loads(line)["name"] for line in lines] == ["read", "list"]
    assert json.loads(lines[0]) == {"name": "read", "description": READ.description, "parameters": READ.parameters}


def test_what_went_is_named() -> None:
    said = words(CHATML).say(LateTools((LIST,), ("read", "write")))
    assert said.endswith("\n\nFrom here on these functions can no longer be called: read, write")


def test_what_was_worded_once_is_not_worded_again() -> None:
    num_asked = 0

    def word(tools: tuple[Tool, ...]) -> str:
        nonlocal num_asked
        num_asked += 1
        raise RequestError("no")

    said = ToolWords(word)
    assert said.say(LateTools((READ,))) == said.say(LateTools((READ,)))
    assert num_asked == 1
