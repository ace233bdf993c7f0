"""Reasoning, text and calls, read as they come: whole, unfinished, and cut anywhere."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.speaking import FORMATS, hear, hear_cut_anywhere, write_call
from tests.properties import examples

from hotloop.chat.reasoning import ReasoningFormat, ReasoningParser
from hotloop.chat.stream import CallsOnly, PlainText

THINK = ReasoningFormat("think", "<think>", "</think>")
SPECIAL = ReasoningFormat("mistral", "[THINK]", "[/THINK]", is_special=True)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = ("f", '{"a": 1}')


def make(family: str = "hermes", reasoning: ReasoningFormat = THINK, *, is_open: bool = False) -> ReasoningParser:
    inner = PlainText if family == "plain" else FORMATS[family][0].parser
    return ReasoningParser(reasoning, inner, is_open=is_open)


def read(answer: str, family: str = "hermes", reasoning: ReasoningFormat = THINK, *, is_open: bool = False) -> Any:
    return hear_cut_anywhere(lambda: make(family, reasoning, is_open=is_open), answer).parts


@pytest.mark.parametrize("family", ["hermes", "plain", "qwen3_coder", "llama3", "mistral"])
@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("Hello.", [("text", "Hello.")]),
        ("<think>\nWell, hm.\n</think>\n\nHello.\n", [("thought", "Well, hm."), ("text", "Hello.\n")]),
        ("\n<think>Well\n\nhm.</think>Hello.", [("thought", "Well\n\nhm."), ("text", "Hello.")]),
        ("<think>\n\n</think>\n\nHello.", [("text", "Hello.")]),
        (
            "<think>a</think>b\n<think>c</think> d",
            [("thought", "a"), ("text", "b"), ("thought", "c"), ("text", "d")],
        ),
        ("<think>a</think><think>b</think>c", [("thought", "a"), ("thought", "b"), ("text", "c")]),
        ("<think>It never ends", [("thought", "It never ends")]),
        ("<think>a <think> b </thin </think>c", [("thought", "a <think> b </thin"), ("text", "c")]),
        ("The mark <think> opens, </think> closes.", [("text", "The mark <think> opens, </think> closes.")]),
        ("</think>\nHello.", [("text", "\nHello.")]),
    ],
)
def test_thoughts_and_text(family: str, answer: str, parts: list[tuple[str, Any]]) -> None:
    assert read(answer, family) == parts


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("Well.\n</think>\n\nHello.", [("thought", "Well."), ("text", "Hello.")]),
        ("<think>\nWell.</think>Hello.", [("thought", "Well."), ("text", "Hello.")]),
        ("\n</think>\n\nHello.", [("text", "Hello.")]),
        ("It never ends", [("thought", "It never ends")]),
    ],
)
def test_a_thought_that_the_template_has_opened(answer: str, parts: list[tuple[str, Any]]) -> None:
    assert read(answer, is_open=True) == parts


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (f"<think>\nHm.\n</think>\n\n{CALL}", [("thought", "Hm."), F]),
        (f"<think>\nHm.\n</think>\n\nSure.\n{CALL}\n{CALL}", [("thought", "Hm."), ("text", "Sure."), F, F]),
        (f"<think>Hm.\n{CALL}", [("thought", "Hm."), F]),
        (f"<think>Hm.\n{CALL}\n</think>\n\nDone.", [("thought", "Hm."), F]),
        (f"<think>Hm.\n{CALL}\n{CALL}", [("thought", "Hm."), F, F]),
        (f"<think>a</think>{CALL}\n<think>b</think>\n{CALL}", [("thought", "a"), F, ("thought", "b"), F]),
        (f"<think>a {CALL}\n<think>b {CALL}</think> c", [("thought", "a"), F, ("thought", "b"), F]),
        ("<think>A <tool_call> is due.</think>ok", [("thought", "A <tool_call> is due."), ("text", "ok")]),
        ('<think>x <tool_call>\n{"na</think>ok', [("thought", 'x <tool_call>\n{"na'), ("text", "ok")]),
        (
            '<tool_call>\n{"name": "f", "arguments": {"a": "</think>\\n<think>"}}\n</tool_call>',
            [("f", '{"a": "</think>\\n<think>"}')],
        ),
        (
            '<think>b <tool_call>\n{"name": "f", "arguments": {"a": "</think> c"}}\n</tool_call></think>d',
            [("thought", "b"), ("f", '{"a": "</think> c"}')],
        ),
    ],
)
def test_calls_beside_and_inside_thoughts(answer: str, parts: list[tuple[str, Any]]) -> None:
    assert read(answer) == parts


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", FORMATS)
def test_every_family_may_think_before_it_calls(family: str) -> None:
    call = write_call(family, "f", {"a": 1, "b": "</think>"})
    if family.startswith("llama3"):
        call = f"<|python_tag|>{call}"
    told = ("f", '{"a": 1, "b": "</think>"}')
    assert read(f"<think>Hm.</think>\n\nSo.\n{call}", family) == [("thought", "Hm."), ("text", "So."), told]
    assert read(f"Hm. {call}", family, is_open=True) == [("thought", "Hm."), told]


def test_special_marks_count_everywhere() -> None:
    assert read("[THINK]a[/THINK]b [THINK]c[/THINK]", "mistral", SPECIAL) == [
        ("thought", "a"),
        ("text", "b"),
        ("thought", "c"),
    ]


def test_a_thought_before_a_call_that_must_come_is_told() -> None:
    assert hear(CallsOnly(make(is_open=True)), f"Hm.</think>Sure. {CALL}").parts == [("thought", "Hm."), F]


def test_half_a_call_in_a_thought_that_was_cut_is_not_told() -> None:
    assert hear(make(is_open=True), 'Hm. <tool_call>\n{"name": "f', is_cut=True).parts == [("thought", "Hm.")]


words = st.sampled_from(["<think>", "</think>", CALL, CALL[:20], "Well", ".", " ", "\n", "<", "tool_call>", "{", "a"])


@settings(max_examples=examples(300))
@given(st.lists(words, max_size=12), st.data(), st.booleans())
def test_how_an_answer_is_cut_changes_nothing(answer: list[str], data: st.DataObject, is_open: bool) -> None:
    text = "".join(answer)
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    assert hear(make(is_open=is_open), *pieces) == hear(make(is_open=is_open), text)
