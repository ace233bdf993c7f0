"""Answers made of messages with headers, read as they come; and what a grammar lets pass of them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.speaking import byte_tokenizer, hear, hear_cut_anywhere
from tests.properties import examples

from hotloop.chat.formats import HarmonyFormat, choose_format
from hotloop.chat.harmony import HarmonyParser
from hotloop.chat.prompt import ChatInput, Prompts
from hotloop.chat.reasoning import choose_reasoning
from hotloop.chat.tools import ToolChoice
from hotloop.core.config import ServerConfig
from hotloop.core.grammar import Grammar, json_schema
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.core.stream import CallOpened, ThoughtClosed
from hotloop.engine.grammar.compiler import Compiler
from hotloop.models.template import ChatTemplate

SPECIAL = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
TOKENIZER = byte_tokenizer(*SPECIAL)
COMPILER = Compiler(TOKENIZER, TOKENIZER.vocab_size)
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "{% for call in m.tool_calls or [] %}<|start|>assistant<|channel|>commentary to=functions.{{ call.function.name }} "
    "<|constrain|>json<|message|>{{ call.function.arguments | tojson }}<|call|>{% endfor %}"
    "{% if m.content %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>{% endif %}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
HM = "<|channel|>analysis<|message|>Hm.<|end|>"
NEXT = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>Hello."
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
F = ("f", '{"a": 1}')
TOOL = Tool("f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


def read(answer: str) -> Any:
    return hear_cut_anywhere(HarmonyParser, answer).parts


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (FINAL, [("text", "Hello.")]),
        (f"{HM}{NEXT}{FINAL}", [("thought", "Hm."), ("text", "Hello.")]),
        (f"{HM}{NEXT}{FINAL}<|return|>", [("thought", "Hm."), ("text", "Hello.")]),
        (f"{HM}{NEXT}{HM}{NEXT}{CALL}<|call|>", [("thought", "Hm."), ("thought", "Hm."), F]),
        (f"{HM}{NEXT}{CALL}", [("thought", "Hm."), F]),
        (
            f"{HM}{NEXT}<|channel|>commentary<|message|>I look.<|end|>{NEXT}{CALL}",
            [("thought", "Hm."), ("text", "I look."), F],
        ),
        (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', [F]),
        ("<|channel|>analysis<|message|>It never en", [("thought", "It never en")]),
        ("<|channel|>ana", []),
        ("Hello.", [("text", "Hello.")]),
        ("<|channel|>final<|message|>a <|b", [("text", "a <|b")]),
    ],
)
def test_messages(answer: str, parts: list[tuple[str, Any]]) -> None:
    assert read(answer) == parts


def test_a_call_nobody_offered_is_not_told_as_one() -> None:
    assert hear(HarmonyParser(can_call=False), f"{CALL}<|end|>{NEXT}{FINAL}").parts == [
        ("thought", '{"a": 1}'),
        ("text", "Hello."),
    ]


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from([HM, NEXT, FINAL, CALL, "<|end|>", "<|", "a", "<|mess"]), max_size=8), st.data())
def test_how_an_answer_is_cut_changes_nothing(answer: list[str], data: st.DataObject) -> None:
    text = "".join(answer)
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    assert hear(HarmonyParser(), *pieces) == hear(HarmonyParser(), text)


def accepts(grammar: Grammar, answer: str) -> bool:
    matcher = COMPILER.compile(grammar)
    token_ids = TOKENIZER.encode(answer)
    return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())


def test_grammars() -> None:
    tool_format = HarmonyFormat(TOKENIZER, TEMPLATE)
    required = tool_format.grammar([TOOL], ToolChoice("required"))
    assert accepts(required, CALL)
    assert not accepts(required, FINAL)
    assert not accepts(required, CALL.replace("1", '"x"'))
    free = tool_format.grammar([TOOL], ToolChoice())
    spoken = f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}"
    for answer in (CALL, FINAL, spoken + CALL, spoken + FINAL):
        assert accepts(free, answer)
    assert not accepts(free, CALL.replace("functions.f", "functions.g"))
    wrapped = tool_format.wrap(json_schema({"type": "object"}))
    assert accepts(wrapped, f"<|channel|>final<|message|>{json.dumps({'a': 1})}")
    assert not accepts(wrapped, FINAL)


def test_it_is_recognised() -> None:
    template = ChatTemplate(TEMPLATE, bos_token="", eos_token="<|return|>")
    assert choose_format(template, TOKENIZER).name == "harmony"
    thinking = choose_reasoning(template, TOKENIZER)
    assert thinking
    assert (thinking.name, thinking.is_special, thinking.is_opened_by_template) == ("harmony", True, False)
    ends = {TOKENIZER.token_text(token_id) for token_id in TOKENIZER.eos_ids}
    assert ends == {"<|call|>", "<|return|>"}  # an end is that of a message


@pytest.mark.parametrize("head", ["", f"{HM}{NEXT}"])
@pytest.mark.parametrize("exact_turns", [True, False])
def test_a_call_comes_back_as_it_was_written_though_the_template_has_other_words(head: str, exact_turns: bool) -> None:
    own, published = (
        "<|start|>assistant<|channel|>commentary to=functions.{{ call.function.name }} <|constrain|>json<|message|>",
        "<|start|>assistant to=functions.{{ call.function.name }}<|channel|>commentary json<|message|>",
    )
    assert own in TEMPLATE
    template = ChatTemplate(TEMPLATE.replace(own, published), bos_token="", eos_token="")
    thinking = choose_reasoning(template, TOKENIZER)
    rules = ServerConfig(exact_turns=exact_turns)
    prompts = Prompts(template, TOKENIZER, choose_format(template, TOKENIZER), rules, thinking)
    asked = ChatInput(messages=(Message("user", "hi"),), tools=(TOOL,))
    answer = head + CALL
    before, parser = prompts.chat(asked), prompts.parser(asked.tools)
    events = parser.push(answer) + parser.finish()
    [call_id] = [event.id for event in events if isinstance(event, CallOpened)]
    thoughts = tuple(event.thought for event in events if isinstance(event, ThoughtClosed))
    turn = Message("assistant", "", tool_calls=(ToolCall(call_id, *F),), thoughts=thoughts)
    after = prompts.chat(replace(asked, messages=(*asked.messages, turn)))
    assert after.text.startswith(f"{before.text}{answer}<|call|>") is exact_turns
