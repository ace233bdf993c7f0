"""Every family's template tells the family, and calls go through it and the parser and back unchanged."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.calling_templates import TEMPLATED, calling_template
from tests.chat.speaking import FORMATS, TAGGED, Language, hear, join_calls, to_json, write_call
from tests.chat.test_families import MARKER, is_unsayable
from tests.properties import examples

from hotloop.chat.formats import choose_format
from hotloop.chat.prompt import ChatInput, Prompts
from hotloop.chat.tools import ToolChoice
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.models.template import ChatTemplate

every_template = pytest.mark.parametrize("name", TEMPLATED)
TYPES = {"s": "string", "n": "integer", "b": "boolean", "list": "array", "object": "object"}
TOOLS = tuple(
    Tool(name, parameters={"type": "object", "properties": {key: {"type": kind} for key, kind in TYPES.items()}})
    for name in ("f", "g.h-i_1")
)
# What templates, grammars and clients may all say: an argument with a family's own words in it is said as text.
WORDS = ("</tool_call>", "<tool_call>", "<invoke name=", "</invoke>", "```", "call:")
MARKS = st.sampled_from([*"<>{}\"'\\:,`\n ", *WORDS])
texts = st.lists(st.text("aé1") | MARKS, max_size=6).map("".join).filter(lambda text: text not in ("null", "None"))
keys = st.text("abc_", min_size=1, max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2),
    max_leaves=5,
)
KINDS = {
    "s": texts,
    "n": st.integers(-(10**9), 10**9),
    "b": st.booleans(),
    "list": st.lists(values, max_size=3),
    "object": st.dictionaries(keys, values, max_size=3),
}
arguments = st.fixed_dictionaries({}, optional=KINDS).map(lambda args: {key: args[key] for key in TYPES if key in args})
calls = st.lists(st.tuples(st.sampled_from([tool.name for tool in TOOLS]), arguments), min_size=1, max_size=3)


@cache
def language_of(name: str) -> Language:
    return Language(name, TOOLS, ToolChoice())


@cache
def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(calling_template(name), bos_token="", eos_token="<|im_end|>")


def prompts_of(name: str) -> Prompts:
    tokenizer = FORMATS[name][1]
    return Prompts(template_of(name), tokenizer, choose_format(template_of(name), tokenizer))


def message(content: str, written: list[tuple[str, dict[str, Any]]]) -> Message:
    called = (ToolCall(f"call_{i:024}", tool, to_json(args)) for i, (tool, args) in enumerate(written))
    return Message("assistant", content, tool_calls=tuple(called))


@every_template
def test_the_template_tells_the_family(name: str) -> None:
    tool_format, tokenizer = FORMATS[name]
    found = choose_format(template_of(name), tokenizer)
    assert (type(found), found.name) == (type(tool_format), tool_format.name)
    assert found.grammar(TOOLS, ToolChoice()) == tool_format.grammar(TOOLS, ToolChoice())


@pytest.mark.sampled(4)
@every_template
@settings(max_examples=examples(25))
@given(written=calls, prose=st.sampled_from(["", "Well.", "a < b"]))
def test_what_the_template_writes_is_accepted_and_read_back(
    name: str, written: list[tuple[str, dict[str, Any]]], prose: str
) -> None:
    if is_unsayable_in(name, written):
        return
    prompts, (tool_format, _) = prompts_of(name), FORMATS[name]
    asked = ChatInput(messages=(Message("user", "hi"), message(prose, written)), is_answer_next=False)
    answer = prompts.chat(asked).text.rpartition("<|im_start|>assistant\n")[2].removesuffix("<|im_end|>\n")
    assert language_of(name).accepts(answer)
    heard = hear(tool_format.parser(TOOLS), *answer)
    assert (heard.parsed, heard.text.rstrip("\n")) == (written, prose)


@pytest.mark.sampled(4)
@every_template
@settings(max_examples=examples(12))
@given(written=calls, prose=st.sampled_from(["", "Well.\n", "a < b "]), is_respelt=st.booleans())
def test_what_the_model_wrote_is_what_it_reads_next(
    name: str, written: list[tuple[str, dict[str, Any]]], prose: str, is_respelt: bool
) -> None:
    """In the same tokens, also where a client spells the arguments anew."""
    if is_unsayable_in(name, written):
        return
    prompts, tokenizer = prompts_of(name), FORMATS[name][1]
    asked = ChatInput(messages=(Message("user", "hi"),), tools=TOOLS)
    before = prompts.chat(asked)
    answer = prose + join_calls(name, [write_call(name, tool, args) for tool, args in written])
    heard = hear(prompts.parser(TOOLS), *answer)
    prompts.remember(before.token_ids, tokenizer.encode(answer + "<|im_end|>"))
    assert heard.parsed == written
    spelt = [(tool, json.dumps(json.loads(args), indent=1) if is_respelt else args) for tool, args in heard.calls]
    called = tuple(ToolCall(call_id, *call) for call_id, call in zip(heard.ids, spelt, strict=True))
    turns = (Message("assistant", heard.text, tool_calls=called), Message("tool", "1", tool_call_id=heard.ids[0]))
    after = prompts.chat(replace(asked, messages=asked.messages + turns))
    known = [*before.token_ids, *tokenizer.encode(answer + "<|im_end|>")]
    assert after.token_ids[: len(known)] == known


def is_unsayable_in(name: str, written: list[tuple[str, dict[str, Any]]]) -> bool:
    """`accepts` takes special tokens for what they are, so arguments may not spell them there."""
    is_marked = name.endswith("_special") and MARKER.search(str(written)) is not None
    return is_marked or (name.startswith(TAGGED) and any(is_unsayable(args) for _, args in written))


def test_kimis_calls_are_numbered_as_the_model_did() -> None:
    prompts = prompts_of("kimi_special")
    asked = ChatInput(messages=(Message("user", "hi"), message("", [("f", {}), ("g.h-i_1", {})])), tools=TOOLS)
    assert "functions.g.h-i_1:1<|tool_call_argument_begin|>{}" in prompts.chat(asked).text
    answer = write_call("kimi", "f", {}).replace(":0", ":7")
    assert language_of("kimi_special").accepts(answer)
    heard = hear(prompts.parser(TOOLS), answer)
    called = (ToolCall(heard.ids[0].replace("call_", "toolu_"), "f", "{}"),)
    turns = (Message("assistant", "", tool_calls=called), Message("tool", "1", tool_call_id=called[0].id))
    prompt = prompts.chat(replace(asked, messages=asked.messages + turns))
    assert answer in prompt.text
    assert not prompt.changes
    prepared, _ = FORMATS["kimi"][0].prepare(asked.messages + turns, TOOLS)
    assert [each.tool_call_id for each in prepared] == [None, None, None, "functions.f:7"]
