"""Every token of a prompt knows where it came from."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.chat.assembly.merging import merging_tokenizer, spell
from tests.chat.speaking import QWEN
from tests.chat.test_prompt import WITH_CALLS
from tests.engine.tiny import TOKENIZER
from tests.server.serving import CHATML

from hotloop.chat.formats import choose_format
from hotloop.chat.prompt import ChatInput, Prompt, Prompts
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer

# As Qwen's templates word tools.
WITH_TOOLS = """{%- if tools %}{{ '<|im_start|>system\\nYou have tools:' }}
{%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}{{ '\\nUse them.<|im_end|>\\n' }}{% endif %}
""" + WITH_CALLS.lstrip()
TRIMMING = CHATML.replace("message.content", "message.content | trim")
THINKING = CHATML.replace("message.content", "message.content.split('</think>')[-1]")
SHY = CHATML.replace("message.content", "(message.content if message.content | length < 9 else 'too long')")

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "description": "{ odd"}}}
TOOLS = (Tool("write", "Writes {", SCHEMA), Tool("read", 'Reads "f"', SCHEMA))
MESSAGES = (
    Message("system", "a"),
    Message("user", "user"),
    Message("assistant", "a", tool_calls=(ToolCall("1", "read", '{"a": "a"}'), ToolCall("2", "write", "{}"))),
    Message("tool", " caf\u00e9 a \n"),
    Message("user", ""),
    Message("user", "a"),
)


def make(source: str, messages: Sequence[Message], tools: Sequence[Tool] = (), tokenizer: Tokenizer = QWEN) -> Prompt:
    template = ChatTemplate(source, bos_token="", eos_token="<|im_end|>")
    prompts = Prompts(template, tokenizer, choose_format(template, tokenizer))
    return prompts.chat(ChatInput(messages=tuple(messages), tools=tuple(tools)))


def told(prompt: Prompt, tokenizer: Tokenizer = QWEN) -> list[tuple[str, int | None, str]]:
    """What the spans say, but for the template's own words; fails if they leave out a token or a character."""
    assert [span.begin for span in prompt.spans] == [0, *(span.end for span in prompt.spans[:-1])]
    assert prompt.spans[-1].end == len(prompt.token_ids)
    assert "".join(prompt.text[span.place.begin : span.place.end] for span in prompt.spans) == prompt.text
    for span in prompt.spans:
        words = tokenizer.decode(prompt.token_ids[span.begin : span.end], keep_special=True)
        assert words == prompt.text[span.place.begin : span.place.end]
    parts = [span for span in prompt.spans if span.kind != "template"]
    return [(span.kind, span.index, prompt.text[span.place.begin : span.place.end]) for span in parts]


def test_messages_calls_and_tools_are_told_apart() -> None:
    parts = told(make(WITH_TOOLS, MESSAGES, TOOLS))
    assert [(kind, index) for kind, index, _ in parts[:2]] == [("tool", 1), ("tool", 0)]  # in the order of the prompt
    assert parts[0][2].startswith('{"type": "function", "function": {"name": "read"')
    assert parts[0][2].endswith('{ odd"}}}}}')
    assert parts[2:] == [
        ("system", 0, "a"),
        ("message", 1, "user"),
        ("message", 2, "a"),
        ("call", 2, 'read", "arguments": {"a": "a"}'),
        ("call", 2, 'write", "arguments": {}'),
        ("message", 3, "caf\u00e9 a"),
        ("message", 5, "a"),
    ]


def test_so_they_are_where_hotloop_words_the_tools() -> None:
    parts = told(make(CHATML, MESSAGES, TOOLS))
    assert [(kind, index) for kind, index, _ in parts] == [
        ("system", 0),
        ("tool", 1),
        ("tool", 0),
        *[("message", 1), ("message", 2), ("call", 2), ("call", 2), ("message", 3), ("message", 5)],
    ]
    assert parts[1][2].startswith('{"name": "read"')


@pytest.mark.parametrize("source", [CHATML, TRIMMING])
def test_whitespace_around_a_message_may_be_trimmed(source: str) -> None:
    assert told(make(source, [Message("user", "\n hi "), Message("user", "  ")])) == [("message", 0, "hi")]


def test_of_a_message_that_is_cut_what_is_left_is_found() -> None:
    messages = [Message("user", "hi"), Message("assistant", "<think>hm</think>ok")]
    assert told(make(THINKING, messages)) == [("message", 0, "hi"), ("message", 1, "ok")]


def test_a_template_that_minds_the_marks_is_searched() -> None:
    messages = [Message("user", "12345678"), Message("assistant", "123456789"), Message("user", "12345678")]
    assert told(make(SHY, messages)) == [("message", 0, "12345678"), ("message", 2, "12345678")]
    private = [Message("user", "\U000f0000 x"), Message("user", "y")]
    assert told(make(CHATML, private)) == [("message", 0, "\U000f0000 x"), ("message", 1, "y")]


def test_tools_that_are_not_worded_in_json_reach_to_what_follows() -> None:
    source = "{% for t in tools %}<{{ t.function.name }}>{% endfor %}|{{ messages[0].content }}"
    prompts = Prompts(ChatTemplate(source, bos_token="", eos_token=""), QWEN)
    conversation = ChatInput(messages=(Message("user", "hi"),), tools=(Tool("f"), Tool("g")))
    assert told(prompts.chat(conversation)) == [("tool", 0, "f><"), ("tool", 1, "g>|"), ("message", 0, "hi")]


def test_tokens_are_counted_where_the_tokenizer_normalises() -> None:
    tokenizer = merging_tokenizer(is_normalised=True)
    template = ChatTemplate("{{ messages[0].content }}|{{ messages[1].content }}", bos_token="", eos_token="")
    messages = (Message("user", "e\u0301" * 3), Message("user", "hello"))
    prompt = Prompts(template, tokenizer).chat(ChatInput(messages=messages))
    [first, _, second] = prompt.spans
    assert tokenizer.decode(prompt.token_ids[first.begin : first.end]) == "\u00e9" * 3
    assert tokenizer.decode(prompt.token_ids[second.begin : second.end]) == "hello"


def test_a_token_belongs_to_the_part_it_begins_in() -> None:
    tokenizer = merging_tokenizer()
    template = ChatTemplate("he{{ messages[0].content }}", bos_token="", eos_token="")
    prompt = Prompts(template, tokenizer).chat(ChatInput(messages=(Message("user", "llo!"),)))
    assert prompt.token_ids == spell(tokenizer, "hello", "!")
    assert [(span.kind, span.begin, span.end) for span in prompt.spans] == [("template", 0, 1), ("message", 1, 2)]


def test_a_text_is_one_part_and_tokens_are_none() -> None:
    prompts = Prompts(None, TOKENIZER)
    [span] = prompts.text("hello").spans
    assert (span.kind, span.begin, span.end) == ("text", 0, 5)
    assert prompts.tokens([1, 2]).spans == ()
